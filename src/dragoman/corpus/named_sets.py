"""Dev and test sets that everybody knows, by their names in sacreBLEU's index, such as wmt14.

sacreBLEU has the addresses, the digests and the parsers. We do not use its download: it ends the
process if a digest differs, and takes a file that was cut off for a whole one.
"""

from __future__ import annotations

import difflib
import hashlib
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Final

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.files import unpack_tar
from dragoman.base.languages import same_language
from dragoman.corpus.download import download

_NAMED: Final = 8
"""So many names or languages are listed in an error."""


def fetch_set(name: str, *, source_language: str, target_language: str) -> tuple[Path, Path]:
    """The source and the (first) reference of a set, one sentence per line; fetched once.

    A set that exists only in the opposite direction is taken with its sides swapped. Files lie in
    sacreBLEU's own folder: `~/.sacrebleu`, or that of the environment variable SACREBLEU.
    Raises ConfigError for an unknown name or languages that the set lacks, CorpusError if the
    download is not the file that sacreBLEU knows, UnreachableError if it cannot be had.
    """
    dataset = _known(name)
    wanted = source_language, target_language
    forwards, backwards = _pair(dataset, wanted), _pair(dataset, wanted[::-1])
    pair = forwards or backwards
    if not pair:
        pairs = ", ".join(list(dataset.langpairs)[:_NAMED])
        raise ConfigError(
            f"the set {name!r} is not in {source_language} and {target_language}",
            place="corpus",
            remedy=f"take another set; its languages begin with {pairs}",
        )
    _fetch_archives(dataset)
    source = Path(dataset.get_source_file(pair))
    reference = Path(dataset.get_reference_files(pair)[0])
    return (source, reference) if forwards else (reference, source)


def _known(name: str) -> Any:
    from sacrebleu.dataset import DATASETS

    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, n=_NAMED) or list(DATASETS)[:_NAMED]
    raise ConfigError(
        f"there is no set {name!r}",
        place="corpus",
        remedy=f"did you mean {', '.join(near)}? `sacrebleu --list` names all",
    )


def _pair(dataset: Any, languages: tuple[str, ...]) -> str:
    """The name of a set's pair of languages, such as "en-de"; "" if it has none like these."""
    for pair in dataset.langpairs:
        if all(map(same_language, pair.split("-"), languages)):
            return str(pair)
    return ""


def _fetch_archives(dataset: Any) -> None:
    """Fetch and unpack what the set consists of, in the place where sacreBLEU looks for it."""
    folder = Path(dataset._rawdir)
    digests = dataset.md5 or [None] * len(dataset.data)
    for url, digest in zip(dataset.data, digests, strict=True):
        archive = folder / dataset._get_tarball_filename(url)
        unpacked = archive.with_name(f"{archive.name}.unpacked")
        if unpacked.exists():
            continue
        with disk_errors_named(folder):
            download(url, archive)
            found = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
            if digest is not None and found != digest:
                archive.unlink()
                raise CorpusError(
                    f"is not the file that sacreBLEU knows: its MD5 is {found}, not {digest}",
                    place=url,
                    remedy="it has been removed; run again, or give the set as files",
                )
            _unpack(archive, folder)
            unpacked.touch()


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive whose digest is known."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as members:
            members.extractall(folder)  # noqa: S202  (`extractall` of zipfile keeps to its folder)
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as members:
            unpack_tar(members, folder)
