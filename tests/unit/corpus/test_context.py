"""Paragraphs in training text: of true neighbours alone, alike on both sides, without test text."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import dragoman
from dragoman.corpus.config import CorpusConfig, TextFiles
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.stand_ins import SEPARATOR
from dragoman.corpus.subword import Subword
from dragoman.telemetry.events import EventWriter, read_events
from paragraphs_run import split_at
from parallel_text import sentences, small_corpus, write_lines, write_pairs

Paragraph = list[tuple[str, str]]


def prepared(config: CorpusConfig, folder: Path) -> tuple[Manifest, list[Paragraph], list[str]]:
    """The manifest, the paragraphs and the other sources of a corpus that is made of a section."""
    manifest = prepare(config, folder, workers=1)
    shards = TokenShards(folder / "train")
    sides = [Subword.load(folder / f"{side}.model") for side in ("source", "target")]
    found, alone = [], []
    for row in range(shards.num_pairs):
        ids = shards.source(row).tolist(), shards.target(row).tolist()
        source, target = (
            side.decode(split_at(side.separator_id, own))
            for side, own in zip(sides, ids, strict=True)
        )
        assert max(map(len, ids)) <= config.max_pieces
        if len(source) == 1 or len(target) == 1:
            alone += source
        else:
            found.append(list(zip(source, target, strict=True)))
    return manifest, found, alone


@pytest.mark.parametrize("form", ["two files", "tsv"])
def test_paragraphs_are_neighbours_of_one_document(form: str, tmp_path: Path) -> None:
    """Empty lines, dropped lines, held-out pairs and ends of files stand between documents."""
    chosen = Random(1)
    pairs = list(zip(*sentences(900), strict=True))
    document = {pair: number // 7 for number, pair in enumerate(pairs)}
    lines: list[tuple[str, str]] = []
    for pair in pairs:
        if chosen.random() < 0.05:  # a pair that a filter drops stands between neighbours
            lines.append((pair[0], pair[0]))
        lines.append(pair)
        if pairs.index(pair) % 7 == 6:
            lines.append(("", ""))
    place = {pair: number for number, pair in enumerate(lines)}
    half = len(lines) // 2
    train = []
    for name, part in (("a", lines[:half]), ("b", lines[half:])):
        if form == "tsv":
            write_lines(tmp_path / f"{name}.tsv", [f"{one}\t{other}" for one, other in part])
            train.append(TextFiles(tsv=f"{name}.tsv"))
        else:
            sides = [one for one, _ in part], [other for _, other in part]
            train.append(write_pairs(tmp_path, name, sides))
    config = small_corpus(tmp_path, train=tuple(train), context={"sentences": 4}, valid_pairs=40)
    manifest, found, alone = prepared(config, tmp_path / "out")
    assert manifest.train.copies == {"context": len(found)}
    assert manifest.train.kept == len(alone) == 900 - 50
    assert {len(paragraph) for paragraph in found} == {2, 3, 4}
    held_out = {
        line
        for split in ("valid", "test")
        for line in (tmp_path / "out" / split / "source.txt").read_text().splitlines()
    }
    assert len(held_out) == 50
    for paragraph in found:
        places = [place[pair] for pair in paragraph]
        assert places == [*range(places[0], places[0] + len(places))], "nothing stood between them"
        assert len({document[pair] for pair in paragraph}) == 1
        assert not places[0] < half <= places[-1], "of two files"
        assert held_out.isdisjoint(source for source, _ in paragraph)
    joined = [pair for paragraph in found for pair in paragraph]
    assert len(joined) == len({*joined}), "a sentence is in one paragraph at most"
    assert len(joined) > 400


@pytest.mark.system
def test_the_seed_alone_decides_them(tmp_path: Path) -> None:
    def found(seed: int, workers: int, name: str) -> str:
        config = small_corpus(tmp_path, context={"sentences": 3}, seed=seed)
        return prepare(config, tmp_path / name, workers=workers).digest

    assert found(1, 1, "a") == found(1, 2, "b") != found(2, 1, "c")


def test_limits_of_length_hold_for_paragraphs(tmp_path: Path) -> None:
    by_words = small_corpus(
        tmp_path, context={"sentences": 8}, filters={"max_words": 14}, max_pieces=100
    )
    manifest, found, _ = prepared(by_words, tmp_path / "words")
    assert manifest.train.copies["context"] > 50
    for paragraph in found:
        assert sum(len(source.split()) for source, _ in paragraph) <= 14
    by_pieces = small_corpus(tmp_path, context={"sentences": 8}, max_pieces=60)
    _, found, _ = prepared(by_pieces, tmp_path / "pieces")  # checks the rows
    assert found


def test_no_paragraph_has_a_sentence_with_a_separator_of_its_own(tmp_path: Path) -> None:
    source, target = sentences(300)
    source[100] += f"{SEPARATOR} a"
    target[200] += f"{SEPARATOR} a"
    config = small_corpus(
        tmp_path,
        train=(write_pairs(tmp_path, "strange", (source, target)),),
        context={"sentences": 4},
        filters={"max_control_characters": 9},
    )
    _, found, _ = prepared(config, tmp_path / "out")
    in_paragraphs = {pair for paragraph in found for pair in paragraph}
    assert len(in_paragraphs) > 100
    assert not any(source[100].split(SEPARATOR)[0] in one for one, _ in in_paragraphs)
    assert not any(target[200].split(SEPARATOR)[0] in one for _, one in in_paragraphs)


def test_shuffled_text_has_none_and_a_tag_stands_once(tmp_path: Path) -> None:
    entries = [
        write_pairs(tmp_path, name, sentences(300, seed=seed)).model_copy(update=update)
        for name, seed, update in (("a", 1, {"shuffled": True}), ("b", 2, {"tag": "<bt>"}))
    ]
    config = small_corpus(
        tmp_path, train=tuple(entries), context={"sentences": 4}, subword={"vocab_size": 140}
    )
    _, found, _ = prepared(config, tmp_path / "out")
    assert found
    for paragraph in found:
        assert paragraph[0][0].startswith("<bt> ")
        assert not any("<bt>" in source for source, _ in paragraph[1:])


def test_text_that_comes_twice_makes_the_same_paragraph_once(tmp_path: Path) -> None:
    pairs = sentences(60)
    lines = [[*side, "", *side] for side in pairs]
    config = small_corpus(
        tmp_path,
        train=(write_pairs(tmp_path, "a", (lines[0], lines[1])),),
        context={"sentences": 2},
        valid_pairs=1,
        test_pairs=1,
        subword={"vocab_size": 60},
    )
    _, found, alone = prepared(config, tmp_path / "out")
    assert len(alone) == 58
    assert len({str(paragraph) for paragraph in found}) == len(found) > 10


def test_units_of_a_translation_memory_follow_each_other(tmp_path: Path) -> None:
    pairs = list(zip(*sentences(200), strict=True))
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv>'
        f'<tuv xml:lang="de"><seg>{target}</seg></tuv></tu>\n'
        for source, target in pairs
    )
    memory = f'<tmx version="1.4"><header/><body>{units}</body></tmx>'
    write_lines(tmp_path / "a.tmx", [memory])
    config = small_corpus(
        tmp_path, train=({"tmx": "a.tmx"},), context={"sentences": 4}, subword={"vocab_size": 100}
    )
    _, found, _ = prepared(config, tmp_path / "out")
    assert found
    for paragraph in found:
        first = pairs.index(paragraph[0])
        assert pairs[first : first + len(paragraph)] == paragraph


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_dev_set_is_not_called_shuffled(split: str, tmp_path: Path) -> None:
    entry = {"source": "a.en", "target": "a.de", "shuffled": True}
    with pytest.raises(dragoman.ConfigError, match="shuffled belongs to"):
        dragoman.load_recipe(
            {"corpus": {"train": [{"source": "a.en", "target": "a.de"}], split: [entry]}}
        )


@pytest.mark.parametrize("shuffled", [True, False])
def test_text_without_neighbours_is_warned_of(shuffled: bool, tmp_path: Path) -> None:
    entry = write_pairs(tmp_path, "a", sentences(100)).model_copy(update={"shuffled": shuffled})
    config = small_corpus(tmp_path, train=(entry,), context={"sentences": 4})
    with EventWriter(tmp_path / "events") as events:
        prepare(config, tmp_path / "out", workers=1, events=events)
    warned = [one.payload for one in read_events(events.path) if one.kind == "alert"]
    assert ["corpus.context.sentences" in one["cause"] for one in warned] == [True] * shuffled
