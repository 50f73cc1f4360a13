"""mtdata's catalogue of named corpora: their names, addresses and formats.

We use mtdata's index and its parsers. We do not use its downloads: they restart from nothing, keep
a page of HTML as an archive, and accept an invalid certificate. Its unpacking follows links out of
the folder and has no limits, and its cache of the index is a pickle. We read the index from lines
of JSON, as mtdata writes them beside its pickle. Another index may be given, such as a mirror's;
its lines are not trusted.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlparse

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError, MachineError
from dragoman.base.files import open_regular, remove_tree
from dragoman.base.languages import is_language, parse_language, same_language
from dragoman.corpus.archives import unpack_file, unpack_members
from dragoman.corpus.download import download

_LONGEST_LINE: Final = 1 << 20
_LONGEST_ID: Final = 300
_BYTES_OF_ID: Final = 6 * _LONGEST_ID
"""JSON writes a letter outside ASCII as six bytes."""
_LANGUAGES: Final = re.compile(
    rb'"did":\s*"[^"]{1,%d}?-([A-Za-z_]+)(?:-([A-Za-z_]+))?"' % _BYTES_OF_ID
)
"""The languages of a name such as `Statmt-europarl-7-deu-eng` in the line of a corpus."""
_NOT_READ: Final = {
    "hfds": "lies on Hugging Face, in a form that its own library alone reads",
    "opus_xces": "is an alignment of OPUS in XML, which is not read here",
}
"""Formats of mtdata's index, and why their corpora are left to other programs."""


class Listing(BaseModel):
    """A line of the index.

    did: the name, such as `Statmt-europarl-7-deu-eng`. meta: facts that not every corpus has; a
    mirror may state `bytes` (of the download), `pairs` and `licence` in it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    did: str = Field(pattern=r"^[^\s/\\\x00-\x1f]+$", max_length=_LONGEST_ID)
    url: tuple[str, ...] = Field(min_length=1, max_length=100)
    filename: str | None = Field(default=None, max_length=300)
    ext: str = Field(max_length=30)
    in_paths: tuple[str, ...] | None = None
    in_ext: str | None = None
    cols: tuple[int, ...] | None = None
    meta: dict[str, Any] = Field(default_factory=dict)

    @field_validator("url", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _of_the_web(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if urlparse(url).scheme not in ("http", "https"):  # file: would be read here
                raise ValueError(f"{url} is not a web address")
        return value

    @property
    def group(self) -> str:
        """The provider of the corpus, such as Statmt or OPUS."""
        return self.did.split("-")[0]

    @property
    def name(self) -> str:
        """The name of the corpus without its group, version and languages."""
        return self.did.split("-")[1]

    @property
    def version(self) -> str:
        """The version of the corpus, as the index writes it."""
        return self.did.split("-")[2]

    @property
    def not_read(self) -> str:
        """Why the corpus cannot be read here; "" if it can."""
        return _NOT_READ.get(self.ext) or _NOT_READ.get(self.in_ext or "", "")

    @property
    def licence(self) -> str:
        """The licence that the index states, cut to 200 characters; "" if it states none."""
        said = self.meta.get("licence")
        return said[:200] if isinstance(said, str) else ""

    def number(self, key: str) -> int | None:
        """A count that the index states, such as "pairs" or "bytes"; None if it states none."""
        said = self.meta.get(key)
        return said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else None


@dataclass(slots=True)
class Downloads:
    """A folder of downloads. files: the path of each file that `get` has returned, by its URL."""

    root: Path
    files: dict[str, Path] = field(default_factory=dict)

    def get(self, url: str, filename: str | None = None) -> Path:
        """The file at this address, fetched if necessary; raises the errors of `download`."""
        path = self.place(url, filename)
        download(url, path)
        self.files[url] = path
        return path

    def place(self, url: str, filename: str | None = None) -> Path:
        """The path of a download. filename: its name, folders ignored; None: as in the URL."""
        host = (urlparse(url).hostname or "").strip(".") or "nohost"
        digest = hashlib.md5(url.encode(), usedforsecurity=False).hexdigest()
        name = PurePosixPath(filename or url.split("/")[-1]).name
        return self.root / host / digest[:4] / digest[4:] / (name if name.strip(".") else "file")

    def unpack_folder(self, path: Path) -> Path:
        """An empty folder beside a download, for the texts in it."""
        folder = path.with_name(f"{path.name}.unpacked")
        remove_tree(folder)
        folder.mkdir()
        return folder

    def remove_unpacked(self) -> None:
        """Remove the unpacked texts; the downloads stay."""
        for path in self.files.values():
            for other in path.parent.iterdir():
                if other.is_dir():
                    remove_tree(other)
                elif other != path:
                    other.unlink()

    def remove(self) -> None:
        """Remove the downloads in `files`, so that they are fetched again."""
        for path in self.files.values():
            path.unlink(missing_ok=True)


class Catalogue:
    """mtdata's parsers and an index; raises MachineError if mtdata is not installed.

    index: a file of lines of JSON; None: mtdata's own, which is made at the first use (some 15 s).
    """

    def __init__(self, index: Path | None = None) -> None:
        try:
            with quiet_logging():
                self._version = importlib.import_module("mtdata").__version__
                self._mtdata: Any = importlib.import_module("mtdata.entry")
                parser: Any = importlib.import_module("mtdata.parser")
        except ImportError as error:
            raise MachineError(
                f"named corpora need a package that is not installed: {error.name}",
                place="mtdata",
                remedy='pip install "dragoman[fetch]"',
            ) from error
        self._parser = parser.Parser
        # mtdata warns of a file that is closed before its end, perhaps long after an error.
        parser.log = logging.Logger("mtdata.parser", logging.CRITICAL)
        self._given = index

    @cached_property
    def index(self) -> Path:
        """The file of the index; raises MachineError if it cannot be made."""
        if self._given is not None:
            return self._given
        try:
            folder = Path(os.environ.get("MTDATA", "~/.mtdata")).expanduser().resolve()
        except RuntimeError as error:
            raise MachineError(
                "this user has no home directory for mtdata's index",
                remedy="set MTDATA to the folder that may hold it",
            ) from error
        file = folder / f"dragoman.index.{self._version}.jsonl"
        if not file.exists():
            with disk_errors_named(folder):
                folder.mkdir(parents=True, exist_ok=True)
                _make_index(file)
        return file

    def find(
        self, entry_id: str, *, source_language: str, target_language: str
    ) -> tuple[Listing, bool]:
        """The corpus of that id, and whether its first side is our target language.

        Raises: ConfigError if there is none or its languages are not ours; CorpusError if the index
        cannot be read; MachineError if it cannot be made.
        """
        pair = _checked(source_language, target_language)
        try:
            wanted = str(self._mtdata.DatasetId.parse(unicodedata.normalize("NFC", entry_id)))
            # mtdata writes letters outside ASCII as escapes, a mirror perhaps as they are.
            written = {
                json.dumps(wanted, ensure_ascii=is_ascii).encode() for is_ascii in (True, False)
            }
            lines = self._lines(lambda line: any(one in line for one in written))
            found = next((one for one in lines if one.did == wanted), None)
        except (CorpusError, MachineError):
            raise
        except Exception as error:  # mtdata raises Exception itself, and AssertionError
            raise self._unknown(entry_id, pair) from error
        if found is None:
            raise self._unknown(entry_id, pair)
        swapped = _swapped(pair, self._of(found))
        if swapped is None:
            raise ConfigError(
                f"{entry_id} is not a corpus of {source_language} and {target_language}",
                place="corpus",
                remedy=self._like(entry_id, pair),
            )
        return found, swapped

    def of_pair(self, source_language: str, target_language: str) -> list[Listing]:
        """All corpora of these two languages, in the order of the index; errors as in `find`.

        Those of another script, or of a region that differs from one that was asked for, are not
        among them: see `other_forms`.
        """
        pair = _checked(source_language, target_language)
        of_pair = _Of(lambda codes: _swapped(pair, codes) is not None)
        return [one for one in self._lines(of_pair) if _swapped(pair, self._of(one)) is not None]

    def other_forms(self, source_language: str, target_language: str) -> Counter[str]:
        """How many corpora are of these two languages, but in another script or region, by their
        codes, such as {"eng-zho_Hant": 12}; errors as in `find`."""
        pair = _checked(source_language, target_language)
        found = Counter[str]()

        def count(codes: tuple[str, ...]) -> bool:
            return (
                _swapped(pair, codes) is None and _swapped(pair, codes, _one_language) is not None
            )

        of_other = _Of(count)
        for listing in self._lines(of_other):
            found["-".join(self._of(listing))] += 1
        return found

    def of_language(self, language: str) -> list[Listing]:
        """All corpora of one language alone; errors as in `find`."""
        (code,) = _checked(language)
        of_language = _Of(lambda codes: len(codes) == 1 and _fits(code, codes[0]))
        return [one for one in self._lines(of_language) if len(self._of(one)) == 1]

    def pairs(
        self, listing: Listing, downloads: Downloads, *, swapped: bool
    ) -> Iterator[tuple[str, str]]:
        """Source and target of each pair, in the order of the corpus; fetches it if necessary.

        Raises the errors of `download`, CorpusError for a format that is not read here, and for
        bad bytes the errors of unpacking and of mtdata's parsers.
        """
        for segments in self._segments(listing, downloads):
            first, second, *_ = (str(segment or "") for segment in segments)
            yield (second, first) if swapped else (first, second)

    def lines(self, listing: Listing, downloads: Downloads) -> Iterator[str]:
        """The sentences of a corpus of one language; raises the errors of `pairs`."""
        for segments in self._segments(listing, downloads):
            yield segments if isinstance(segments, str) else str(segments[0] or "")

    def _segments(self, listing: Listing, downloads: Downloads) -> Iterator[Any]:
        if listing.not_read:
            raise CorpusError(
                f"{listing.did} {listing.not_read}",
                place=listing.url[0],
                remedy="fetch it by hand, and name its files as source and target",
            )
        url = listing.url[0] if len(listing.url) == 1 else listing.url
        values = listing.model_dump(exclude={"did", "url"})
        values["in_paths"] = list(listing.in_paths or ()) or None
        entry = self._mtdata.Entry(listing.did, url, **values)
        try:
            paths = self._texts(listing, entry, downloads)
            parser = self._parser(paths, ext=entry.in_ext or None, ent=entry)
            yield from parser.read_segs(show_pbar=False)
        finally:
            downloads.remove_unpacked()

    def _texts(self, listing: Listing, entry: Any, downloads: Downloads) -> list[Path]:
        """Plain files for mtdata's parsers, one for each text."""
        # If there are several addresses, each ends in the name of its file.
        name = entry.filename if len(listing.url) == 1 else None
        texts: list[Path] = []
        for url in listing.url:
            local = downloads.get(url, name)
            folder = downloads.unpack_folder(local)
            if entry.is_archive:
                texts += unpack_members(local, entry.in_paths, folder)
            else:
                texts.append(unpack_file(local, folder))
        return texts

    def _lines(self, wanted: Any) -> Iterator[Listing]:
        """The wanted lines of the index; raises CorpusError if it or one of them cannot be read."""
        try:
            with open_regular(self.index) as file:
                number = 0
                while line := file.readline(_LONGEST_LINE):
                    number += 1
                    if wanted(line):
                        yield self._listing(line, number)
        except OSError as error:
            raise CorpusError(
                f"cannot be read: {error.strerror}", place=self.index, remedy="check its name"
            ) from error

    def _listing(self, line: bytes, number: int) -> Listing:
        try:
            listing = Listing.model_validate(json.loads(line))
            self._mtdata.DatasetId.parse(listing.did)
            return listing
        except Exception as error:  # by json, pydantic or mtdata, which raises Exception itself
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise CorpusError(
                f"is not an entry of mtdata's index: {why.splitlines()[0] if why else 'damaged'}",
                place=f"{self.index}:{number}",
                remedy="fetch the index again, or make it with mtdata",
            ) from error

    def _of(self, listing: Listing) -> tuple[str, ...]:
        """The codes of its languages."""
        return tuple(map(str, self._mtdata.DatasetId.parse(listing.did).langs))

    def _unknown(self, entry_id: str, pair: tuple[str, ...]) -> ConfigError:
        return ConfigError(
            f"mtdata knows no corpus {entry_id!r}",
            place="corpus",
            remedy=self._like(entry_id, pair),
        )

    def _like(self, entry_id: str, pair: tuple[str, ...]) -> str:
        """A remedy: the known id of these languages that is most like this one."""
        ids = [one.did for one in self._lines(_Of(lambda codes: _swapped(pair, codes) is not None))]
        near = difflib.get_close_matches(entry_id, ids, n=1, cutoff=0.5)
        known = "-".join(pair)
        return (
            f"did you mean {near[0]}?" if near else f"list the known ones: mtdata list -l {known}"
        )


class _Of:
    """A test whether a line of the index is of wanted languages; it reads only the line's start."""

    def __init__(self, wanted: Callable[[tuple[str, ...]], bool]) -> None:
        self._wanted = wanted
        self._known: dict[tuple[bytes, bytes | None], bool] = {}

    def __call__(self, line: bytes) -> bool:
        match = _LANGUAGES.search(line[: _BYTES_OF_ID + 400])
        if match is None:
            return False
        codes = match[1], match[2]
        if codes not in self._known:
            self._known[codes] = self._wanted(tuple(code.decode() for code in codes if code))
        return self._known[codes]


def _checked(*codes: str) -> tuple[str, ...]:
    """The codes themselves; raises ConfigError if one is not that of a language."""
    for code in codes:
        parse_language(code, place="corpus.source_language or corpus.target_language")
    return codes


def _fits(wanted: str, code: str) -> bool:
    """Whether a corpus of this code has the wanted language, in the wanted region or in any."""
    if not same_language(wanted, code):
        return False
    regions = {parse_language(one).region for one in (wanted, code)} - {""}
    return len(regions) < 2


def _one_language(wanted: str, code: str) -> bool:
    """Whether two codes are of one language, in any script and region."""
    return is_language(code) and parse_language(wanted).language == parse_language(code).language


def _swapped(
    pair: tuple[str, ...], codes: tuple[str, ...], fits: Callable[[str, str], bool] = _fits
) -> bool | None:
    """Whether a corpus has the languages of a pair in the other order; None if it is of others."""
    for swapped in (False, True):
        ordered = codes[::-1] if swapped else codes
        if len(codes) == 2 and all(map(fits, pair, ordered)):
            return swapped
    return None


def _make_index(file: Path) -> None:
    """Make mtdata's index in a process of its own, in an empty folder; raises MachineError."""
    with tempfile.TemporaryDirectory() as empty:
        module = "dragoman.corpus.mtdata_index"
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, str(file)],
            cwd=empty,
            env=os.environ | {"MTDATA": empty},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it did not say why"]
        raise MachineError(
            f"mtdata cannot make its index: {said[0]}",
            place="mtdata",
            remedy='install it again: pip install --force-reinstall "dragoman[fetch]"',
        )


@contextmanager
def quiet_logging() -> Iterator[None]:
    """Silence mtdata and `datasets`, which log much; mtdata adds a handler to the root logger."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)
