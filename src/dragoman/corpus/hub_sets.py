"""Parallel text from the Hub of Hugging Face, by the id of a data set: Helsinki-NLP/opus-100.

Its rows are streamed by the library `datasets`, which runs no code of a data set since version 4.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError, DragomanError, MachineError
from dragoman.base.languages import closest_language, same_language
from dragoman.base.printable import clipped, printable_line
from dragoman.corpus.catalogue import quiet_logging
from dragoman.corpus.config import TextFiles
from dragoman.corpus.fetched import are_as_fetched, write_receipt, write_texts

_NAMED: Final = 8
"""So many names are listed in an error."""
_LONGEST_WORDS: Final = 300
Row = Mapping[str, Any]


def fetch_from_hub(
    entry: TextFiles, directory: Path, *, source_language: str, target_language: str
) -> tuple[Path, Path]:
    """The two texts of an entry with `hf`, one sentence per line; fetched once.

    A row has its texts in a column for each language, in a column `translation` with both, or in
    the two columns that the entry names. Texts lie in `<directory>/<id>/<config>/<split>/` and a
    folder for languages and columns; `fetched.json` there has the version (commit) of the data
    set.
    Raises ConfigError for an unknown data set, configuration, split or column, CorpusError if rows
    cannot be read, MachineError if `datasets` is missing or the Hub cannot be reached.
    """
    languages = (source_language, target_language)
    texts = [*languages, *(quote(name, safe="") for name in entry.columns)]
    folder = directory / entry.hub_name / "-".join(texts)
    source, target = (folder / f"text.{language}" for language in languages)
    if not are_as_fetched(source, target):
        datasets = _datasets()
        with disk_errors_named(directory), quiet_logging():
            try:
                version, rows = _stream(datasets, entry)
                write_texts(_pairs(rows, entry, languages), [source, target])
            except DragomanError:
                raise
            except Exception as error:  # a parser may raise anything for bad bytes
                if isinstance(error, OSError) and error.errno is not None and error.filename:
                    raise  # from the system: the disk is at fault
                raise _failure(error, entry) from error
            write_receipt({f"hf://datasets/{entry.hf}@{version}": version}, [source, target])
    return source, target


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MachineError(
            f"data sets of the Hub need a package that is not installed: {error.name}",
            place="hf",
            remedy='pip install "dragoman[hub]"',
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _stream(datasets: Any, entry: TextFiles) -> tuple[str, Iterator[Row]]:
    """The newest version of a data set, and its rows."""
    from huggingface_hub import HfApi

    if Path(entry.hf).is_dir():
        raise ConfigError(
            f"is also a folder, {Path(entry.hf).resolve()}, which `datasets` would read instead",
            place=f"hf {entry.hf}",
            remedy="run in another folder, or rename this one",
        )
    version = str(HfApi().dataset_info(entry.hf).sha)
    configs = datasets.get_dataset_config_names(entry.hf, revision=version)
    config = entry.config or (configs[0] if len(configs) == 1 else "")
    if config not in configs:
        raise _unknown("configuration", "config", entry.config, configs, entry)
    splits = datasets.get_dataset_split_names(entry.hf, config, revision=version)
    split = entry.split or "train"
    if split not in splits:
        raise _unknown("split", "split", split, splits, entry)
    rows = datasets.load_dataset(entry.hf, config, split=split, revision=version, streaming=True)
    return version, iter(rows)


def _unknown(what: str, key: str, name: str, names: list[str], entry: TextFiles) -> ConfigError:
    near = difflib.get_close_matches(name, names, n=_NAMED, cutoff=0.4) or names[:_NAMED]
    more = f", ... ({len(names)} in all)" if len(names) > len(near) else ""
    return ConfigError(
        f"has no {what} {name!r}" if name else f"has several {what}s, and none is named",
        place=f"hf {entry.hf}",
        remedy=f"write {key} beside it, one of {_said(', '.join(near))}{more}",
    )


def _pairs(
    rows: Iterator[Row], entry: TextFiles, languages: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """The two texts of each row; one that is missing is an empty line."""
    names: tuple[str, str] | None = None
    for row in rows:
        texts: Any = row
        if not entry.columns and not isinstance(row.get("translation", ""), str):
            texts = row["translation"]
        if texts is None:
            yield "", ""
            continue
        names = names or _names(texts, entry, languages)
        yield texts[names[0]] or "", texts[names[1]] or ""


def _names(texts: Row, entry: TextFiles, languages: tuple[str, str]) -> tuple[str, str]:
    """The names of the two texts in a row like this one."""
    names = entry.columns or tuple(
        closest_language(code, [name for name in texts if same_language(name, code)]) or ""
        for code in languages
    )
    for name, wanted in zip(names, entry.columns or languages, strict=True):
        if not isinstance(texts.get(name, 0), str | None):
            what = (
                f"its column {name!r} is no text" if name in texts else f"no column is {wanted!r}"
            )
            raise ConfigError(
                f"{_said(what)}; it has {_said(', '.join(texts))}",
                place=f"hf {entry.hf}",
                remedy="correct source_language and target_language, or write beside it: "
                'columns = ["SOURCE", "TARGET"]',
            )
    source, target = names
    return source, target


def _said(words: str) -> str:
    return clipped(printable_line(words), _LONGEST_WORDS)


def _failure(error: Exception, entry: TextFiles) -> DragomanError:
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        GatedRepoError,
        HfHubHTTPError,
        HTTPError,  # of the library for HTTP, which is another one in some versions
        OfflineModeIsEnabled,
    )

    place = f"hf {entry.hf}"
    said = _said(next(iter(str(error).splitlines()), "") or type(error).__name__)
    if isinstance(error, GatedRepoError):
        return ConfigError(
            "its owner shares it on request alone",
            place=place,
            remedy="accept its terms on its page, then run hf auth login or set HF_TOKEN",
        )
    if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403, 404):
        return ConfigError(
            "the Hub has no such data set, or does not show it to you",
            place=place,
            remedy=f"check its name{_near(entry.hf)}; for a private one run hf auth login",
        )
    if isinstance(error, HTTPError | OSError | OfflineModeIsEnabled):
        return MachineError(
            f"the Hub cannot be reached: {said}",
            place=place,
            remedy="look at the network (and HF_ENDPOINT, HF_HUB_OFFLINE), and run again",
        )
    return CorpusError(
        f"its rows cannot be read: {said}",
        place=place,
        remedy="look at its page on the Hub, or give the text as files",
    )


def _near(hub_id: str) -> str:
    """Names of data sets like this one, in words; "" if the Hub tells none."""
    from huggingface_hub import HfApi

    try:
        found = HfApi().list_datasets(search=hub_id.rpartition("/")[2], limit=3)
        names = ", ".join(one.id for one in found)
    except Exception:
        return ""
    return f" (such as {_said(names)})" if names else ""
