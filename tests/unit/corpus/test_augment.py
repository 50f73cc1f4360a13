"""Changed copies of training pairs: each change alone, and all of them in a prepared corpus."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dragoman.base.errors import DragomanError
from dragoman.corpus.augment import KINDS, AugmentConfig, Copies, Pair
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.directions import Direction
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import TokenShards
from dragoman.corpus.subword import Subword
from parallel_text import sentences, small_corpus, write_pairs

EN_DE = Direction("en", "de")
PAIR = ("A man is eating a big red apple.", "Ein Mann isst einen großen roten Apfel.")
HINDI = ("एक आदमी लाल सेब खा रहा है।", "A man is eating a red apple.")


def changed(name: str, pair: Pair = PAIR, direction: Direction = EN_DE) -> list[Pair]:
    copies = [KINDS[name](pair, direction, Random(seed)) for seed in range(200)]
    return [copy for copy in copies if copy is not None]


def test_capitals_are_those_of_the_language() -> None:
    assert set(changed("upper_case")) == {
        ("A MAN IS EATING A BIG RED APPLE.", "EIN MANN ISST EINEN GROSSEN ROTEN APFEL.")
    }
    turkish = changed("upper_case", ("It is red.", "Bu kırmızı bir ışık."), Direction("en", "tr"))
    assert turkish[0] == ("IT IS RED.", "BU KIRMIZI BİR IŞIK.")
    assert changed("title_case")[0] == (
        "A Man Is Eating A Big Red Apple.",
        "Ein Mann Isst Einen Großen Roten Apfel.",
    )


@pytest.mark.parametrize("name", ["upper_case", "title_case"])
def test_a_script_without_capitals_has_no_copies_in_capitals(name: str) -> None:
    assert not changed(name, HINDI, Direction("hi", "en"))


def test_typos_are_few_and_in_the_source_alone() -> None:
    copies = changed("typos")
    assert len({source for source, _ in copies}) > 20
    for source, target in copies:
        assert target == PAIR[1]
        assert source != PAIR[0]
        assert abs(len(source) - len(PAIR[0])) <= 2
        assert len(Counter(PAIR[0]) - Counter(source)) <= 2
    assert not changed("typos", ("12 = 3", "12 = 3"))


def test_final_punctuation_is_changed_alike_on_both_sides() -> None:
    ends = {
        tuple(re.findall(r"\W*$", side)[0] for side in pair)
        for pair in changed("final_punctuation")
    }
    assert ends == {("", ""), ("..", ".."), ("...", "...")}
    assert changed("final_punctuation", HINDI)
    assert not changed("final_punctuation", ("A man", "Ein Mann."))


def test_what_is_kept_stands_on_both_sides_in_the_same_place() -> None:
    places = set()
    for source, target in changed("kept"):
        before, after = source.split(PAIR[0])
        assert target == f"{before}{PAIR[1]}{after}"
        assert not any(map(str.isalpha, before + after)), "an address would be learnt by heart"
        places.add(bool(before))
    assert places == {True, False}


def test_the_share_of_the_pairs_gets_copies_whatever_the_other_shares() -> None:
    keys = np.random.default_rng(1).integers(0, 2**64, 20_000, dtype=np.uint64)
    pairs, directions = [PAIR] * len(keys), [EN_DE] * len(keys)
    alone = Copies(AugmentConfig(typos=0.1), pairs, directions, keys)
    assert len(alone.rows) == pytest.approx(2_000, rel=0.1)
    both = Copies(AugmentConfig(typos=0.1, kept=0.5), pairs, directions, keys)
    rows = {
        name: {row for row, kind in zip(both.rows, both.kinds, strict=True) if kind == name}
        for name in ("typos", "kept")
    }
    assert rows["typos"] == set(alone.rows)
    assert len(rows["typos"] & rows["kept"]) == pytest.approx(1_000, rel=0.2), "independent"


def test_a_share_above_one_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises((ValueError, DragomanError), match="typos"):
        small_corpus(tmp_path, augment={"typos": 1.5})


@pytest.mark.system
@pytest.mark.parametrize("workers", [1, 2])
def test_a_prepared_corpus_has_the_pairs_and_their_copies(tmp_path: Path, workers: int) -> None:
    plain = prepare(small_corpus(tmp_path), tmp_path / "plain", workers=1)
    config = small_corpus(
        tmp_path, augment={"upper_case": 0.2, "copied": 0.1}, subword={"vocab_size": 130}
    )
    manifest = prepare(config, tmp_path / f"augmented-{workers}", workers=workers)
    train = manifest.train
    assert train.kept == plain.train.pairs
    assert set(train.copies) == {"upper_case", "copied"}
    assert train.pairs == train.kept + sum(train.copies.values())
    assert sum(train.copies.values()) == pytest.approx(0.3 * train.kept, rel=0.4)
    shards = TokenShards(tmp_path / f"augmented-{workers}" / "train")
    subword = Subword.load(tmp_path / f"augmented-{workers}" / "source.model")
    rows = range(shards.num_pairs)
    sources = subword.decode([shards.source(row).tolist() for row in rows])
    targets = subword.decode([shards.target(row).tolist() for row in rows])
    assert sum(map(str.isupper, targets)) == train.copies["upper_case"]
    assert (
        sum(one == other for one, other in zip(sources, targets, strict=True))
        == (train.copies["copied"])
    )
    places = [row for row, target in enumerate(targets) if target.isupper()]
    assert max(places) - min(places) > shards.num_pairs / 2, "they are spread over the text"
    for split in ("valid", "test"):
        folders = (tmp_path / "plain", tmp_path / f"augmented-{workers}")
        kept = [folder / split / "target.txt" for folder in folders]
        assert kept[0].read_bytes() == kept[1].read_bytes()


def test_copies_of_a_tagged_text_of_two_languages_keep_token_and_tag(tmp_path: Path) -> None:
    entries = {
        code: write_pairs(tmp_path, code, sentences(300, seed=seed))
        for seed, code in enumerate(("de", "fr"))
    }
    train = [
        {**entry.model_dump(exclude_defaults=True), "target_language": code, "tag": tag}
        for (code, entry), tag in zip(entries.items(), ("", "<bt>"), strict=True)
    ]
    config = CorpusConfig.model_validate(
        {
            "folder": str(tmp_path),
            "source_language": "en",
            "target_language": "de",
            "train": train,
            "valid_pairs": 5,
            "check_languages": False,
            "subword": {"vocab_size": 140},
            "augment": {"copied": 0.3},
        }
    )
    manifest = prepare(config, tmp_path / "out", workers=1)
    shards = TokenShards(tmp_path / "out/train")
    subword = Subword.load(tmp_path / "out/source.model")
    assert manifest.train.copies["copied"] > 50
    sources = [shards.source(row).tolist() for row in range(shards.num_pairs)]
    assert {source[0] for source in sources} == set(subword.tokens.values())
    tagged = [text.count("<bt>") for text in subword.decode(sources)]
    assert tagged == shards.entries().tolist(), "0 for text without a tag, 1 for the other"
