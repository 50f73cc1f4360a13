"""Which corpora are chosen, and what is said of the others."""

from __future__ import annotations

import pytest

from dragoman.base.errors import ConfigError
from dragoman.builds.corpora import (
    Corpus,
    CorpusLimits,
    by_budget,
    by_hand,
    monolingual,
    sized,
)
from dragoman.corpus.catalogue import Listing
from mirror import add_three_corpora, corpus_mirror

ROOMY = CorpusLimits(60.0, pairs=10_000_000, most_pairs=10_000_000, most_bytes=10**9)


def corpus(did: str, pairs: int | None, megabytes: float | None = 1.0, ext: str = "zip") -> Corpus:
    listing = Listing(did=did, url=(f"https://example.org/{did}",), ext=ext)
    num_bytes = None if megabytes is None else round(megabytes * 1e6)
    return Corpus(listing, num_bytes, pairs)


def chosen(found: list[Corpus]) -> dict[str, str]:
    return {one.listing.did: one.use for one in found if one.use}


def why(found: list[Corpus], did: str) -> str:
    return next(one.why for one in found if one.listing.did == did)


def of_budget(corpora: list[Corpus], limits: CorpusLimits = ROOMY) -> list[Corpus]:
    return by_budget(corpora, limits, pair=("en", "de"))


def test_human_translations_are_chosen_before_mined_ones() -> None:
    corpora = [
        corpus("OPUS-ccmatrix-v1-deu-eng", 900_000),
        corpus("Statmt-europarl-10-deu-eng", 800_000),
        corpus("Tilde-ecb-2017-deu-eng", 400_000),
        corpus("OPUS-wikimatrix-v1-deu-eng", 700_000),
    ]
    few = CorpusLimits(60.0, pairs=1_000_000, most_pairs=10_000_000, most_bytes=10**9)
    found = of_budget(corpora, few)
    assert list(chosen(found)) == ["Statmt-europarl-10-deu-eng", "Tilde-ecb-2017-deu-eng"]
    assert "not needed: 1M pairs are seen once" in why(found, "OPUS-ccmatrix-v1-deu-eng")
    many = CorpusLimits(60.0, pairs=2_000_000, most_pairs=10_000_000, most_bytes=10**9)
    found = of_budget(corpora, many)
    assert "OPUS-ccmatrix-v1-deu-eng" in chosen(found)
    assert "OPUS-wikimatrix-v1-deu-eng" not in chosen(found)
    assert [one.listing.did for one in found] == [one.listing.did for one in corpora]


def test_the_newest_version_of_known_size_is_chosen() -> None:
    found = of_budget(
        [
            corpus("Statmt-europarl-9-deu-eng", 800_000),
            corpus("Statmt-europarl-10-deu-eng", None, None),
            corpus("OPUS-europarl-v8-deu-eng", 900_000),
            corpus("Statmt-news_commentary_wmt18-13-deu-eng", 200_000),
            corpus("Statmt-news_commentary-18.1-deu-eng", 300_000),
        ]
    )
    assert set(chosen(found)) == {
        "Statmt-europarl-9-deu-eng",
        "Statmt-news_commentary-18.1-deu-eng",
    }
    newer = why(found, "Statmt-news_commentary_wmt18-13-deu-eng")
    assert newer == "another version is newer: Statmt-news_commentary-18.1-deu-eng"


def test_corpora_that_do_not_fit_are_left_out_with_a_reason() -> None:
    limits = CorpusLimits(60.0, pairs=1_000_000, most_pairs=500_000, most_bytes=30_000_000)
    found = of_budget(
        [
            corpus("A-large-1-deu-eng", 400_000, 40),
            corpus("A-long-1-deu-eng", 600_000, 10),
            corpus("A-small-1-deu-eng", 300_000, 10),
            corpus("A-unknown-1-deu-eng", None, None),
            corpus("A-hub-1-deu-eng", None, None, ext="hfds"),
        ],
        limits,
    )
    assert set(chosen(found)) == {"A-small-1-deu-eng"}
    assert why(found, "A-large-1-deu-eng") == "more than the 30 MB that can be fetched in the time"
    assert "more than the 500k pairs" in why(found, "A-long-1-deu-eng")
    assert why(found, "A-unknown-1-deu-eng") == "its size is not known"
    assert why(found, "A-hub-1-deu-eng").startswith("lies on Hugging Face")


def test_dev_and_test_sets_are_new_of_our_direction_and_of_two_years() -> None:
    tests = [
        corpus(f"Statmt-newstest_{direction}-{year}-eng-deu", 3000)
        for direction in ("ende", "deen")
        for year in (2018, 2019)
    ]
    train = corpus("Statmt-europarl-10-deu-eng", 800_000)
    others = [
        corpus("Statmt-newstest-2013-eng-deu", 3000),
        corpus("Lindat-khresmoi_summary_dev-2-deu-eng", 500),
    ]
    found = of_budget([train, *tests, *others])
    assert chosen(found) == {
        "Statmt-europarl-10-deu-eng": "train",
        "Statmt-newstest_ende-2019-eng-deu": "test",
        "Statmt-newstest_ende-2018-eng-deu": "valid",
    }
    references = [
        corpus("Statmt-generaltest-2022_refA-eng-deu", 2000),
        corpus("Statmt-generaltest-2022_refB-eng-deu", 2000),
        corpus("Flores-flores200_dev-1-eng-deu", 997),
    ]
    found = of_budget([train, *references])
    assert "Flores-flores200_dev-1-eng-deu" in chosen(found)
    assert sum(use == "test" for use in chosen(found).values()) == 1
    # A set of the same sentences with other references is no dev set.
    found = of_budget([train, *references[:2]])
    assert list(chosen(found).values()).count("valid") == 0


def test_corpora_chosen_by_hand_are_split_by_their_names() -> None:
    corpora = [
        corpus("OPUS-opus100_train-1-deu-eng", 1_000_000),
        corpus("OPUS-opus100_dev-1-deu-eng", 2000),
        corpus("OPUS-opus100_test-1-deu-eng", 2000),
    ]
    found = by_hand(corpora, [one.listing.did for one in corpora])
    assert list(chosen(found).values()) == ["train", "valid", "test"]
    with pytest.raises(ConfigError, match="choose: none of these corpora is training text"):
        by_hand(corpora, [corpora[1].did])


def test_the_smallest_sufficient_monolingual_text_is_chosen() -> None:
    corpora = [
        corpus("Leipzig-a-1_10k-deu", 10_000),
        corpus("Leipzig-a-1_100k-deu", 100_000),
        corpus("Statmt-news_crawl-2023-deu", 10_000_000, 900),
    ]
    enough = monolingual(corpora, lines=30_000, most_bytes=10**7)
    assert enough is not None
    assert (enough.listing.did, enough.use) == ("Leipzig-a-1_100k-deu", "mono")
    largest = monolingual(corpora, lines=900_000, most_bytes=10**7)
    assert largest is not None
    assert largest.listing.did == "Leipzig-a-1_100k-deu"
    assert monolingual(corpora, lines=1, most_bytes=10) is None


def test_servers_are_asked_for_sizes_that_the_index_does_not_state() -> None:
    with corpus_mirror() as mirror:
        ids = add_three_corpora(mirror, 100)
        mirror.add("Local-gone-1-eng-deu", "/gone.tmx", b"x", ext="tmx")
        mirror.add("Local-said-1-eng-deu", "/said", b"x", ext="tmx", meta={"bytes": 7, "pairs": 5})
        del mirror.files["/gone.tmx"]
        listings = [Listing.model_validate(one) for one in mirror.entries]
        found = {one.listing.did: one for one in sized(listings, at_most_s=30)}
    assert found[ids[0]].num_bytes == len(mirror.files["/help.tsv.gz"])
    assert found[ids[0]].is_guess
    assert 20 < (found[ids[0]].pairs or 0) < 500
    assert found["Local-gone-1-eng-deu"].num_bytes is None
    assert (found["Local-said-1-eng-deu"].num_bytes, found["Local-said-1-eng-deu"].pairs) == (7, 5)
    assert not mirror.gets
