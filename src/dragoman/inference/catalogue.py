"""Catalogues of gettext (.po): the messages that nobody has translated are translated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from dragoman.base.errors import ConfigError, MachineError
from dragoman.inference.text import TextFormat

if TYPE_CHECKING:
    from polib import POEntry, POFile

_PLACEHOLDER: Final = re.compile(
    r"""
    %(?:\([^()\s]*\)|\d+\$)?[-+\#0']*[\d*]*(?:\.[\d*]+)?(?:hh?|ll?|[qjzt])?[a-zA-Z%]  # C, Python
    | \$?\{[^{}\s]*\} | \$[A-Za-z_]\w*                                      # braces, the shell
    | </?[A-Za-z][^<>]*> | &\#?\w+; | https?://[^\s<>]+                     # HTML, addresses
    """,
    re.VERBOSE,
)
_BYTE_ORDER_MARK: Final = "\ufeff"
_CHARSET: Final = re.compile(r"charset=(?:utf-8|utf8)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """A catalogue. Messages with a plural, fuzzy, obsolete and translated ones stay as they are."""

    catalogue: POFile
    entries: list[POEntry]
    """The messages to translate."""
    kept: Counter[str] = field(default_factory=Counter)
    """How many messages stay as they are, by the reason."""
    text_format: ClassVar[TextFormat] = "document"

    @classmethod
    def read(cls, text: str, *, place: str) -> Catalogue:
        """A catalogue from its text. place: the name of the file.

        Raises ConfigError if it is damaged, and MachineError without polib.
        """
        try:
            import polib
        except ImportError as error:
            raise MachineError(
                "reading a catalogue needs a package that is not installed: polib",
                place=place,
                remedy="pip install 'dragoman[documents]'",
            ) from error
        try:
            # polib opens a text that is the name of a file; none begins with a line end.
            catalogue = polib.pofile(f"\n{text.lstrip(_BYTE_ORDER_MARK)}", encoding="utf-8")
        except (OSError, ValueError, LookupError, AttributeError) as error:
            line = re.search(r"\(line (\d+)\)(?:: (.+))?", str(error))
            raise ConfigError(
                f"is not a catalogue of gettext: {(line and line[2]) or 'it has another syntax'}",
                place=f"{place}:{int(line[1]) - 1}" if line else place,
                remedy="correct it; msgfmt --check names every fault",
            ) from error
        document = cls(catalogue, [])
        for entry in catalogue:
            if reason := _reason_to_keep(entry):
                document.kept[reason] += 1
            else:
                document.entries.append(entry)
        return document

    def texts(self) -> list[str]:
        """The texts to translate, in order."""
        return [entry.msgid for entry in self.entries]

    def put_together(self, translations: Iterator[str]) -> bytes:
        """The catalogue with these translations of its texts, in UTF-8.

        A translation that has not the placeholders of its message is left out.
        """
        for entry, translation in zip(self.entries, translations, strict=True):
            if _placeholders(entry.msgid) == _placeholders(translation):
                entry.msgstr = translation
            else:
                self.kept["whose translation lost a placeholder such as %s"] += 1
        content_type = self.catalogue.metadata.get("Content-Type", "")
        if not _CHARSET.search(content_type):
            self.catalogue.metadata["Content-Type"] = "text/plain; charset=UTF-8"
        return f"{self.catalogue}\n".encode()

    def remark(self) -> str:
        """A sentence about the parts that stay untranslated; "" if there are none."""
        kept = ", ".join(f"{count:,} {reason}" for reason, count in self.kept.items())
        return f"messages that stay as they are: {kept}" if kept else ""


def _reason_to_keep(entry: POEntry) -> str:
    if entry.obsolete:
        return "obsolete"
    if entry.fuzzy:
        return "fuzzy"
    if entry.msgid_plural:
        return "with a plural"
    if entry.msgstr:
        return "translated already"
    return ""


def _placeholders(text: str) -> Counter[str]:
    return Counter(_PLACEHOLDER.findall(text))
