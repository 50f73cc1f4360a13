"""Named corpora as text files: fetched once, with a receipt of what was fetched.

A folder of downloads has `<name>/` for each corpus, with a file `text.<language>` for each of its
languages and `fetched.json`: the addresses and sha256 of what was downloaded and of the texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError, DragomanError
from dragoman.base.files import file_sha256, whole_file, write_whole
from dragoman.corpus.catalogue import Catalogue, Downloads, quiet_logging
from dragoman.corpus.config import TextFiles

_RECEIPT: Final = "fetched.json"
_ARCHIVES: Final = "archives"


def fetch(
    entry_id: str,
    directory: Path,
    *,
    source_language: str,
    target_language: str,
    index: Path | None = None,
) -> TextFiles:
    """The two text files of the corpus that mtdata calls `entry_id`; fetches them if necessary.

    directory: holds `<entry_id>/` with two files `text.<language>` and `fetched.json` (addresses,
    sha256 of the downloads and of the texts), and `archives/`, the downloads. Texts that agree with
    `fetched.json` are not made again, and archives that exist are not downloaded again.
    index: as for `Catalogue`.
    Raises ConfigError for an unknown id or one of other languages, CorpusError if the server or
    the archive is at fault, MachineError if mtdata is missing or the disk or network fails.
    """
    languages = (source_language, target_language)

    def pairs(catalogue: Catalogue, downloads: Downloads) -> Iterator[tuple[str, str]]:
        entry, swapped = catalogue.find(
            entry_id, source_language=source_language, target_language=target_language
        )
        return catalogue.pairs(entry, downloads, swapped=swapped)

    source, target = _fetched(entry_id, directory, languages, pairs, index)
    return TextFiles(source=str(source.resolve()), target=str(target.resolve()))


def fetch_monolingual(
    entry_id: str, directory: Path, *, language: str, index: Path | None = None
) -> Path:
    """The text of a corpus of one language, one sentence per line; fetches it if necessary.

    Files and errors are those of `fetch`.
    """

    def lines(catalogue: Catalogue, downloads: Downloads) -> Iterator[tuple[str]]:
        known = {one.did: one for one in catalogue.of_language(language)}
        if entry_id not in known:
            raise ConfigError(
                f"mtdata knows no corpus {entry_id!r} of {language} alone",
                place="corpus",
                remedy="check its id",
            )
        return ((line,) for line in catalogue.lines(known[entry_id], downloads))

    (text,) = _fetched(entry_id, directory, (language,), lines, index)
    return text.resolve()


def is_as_fetched(folder: Path) -> bool:
    """Whether the texts of a corpus are those that were fetched into its folder."""
    texts = [path for path in folder.glob("text.*") if path.suffix != ".tmp"]
    return bool(texts) and are_as_fetched(*texts)


def _fetched(
    entry_id: str,
    directory: Path,
    languages: tuple[str, ...],
    read: Callable[[Catalogue, Downloads], Iterator[tuple[str, ...]]],
    index: Path | None,
) -> list[Path]:
    """The texts of a corpus, one per language."""
    paths = [directory / entry_id / f"text.{language}" for language in languages]
    if are_as_fetched(*paths):
        return paths
    with disk_errors_named(directory), quiet_logging():
        downloads = Downloads(directory / _ARCHIVES)
        try:
            write_texts(read(Catalogue(index), downloads), paths)
        except DragomanError:
            raise
        except Exception as error:  # a parser may raise anything for bad bytes
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the system: the disk is at fault, not the bytes
            downloads.remove()
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise CorpusError(
                f"the download of {entry_id} cannot be read: {said}",
                place=", ".join(downloads.files) or entry_id,
                remedy="it has been removed; run again to fetch it, or give the text as files",
            ) from error
        digests = {url: file_sha256(path) for url, path in downloads.files.items()}
        write_receipt(digests, paths)
    return paths


def write_texts(segments: Iterable[tuple[str, ...]], paths: Sequence[Path]) -> None:
    """Write one line per segment, line ends in it as spaces; raises ValueError if there is none.

    paths: one for each text of a segment.
    """
    folder = paths[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _RECEIPT).unlink(missing_ok=True)
    with ExitStack() as stack:
        files = [stack.enter_context(whole_file(path)) for path in paths]
        for texts in segments:
            for file, text in zip(files, texts, strict=True):
                file.write(" ".join(text.splitlines()).encode() + b"\n")
        if not files[0].tell():
            raise ValueError("it holds no pairs" if len(paths) > 1 else "it holds no text")


def write_receipt(downloads: Mapping[str, str], texts: Sequence[Path]) -> None:
    """Write the receipt of a download; it comes last, and makes the texts valid.

    downloads: digests, or names of versions, by their addresses.
    """
    states = {
        path.name: {
            "sha256": file_sha256(path),
            "size_bytes": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
        }
        for path in texts
    }
    receipt = json.dumps({"downloads": dict(downloads), "texts": states}, indent=1)
    write_whole(texts[0].parent / _RECEIPT, receipt)


def are_as_fetched(*texts: Path) -> bool:
    """Whether the receipt lists these texts; a text is read only if its time differs."""
    try:
        receipt = json.loads((texts[0].parent / _RECEIPT).read_text(encoding="utf-8"))
        known = receipt["texts"]
        return known.keys() == {path.name for path in texts} and all(
            path.stat().st_size == known[path.name]["size_bytes"]
            and (
                path.stat().st_mtime_ns == known[path.name]["mtime_ns"]
                or file_sha256(path) == known[path.name]["sha256"]
            )
            for path in texts
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False
