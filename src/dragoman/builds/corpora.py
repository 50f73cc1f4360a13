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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError
from dragoman.base.files import write_whole
from dragoman.base.printable import printable_line
from dragoman.corpus.catalogue import Listing
from dragoman.corpus.download import stated_bytes
from dragoman.run.budget_plan import rounded_up
from dragoman.run.sizes import PAIR_BYTES

Use = Literal["train", "valid", "test", "mono"]
Decision = tuple[Use | None, str]
"""The use of a corpus, None if it is left out; and the reason."""
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

    @property
    def did(self) -> str:
        """Its id."""
        return self.listing.did

    @property
    def size_text(self) -> str:
        """The size of its download; "" if it is not known."""
        return "" if self.num_bytes is None else units.SIZE.text(self.num_bytes)

    @property
    def pairs_text(self) -> str:
        """Its number of pairs; "" if it is not known."""
        if self.pairs is None:
            return ""
        return ("about " if self.is_guess else "") + units.SHORT_COUNT.text(self.pairs)


@dataclass(frozen=True, slots=True)
class CorpusLimits:
    """The amounts of text that a budget has time for. pairs: seen once in training; most_pairs:
    cleaned; most_bytes: fetched."""

    budget_s: float
    pairs: int
    most_pairs: int
    most_bytes: int


def sized(listings: Sequence[Listing], *, at_most_s: float) -> list[Corpus]:
    """The corpora with the sizes that the index states, or else those that their servers state.

    at_most_s: how long to wait for the servers; a size that comes later is not known.
    """
    unknown = {
        url
        for one in listings
        if one.number("bytes") is None and not one.not_read
        for url in one.url
    }
    pool = ThreadPoolExecutor(_AT_ONCE)
    asked = {url: pool.submit(stated_bytes, url) for url in sorted(unknown)}
    wait(asked.values(), timeout=at_most_s)
    pool.shutdown(wait=False, cancel_futures=True)
    stated = {
        url: future.result()
        for url, future in asked.items()
        if future.done() and not future.cancelled()
    }
    return [_sized(one, stated) for one in listings]


def _sized(listing: Listing, stated: Mapping[str, int | None]) -> Corpus:
    num_bytes = listing.number("bytes")
    if num_bytes is None:
        known = [size for url in listing.url if (size := stated.get(url)) is not None]
        num_bytes = sum(known) if len(known) == len(listing.url) else None
    pairs = listing.number("pairs")
    if pairs is not None or num_bytes is None:
        return Corpus(listing, num_bytes, pairs, is_guess=False)
    is_packed = listing.ext not in ("txt", "tsv", "tmx")
    text_bytes = num_bytes * (_UNPACKED if is_packed else 1)
    return Corpus(listing, num_bytes, max(1, round(text_bytes / PAIR_BYTES)))


def by_hand(corpora: Sequence[Corpus], ids: Sequence[str]) -> list[Corpus]:
    """All corpora, with a use for those chosen by id: a corpus is a dev or test set if its name
    says so, otherwise training text. Raises ConfigError if none is training text."""
    chosen = {one.did: _use_of(one) for one in corpora if one.did in ids}
    if "train" not in chosen.values():
        raise ConfigError(
            "none of these corpora is training text", place="choose", remedy="add one that is"
        )
    return [
        replace(one, use=chosen[one.did], why="chosen by hand")
        if one.did in chosen
        else replace(one, why="not chosen")
        for one in corpora
    ]


def by_budget(
    corpora: Sequence[Corpus], limits: CorpusLimits, *, pair: tuple[str, str]
) -> list[Corpus]:
    """All corpora, each with a reason and, if it is chosen, a use, by the rules of this module.

    Raises ConfigError if none fits, with the least budget for one.
    """
    held_out = [one for one in corpora if _use_of(one) != "train"]
    text = [one for one in corpora if _use_of(one) == "train"]
    newest: dict[str, Corpus] = {}
    for one in sorted(text, key=_age, reverse=True):
        newest.setdefault(_family(one), one)
    decided: dict[str, Decision] = {
        one.did: (None, f"another version is newer: {newest[_family(one)].did}") for one in text
    }
    decided |= {one.did: (None, "a dev or test set, which is not needed") for one in held_out}
    decided |= _dev_and_test(held_out, limits, pair)
    held_out_bytes = sum(one.num_bytes or 0 for one in held_out if decided[one.did][0])
    decided |= _training_text([*newest.values()], limits, pair, gone_bytes=held_out_bytes)
    return [replace(one, use=decided[one.did][0], why=decided[one.did][1]) for one in corpora]


def _use_of(one: Corpus) -> Use:
    """The use that its name tells."""
    if not _HELD_OUT.search(one.listing.name):
        return "train"
    return "valid" if _DEV.search(one.listing.name) else "test"


def _training_text(
    corpora: Sequence[Corpus], limits: CorpusLimits, pair: tuple[str, str], *, gone_bytes: int
) -> dict[str, Decision]:
    """The best corpora that have enough text, and why the others are left out, by their ids.

    gone_bytes: those that dev and test set take.
    """

    def worth(one: Corpus) -> tuple[bool, int, str]:
        return bool(_MINED.search(one.listing.name)), -(one.pairs or 0), one.did

    decided: dict[str, Decision] = {}
    pairs, num_bytes = 0, gone_bytes
    too_large: dict[float, Corpus] = {}
    for one in sorted(corpora, key=worth):
        if one.listing.not_read:
            decided[one.did] = None, one.listing.not_read
        elif one.num_bytes is None or one.pairs is None:
            decided[one.did] = None, "its size is not known"
        elif pairs >= limits.pairs:
            enough = units.SHORT_COUNT.text(limits.pairs)
            decided[one.did] = None, f"not needed: {enough} pairs are seen once in the time"
        elif num_bytes + one.num_bytes > limits.most_bytes or pairs + one.pairs > limits.most_pairs:
            # A dev and a test set, fetched in the same time, may be larger in a larger budget.
            share = (2 * gone_bytes + one.num_bytes) / limits.most_bytes
            too_large[max(share, one.pairs / limits.most_pairs)] = one
            most = f"{units.SIZE.text(limits.most_bytes)} that can be fetched in the time"
            if num_bytes + one.num_bytes <= limits.most_bytes:
                most = f"{units.SHORT_COUNT.text(limits.most_pairs)} pairs that are cleaned in time"
            decided[one.did] = None, f"more than the {most}"
        else:
            pairs += one.pairs
            num_bytes += one.num_bytes
            mined = _MINED.search(one.listing.name)
            why = "mined, but there is too little other text" if mined else "not known as mined"
            decided[one.did] = "train", why
    if not pairs:
        raise _nothing_fits(too_large, limits, pair)
    return decided


def _nothing_fits(
    too_large: Mapping[float, Corpus], limits: CorpusLimits, pair: tuple[str, str]
) -> ConfigError:
    """The error if no corpus can be used. too_large: each by its multiple of the budget."""
    if not too_large:
        source_target = "-".join(pair)
        return ConfigError(
            "no corpus of this pair is training text that can be read here and whose size is known",
            place=source_target,
            remedy=f"list them: dragoman build {source_target} --list; or run a recipe with your "
            "own text and a budget",
        )
    least = min(too_large)
    return ConfigError(
        f"no corpus fits: {units.SIZE.text(limits.most_bytes)} can be fetched and "
        f"{units.SHORT_COUNT.text(limits.most_pairs)} pairs cleaned in the time, and the smallest, "
        f"{too_large[least].did}, has {too_large[least].size_text} and "
        f"{units.SHORT_COUNT.text(too_large[least].pairs or 0)} pairs",
        place=f"budget {units.DURATION.text(limits.budget_s)}",
        remedy=f"give at least {units.DURATION.text(rounded_up(least * limits.budget_s))}, or "
        "choose by hand",
    )


def _dev_and_test(
    held_out: Sequence[Corpus], limits: CorpusLimits, pair: tuple[str, str]
) -> dict[str, Decision]:
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
    usable.sort(key=lambda one: (f"{source}{target}" in one.listing.name, _version(one)))
    decided: dict[str, Decision] = {}
    same: list[Corpus] = []
    if tests := [one for one in usable if _use_of(one) == "test"]:
        test = tests[-1]
        decided[test.did] = "test", "the newest test set"
        usable = [one for one in usable if not _is_alike(one, test)]
        same = [one for one in usable if one.listing.name == test.listing.name]
    # Dev and test sets of the same kind of text rank models alike.
    if devs := same or [one for one in usable if _use_of(one) == "valid"] or usable:
        decided[devs[-1].did] = "valid", "the test set of another year" if same else "a dev set"
    return decided


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
    usable.sort(key=lambda one: (one.pairs or 0, one.did))
    for one in usable:
        if (one.pairs or 0) >= lines:
            why = "the smallest that has as many lines as there are pairs"
            return replace(one, use="mono", why=why)
    return replace(usable[-1], use="mono", why="the largest") if usable else None


def save_corpora(corpora: Sequence[Corpus], directory: Path) -> None:
    """Write `corpora.tsv`: all corpora, each with its use and the reason."""
    lines = ["id\tuse\tbytes\tpairs\tlicence\turl\twhy"]
    for one in corpora:
        cells = (
            *(one.did, one.use or "", one.num_bytes or "", one.pairs or ""),
            *(one.listing.licence, " ".join(one.listing.url), one.why),
        )
        # Some of it was written by strangers: see `printable_line`.
        lines.append("\t".join(printable_line(" ".join(str(cell).split())) for cell in cells))
    with disk_errors_named(directory):
        write_whole(directory / "corpora.tsv", "\n".join(lines) + "\n")


def _family(one: Corpus) -> str:
    """The name that all versions of a corpus share, whoever offers them."""
    return re.sub(r"_wmt\d+$", "", one.listing.name)


def _age(one: Corpus) -> tuple[bool, tuple[int, ...]]:
    """Sorts versions; those of unknown size count only if all are."""
    return one.num_bytes is not None, _version(one)


def _version(one: Corpus) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d{1,9}", one.listing.version)))


def _is_alike(one: Corpus, other: Corpus) -> bool:
    """Whether two sets have a year in common, or are one set under two names."""
    listings = one.listing, other.listing
    years, other_years = (
        set(re.findall(r"\d{4}", f"{listing.name} {listing.version}")) for listing in listings
    )
    name, other_name = (re.sub(r"\d+", "", listing.name) for listing in listings)
    return bool(years & other_years) or (name, _version(one)) == (other_name, _version(other))
