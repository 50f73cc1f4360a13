"""Which corpora of the catalogue are worth their time.

How much: as many pairs as the training sees once. Text that is not seen gains nothing, and text
that is seen up to four times teaches about as if it were new (Muennighoff et al. 2023), so a guess
of the speed that is four times too low or too high does little harm.

Which: text that people have translated before text that was mined from the web, where many pairs
are not translations (Kreutzer et al. 2022); the larger before the smaller, as each fetch costs; of
several versions the newest. A corpus is left out if the share of `fetch` or of `clean` is too small
for it, or if its size is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Final, Literal

from dragoman.base import units
from dragoman.base.errors import ConfigError
from dragoman.corpus.catalogue import Listing
from dragoman.corpus.download import stated_bytes
from dragoman.run.sizes import PAIR_BYTES

Use = Literal["train", "valid", "test", "mono"]
_UNPACKED: Final = 3.5
"""Bytes of text per byte of an archive."""
_MINED: Final = re.compile(
    r"ccaligned|ccmatrix|commoncrawl|paracrawl|wikimatrix|nllb|xlent|wiki_?titles|hplt|macocu"
)
"""Matches names of corpora that were mined from the web or are lists of names."""
_HELD_OUT: Final = re.compile(
    r"news_?test|generaltest|newsdev|ntrex|wmt_news|flores|(^|_)(dev|test|devtest|valid|tst)(_|$)"
)
"""Matches names of dev and test sets, which are never trained on."""
_DEV: Final = re.compile(r"(^|_)(dev|newsdev|valid)(_|$)")
_AT_ONCE: Final = 16
"""The number of threads that ask servers for sizes."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A corpus of the catalogue.

    num_bytes: the size of its download. pairs: its number of pairs, a guess from the bytes if
        is_guess; of monolingual text, lines. None: not known.
    use: its purpose in the build; None if it is left out. why: the reason for either.
    """

    listing: Listing
    num_bytes: int | None
    pairs: int | None
    is_guess: bool = True
    use: Use | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class CorpusLimits:
    """The amounts of text that a budget has time for. pairs: seen once in training; most_pairs:
    cleaned; most_bytes: fetched."""

    pairs: int
    most_pairs: int
    most_bytes: int


def sized(listings: Sequence[Listing], *, at_most_s: float) -> list[Corpus]:
    """The corpora with the sizes that the index states, or else those that their servers state.

    at_most_s: how long to wait for the servers; a size that comes later is not known.
    """
    unknown = dict.fromkeys(
        url
        for one in listings
        if one.number("bytes") is None and not one.not_read
        for url in one.url
    )
    stated: dict[str, int | None] = {}
    pool = ThreadPoolExecutor(_AT_ONCE)
    asked = {pool.submit(stated_bytes, url): url for url in unknown}
    wait(asked, timeout=at_most_s)
    pool.shutdown(wait=False, cancel_futures=True)
    for future, url in asked.items():
        if future.done() and not future.cancelled():
            stated[url] = future.result()
    return [_sized(one, stated) for one in listings]


def _sized(listing: Listing, stated: Mapping[str, int | None]) -> Corpus:
    num_bytes = listing.number("bytes")
    if num_bytes is None:
        sizes = [stated.get(url) for url in listing.url]
        known = [size for size in sizes if size is not None]
        num_bytes = sum(known) if len(known) == len(sizes) else None
    pairs = listing.number("pairs")
    if pairs is not None or num_bytes is None:
        return Corpus(listing, num_bytes, pairs, is_guess=False)
    is_packed = listing.ext not in ("txt", "tsv", "tmx")
    text_bytes = num_bytes * (_UNPACKED if is_packed else 1)
    return Corpus(listing, num_bytes, max(1, round(text_bytes / PAIR_BYTES)))


def by_budget(
    corpora: Sequence[Corpus], limits: CorpusLimits, *, pair: tuple[str, str]
) -> list[Corpus]:
    """All corpora, each with a reason and, if it is chosen, a use, by the rules of this module."""
    held_out = [one for one in corpora if _HELD_OUT.search(one.listing.name)]
    chosen = _dev_and_test(held_out, limits, pair)
    newest = _newest([one for one in corpora if one not in held_out])
    left = CorpusLimits(
        limits.pairs,
        limits.most_pairs,
        limits.most_bytes - sum(one.num_bytes or 0 for one in chosen.values()),
    )
    chosen |= _training_text(sorted(newest.values(), key=_worth), left)
    result = []
    for one in corpora:
        did = one.listing.did
        if did in chosen:
            result.append(chosen[did])
        elif one in held_out:
            result.append(replace(one, why="a dev or test set, which is not needed"))
        else:
            better = newest[_family(one.listing)].listing.did
            result.append(replace(one, why=f"another version is newer: {better}"))
    return result


def check_chosen(listings: Iterable[Listing], ids: Sequence[str]) -> None:
    """Raise ConfigError for an id that is not in the index."""
    known = {one.did for one in listings}
    for did in ids:
        if did not in known:
            raise ConfigError(
                "is not a corpus of these languages in the index",
                place=f"choose {did}",
                remedy="list them: dragoman build PAIR --list",
            )


def by_hand(corpora: Sequence[Corpus], ids: Sequence[str]) -> list[Corpus]:
    """All corpora, with a use for those chosen by id: a corpus is a dev or test set if its name
    says so, otherwise training text."""
    return [
        replace(one, use=_use_of(one.listing), why="chosen by hand")
        if one.listing.did in ids
        else replace(one, why="not chosen")
        for one in corpora
    ]


def possible_training_text(corpora: Iterable[Corpus]) -> list[Corpus]:
    """The corpora that `by_budget` chooses from for training, if the budget is large enough."""
    newest = _newest(one for one in corpora if not _HELD_OUT.search(one.listing.name)).values()
    return [
        one
        for one in newest
        if not one.listing.not_read and one.num_bytes is not None and one.pairs is not None
    ]


def _use_of(listing: Listing) -> Use:
    if not _HELD_OUT.search(listing.name):
        return "train"
    return "valid" if _DEV.search(listing.name) else "test"


def _training_text(ranked: Iterable[Corpus], limits: CorpusLimits) -> dict[str, Corpus]:
    """All ranked corpora by id, with reasons; the first that have enough text get a use."""
    found: dict[str, Corpus] = {}
    pairs = num_bytes = 0
    for one in ranked:
        did = one.listing.did
        if one.listing.not_read:
            found[did] = replace(one, why=one.listing.not_read)
        elif one.num_bytes is None or one.pairs is None:
            found[did] = replace(one, why="its size is not known")
        elif pairs >= limits.pairs:
            enough = units.SHORT_COUNT.text(limits.pairs)
            found[did] = replace(one, why=f"not needed: {enough} pairs are seen once in the time")
        elif num_bytes + one.num_bytes > limits.most_bytes:
            most = units.SIZE.text(limits.most_bytes)
            found[did] = replace(one, why=f"more than the {most} that can be fetched in the time")
        elif pairs + one.pairs > limits.most_pairs:
            most = units.SHORT_COUNT.text(limits.most_pairs)
            found[did] = replace(one, why=f"more than the {most} pairs that are cleaned in time")
        else:
            pairs += one.pairs
            num_bytes += one.num_bytes
            mined = _MINED.search(one.listing.name)
            why = "mined, but there is too little other text" if mined else "not known as mined"
            found[did] = replace(one, use="train", why=why)
    return found


def _dev_and_test(
    held_out: Sequence[Corpus], limits: CorpusLimits, pair: tuple[str, str]
) -> dict[str, Corpus]:
    """The newest test set and a dev set of another year, by id; if there are any that fit."""
    source, target = pair
    usable = [
        one
        for one in held_out
        if not one.listing.not_read
        and one.num_bytes is not None
        and one.num_bytes <= limits.most_bytes // 4
        and f"{target}{source}" not in one.listing.name  # made by translating the other way
    ]
    usable.sort(key=lambda one: (f"{source}{target}" in one.listing.name, _number(one)))
    found: dict[str, Corpus] = {}
    tests = [one for one in usable if _use_of(one.listing) == "test"]
    same: list[Corpus] = []
    if tests:
        test = tests[-1]
        found[test.listing.did] = replace(test, use="test", why="the newest test set")
        usable = [one for one in usable if not _is_alike(one, test)]
        same = [one for one in usable if one.listing.name == test.listing.name]
    # Dev and test sets of the same kind of text rank models alike.
    devs = same or [one for one in usable if _use_of(one.listing) == "valid"] or usable
    if devs:
        why = "the test set of another year" if same else "a dev set"
        found[devs[-1].listing.did] = replace(devs[-1], use="valid", why=why)
    return found


def monolingual(corpora: Sequence[Corpus], *, lines: int, most_bytes: int) -> Corpus | None:
    """The smallest corpus of one language with enough lines, or else the largest; None if none is
    small enough to fetch."""
    usable = [
        replace(one, pairs=2 * one.pairs if one.is_guess else one.pairs)
        for one in corpora
        if one.num_bytes is not None
        and one.num_bytes <= most_bytes
        and one.pairs is not None
        and not one.listing.not_read
    ]
    usable.sort(key=lambda one: (one.pairs or 0, one.listing.did))
    enough = [one for one in usable if (one.pairs or 0) >= lines]
    found = enough[0] if enough else usable[-1] if usable else None
    why = "the smallest that has as many lines as there are pairs" if enough else "the largest"
    return None if found is None else replace(found, use="mono", why=why)


def _worth(one: Corpus) -> tuple[bool, int, str]:
    """The sort key of a corpus: the best comes first."""
    return bool(_MINED.search(one.listing.name)), -(one.pairs or 0), one.listing.did


def _newest(corpora: Iterable[Corpus]) -> dict[str, Corpus]:
    """The newest version of each family; versions of unknown size count only if all are."""
    found: dict[str, Corpus] = {}
    for one in corpora:
        family = _family(one.listing)
        best = found.get(family)
        if best is None or _age(one) > _age(best):
            found[family] = one
    return found


def _family(listing: Listing) -> str:
    """The name that all versions of a corpus share, whoever offers them."""
    return re.sub(r"_wmt\d+$", "", listing.name)


def _age(one: Corpus) -> tuple[bool, tuple[int, ...]]:
    return one.num_bytes is not None, _number(one)


def _number(one: Corpus) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,9}", one.listing.version)))


def _is_alike(one: Corpus, other: Corpus) -> bool:
    """Whether two sets have a year in common, or are one set under two names."""
    name, known = (re.sub(r"\d+", "", x.listing.name) for x in (one, other))
    years = [
        set(re.findall(r"\d{4}", f"{x.listing.name} {x.listing.version}")) for x in (one, other)
    ]
    return bool(years[0] & years[1]) or (name == known and _number(one) == _number(other))
