"""Documents of Word (.docx): the text of paragraphs, also in tables, headers and text boxes.

Everything else in the package stays: styles, pictures, fields, links, tabs and line breaks. Notes,
comments and charts lie in parts of their own, which are not translated.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dragoman.base.errors import ConfigError, DragomanError, MachineError
from dragoman.corpus.pairs import MOST_TIMES
from dragoman.inference.text import TextFormat

if TYPE_CHECKING:
    import docx.document

_NAMESPACE: Final = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_TEXT: Final = f"{_NAMESPACE}t"
_FORMAT: Final = f"{_NAMESPACE}rPr"
_UNSEEN: Final = frozenset(
    f"{_NAMESPACE}{name}"
    for name in ("r", "proofErr", "bookmarkStart", "bookmarkEnd", "lastRenderedPageBreak", "ins",
                 "smartTag", "commentRangeStart", "commentRangeEnd", "permStart", "permEnd")
)  # fmt: skip
"""Elements between two runs that a reader does not see; Word splits sentences with them."""
_UNSEEN_FORMAT: Final = frozenset(f"{_NAMESPACE}{name}" for name in ("lang", "noProof"))
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML does not allow."""
_PRESERVED: Final = "{http://www.w3.org/XML/1998/namespace}space"
_ALWAYS_ALLOWED_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class WordDocument:
    """A document of Word.

    stretches: the elements that hold a text of one format. What lies between two formats, links,
    tabs, fields or pictures is a text of its own, as between two tags of HTML.
    """

    document: docx.document.Document
    stretches: list[list[Any]]
    text_format: ClassVar[TextFormat] = "document"

    @classmethod
    def read(cls, content: bytes, *, place: str) -> WordDocument:
        """A document from its file. place: the name of the file.

        Raises ConfigError if it is damaged, and MachineError without python-docx.
        """
        try:
            import docx
            from docx.opc.constants import RELATIONSHIP_TYPE
        except ImportError as error:
            raise MachineError(
                "reading a document of Word needs a package that is not installed: python-docx",
                place=place,
                remedy="pip install 'dragoman[documents]'",
            ) from error
        try:
            _check_size(content, place)
            document = docx.Document(io.BytesIO(content))
            parts = [document.part] + [
                relation.target_part
                for relation in document.part.rels.values()
                if relation.reltype in (RELATIONSHIP_TYPE.HEADER, RELATIONSHIP_TYPE.FOOTER)
            ]
            stretches = [found for part in parts for found in _stretches(part.element)]
        except (DragomanError, MemoryError):
            raise
        except Exception as error:  # a damaged package fails in any of its parts
            raise ConfigError(
                "is not a document of Word",
                place=place,
                remedy="open it in Word or LibreOffice, and save it as .docx",
            ) from error
        return cls(document, stretches)

    def texts(self) -> list[str]:
        """The texts to translate, in order."""
        return ["".join(element.text or "" for element in stretch) for stretch in self.stretches]

    def put_together(self, translations: Iterator[str]) -> bytes:
        """The file of the document with these translations of its texts."""
        for stretch, translation in zip(self.stretches, translations, strict=True):
            first, *others = stretch
            first.text = _NOT_XML.sub("\ufffd", translation)
            first.set(_PRESERVED, "preserve")
            for element in others:
                element.text = ""
        file = io.BytesIO()
        self.document.save(file)
        return file.getvalue()

    def remark(self) -> str:
        """A sentence about the parts that stay untranslated; "" if there are none."""
        notes = [
            part
            for part in self.document.part.package.iter_parts()
            if part.partname.endswith(("footnotes.xml", "endnotes.xml", "comments.xml"))
        ]
        return "footnotes, endnotes and comments stay as they are" if notes else ""


def _check_size(content: bytes, place: str) -> None:
    """Raise ConfigError if a package says that it unpacks to far more than documents do."""
    with zipfile.ZipFile(io.BytesIO(content)) as package:
        size = sum(member.file_size for member in package.infolist())
    if size > max(_ALWAYS_ALLOWED_BYTES, MOST_TIMES * len(content)):
        raise ConfigError(
            f"unpacks to more than {MOST_TIMES} times its size, which documents do not do",
            place=place,
            remedy="save it again in Word or LibreOffice",
        )


def _stretches(root: Any) -> Iterator[list[Any]]:
    """The elements of text in a part, in order; those that a reader sees as one are together."""
    stretch: list[Any] = []
    kind: object = None
    for element in root.iter("*"):
        own = _kind(element) if element.tag == _TEXT else None
        if own is None and (element.tag in _UNSEEN or _is_format(element)):
            continue
        if stretch and (own is None or own != kind):
            yield stretch
            stretch = []
        if own is not None:
            stretch = [*stretch, element]
        kind = own
    if stretch:
        yield stretch


def _kind(element: Any) -> tuple[object, object]:
    """What two elements of text share if nothing is seen between them: the element around their
    runs, such as a paragraph or a link, and the format."""
    run = element.getparent()
    around = run.getparent()
    while around.tag in _UNSEEN:
        around = around.getparent()
    return around, [
        (one.tag, sorted(one.attrib.items()))
        for one in run.iterfind(f"{_FORMAT}//*")
        if one.tag not in _UNSEEN_FORMAT
    ]


def _is_format(element: Any) -> bool:
    return element.tag == _FORMAT or next(element.iterancestors(_FORMAT), None) is not None
