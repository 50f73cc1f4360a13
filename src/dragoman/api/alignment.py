"""Documents in two languages -> a corpus. Free of torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from dragoman.api.checks import checked, path_of
from dragoman.api.kinds import Option, RunLike
from dragoman.base.errors import ConfigError, DragomanError

if TYPE_CHECKING:
    from dragoman.corpus.align_documents import DocumentPair
    from dragoman.inference.reading import Sentences

_MOST_KNOWN: Final = 50_000


@dataclass(frozen=True, slots=True)
class Aligned:
    """The result of `align`.

    output: the folder, with pairs.tsv, doubtful.tsv and doubtful.html.
    documents: pairs of documents, by their names. by_content: how many of them have other names.
    pairs, doubtful: numbers of pairs. unpaired: sentences that only one side has.
    alone: documents without a partner. unread: documents and links to folders that were left out,
        and why.
    entry: the line for `corpus.train` of a recipe.
    """

    output: Path
    documents: Sequence[tuple[str, str]]
    by_content: int
    pairs: int
    doubtful: int
    unpaired: int
    alone: Sequence[str]
    unread: Mapping[str, str]
    entry: str


@checked
def align(
    source: str | Path,
    target: str | Path,
    output: Annotated[str | Path, Option("--output", "FOLDER")],
    *,
    source_language: Annotated[str, Option(metavar="CODE")] = "",
    target_language: Annotated[str, Option(metavar="CODE")] = "",
    lines: bool = False,
    lexicon: RunLike | None = None,
    least_score: float = 0.5,
) -> Aligned:
    """Make a corpus of documents in two languages.

    Documents match by their names, without the language in them; of the others, those that share
    many rare words. Their sentences are aligned by lengths and by a lexicon, which is learnt from
    the documents themselves.

    source: a folder of documents in one language, or one document: text, HTML, Markdown, Word,
        subtitles, gettext.
    target: the same in the other language.
    output: a new folder for the pairs, the doubtful pairs, and a page that shows these.
    source_language: the language of the sources; "": as their names tell.
    target_language: the language of the targets; "": as their names tell.
    lines: take each line of a text for a sentence, in place of splitting the text.
    lexicon: a run, or the folder of its shards, whose training pairs teach the lexicon, too.
    least_score: pairs with a lower score are doubtful. A score is the estimated probability that
        both sides say the same.
    Raises ConfigError if the folders have no documents that match or are one, or if the output
    exists or is inside one of them.
    """
    from dragoman.api.aligned_files import PAIRS, write_aligned
    from dragoman.base.languages import parse_language
    from dragoman.corpus.align_documents import align_documents
    from dragoman.corpus.match_documents import language_of_names

    places = Path(source), Path(target)
    folder = Path(output)
    if folder.exists():
        raise ConfigError("exists already", place=folder, remedy="name another folder")
    _check(places, folder, least_score)
    for name, code in (("source_language", source_language), ("target_language", target_language)):
        if code:
            parse_language(code, place=name)
    unread: dict[str, str] = {}
    sides = _documents(places[0], unread, lines), _documents(places[1], unread, lines)
    languages = [
        given or language_of_names([f"{place.absolute().name}/{name}" for name in side])
        for given, place, side in zip(
            (source_language, target_language), places, sides, strict=True
        )
    ]
    matched, by_content = _matched(places, sides, (languages[0], languages[1]))
    same = {pair for pair in matched if sides[0][pair[0]].texts == sides[1][pair[1]].texts}
    matched = [pair for pair in matched if pair not in same]
    for one, _ in sorted(same):
        unread[_path(places[0], one)] = "is the same text on both sides"
    known = _training_pairs(path_of(lexicon)) if lexicon is not None else ([], [])
    documents = [_paired(sides[0][one], sides[1][other]) for one, other in matched]
    aligned = align_documents(documents, known=known)
    counts = write_aligned(folder, matched, documents, aligned, least_score)
    alone = [
        _path(place, name)
        for number, (place, side) in enumerate(zip(places, sides, strict=True))
        for name in sorted(side.keys() - {pair[number] for pair in [*matched, *same]})
    ]
    entry = _entry(folder / PAIRS, languages, least_score)
    return Aligned(folder, matched, by_content, *counts, alone, unread, entry)


def _check(places: tuple[Path, Path], folder: Path, least_score: float) -> None:
    """Raises ConfigError if the sides are one place, the output is in one, or the score is none."""
    if not 0.0 <= least_score <= 1.0:
        raise ConfigError(
            f"{least_score:g} is not a score", place="least_score", remedy="give one from 0 to 1"
        )
    if places[0].resolve() == places[1].resolve():
        raise ConfigError(
            "is both the source and the target",
            place=places[0],
            remedy="put the documents of each language into a folder of their own",
        )
    for place in places:
        if folder.resolve().is_relative_to(place.resolve()):
            raise ConfigError(
                f"is inside {place}, whose files are read as documents",
                place=folder,
                remedy="name a folder elsewhere",
            )


def _path(place: Path, name: str) -> str:
    """The path of a document of a folder, or of the document that the place itself is."""
    return str(place / name if place.is_dir() else place)


def _documents(place: Path, unread: dict[str, str], lines: bool) -> dict[str, Sentences]:
    """The documents of a folder by their names in it, or one file; notes those it cannot read.

    Raises ConfigError or CorpusError if there is none.
    """
    from dragoman.inference.reading import read_sentences

    if place.is_file():
        return {place.name: read_sentences(place, place=str(place), lines=lines)}
    if not place.is_dir():
        raise ConfigError("no such file or folder", place=place, remedy="check the name")
    found = {}
    for path in sorted(place.rglob("*")):
        name = path.relative_to(place).as_posix()
        if any(part.startswith(".") for part in Path(name).parts):
            continue
        if path.is_dir():
            if path.is_symlink():
                unread[str(path)] = "is a link to a folder"
            continue
        try:
            sentences = read_sentences(path, place=str(path), lines=lines)
        except DragomanError as error:
            unread[str(path)] = error.problem
            continue
        if sentences.texts:
            found[name] = sentences
        else:
            unread[str(path)] = "has no text"
    if not found:
        why = next(iter(unread.items()), None)
        raise ConfigError(
            f"has no document that can be read{f' ({why[0]}: {why[1]})' if why else ''}",
            place=place,
            remedy="put text, HTML, Markdown, Word files, subtitles or gettext there",
        )
    return found


def _matched(
    places: tuple[Path, Path],
    sides: tuple[dict[str, Sentences], dict[str, Sentences]],
    languages: tuple[str, str],
) -> tuple[list[tuple[str, str]], int]:
    """Pairs of documents, and how many of them were matched by their content."""
    from dragoman.corpus.match_documents import match_content, match_names

    if not any(place.is_dir() for place in places):
        return [(next(iter(sides[0])), next(iter(sides[1])))], 0
    named = match_names(([*sides[0]], [*sides[1]]), languages)
    one, other = (
        {name: found.texts for name, found in side.items() if name not in taken}
        for side, taken in zip(sides, zip(*named, strict=True) if named else ((), ()), strict=True)
    )
    similar = match_content(one, other)
    if not named and not similar:
        raise ConfigError(
            f"none of {len(sides[0])} documents matches one of {len(sides[1])} in {places[1]}",
            place=places[0],
            remedy="name them alike, such as guide.en.html and guide.de.html, "
            "or give the languages that are in their names",
        )
    return sorted([*named, *similar]), len(similar)


def _paired(one: Sentences, other: Sentences) -> DocumentPair:
    """Two documents as one; of two catalogues the messages that both have."""
    from dragoman.corpus.align_documents import DocumentPair

    if one.keys is None or other.keys is None:
        return DocumentPair(one.texts, other.texts)
    said = dict(zip(other.keys, other.texts, strict=True))
    both = [(text, said[key]) for key, text in zip(one.keys, one.texts, strict=True) if key in said]
    return DocumentPair([text for text, _ in both], [text for _, text in both], in_step=True)


def _training_pairs(path: Path) -> tuple[list[str], list[str]]:
    """The first training pairs of a run or of a prepared corpus."""
    from dragoman.corpus.shards import TokenShards
    from dragoman.corpus.subword import VOCABULARIES
    from dragoman.corpus.vocabulary import load_vocabulary
    from dragoman.recipe.run_directory import RunDirectory

    is_prepared = (path / "manifest.json").is_file() and (path / "train").is_dir()
    folder = path if is_prepared else RunDirectory.open(path).prepared()
    shards = TokenShards(folder / "train")
    pairs = range(min(shards.num_pairs, _MOST_KNOWN))
    source, target = (
        load_vocabulary(folder / name).decode([side(pair).tolist() for pair in pairs])
        for name, side in zip(VOCABULARIES, (shards.source, shards.target), strict=True)
    )
    return source, target


def _entry(pairs: Path, languages: Sequence[str], least_score: float) -> str:
    """The entry of a recipe, in TOML."""
    keys = ("source_language", "target_language")
    told = "".join(f', {key} = "{code}"' for key, code in zip(keys, languages, strict=True) if code)
    scores = f'scores = [{{column = "score", at_least = {least_score:g}}}]'
    return f"{{tsv = {json.dumps(str(pairs.absolute()), ensure_ascii=False)}, {scores}{told}}}"
