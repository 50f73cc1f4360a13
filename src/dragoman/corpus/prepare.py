"""Text files -> a prepared corpus: the stages in order.

0 identify  the languages of some lines, which must be those of the recipe
1 read      dev and test sets, whole
2 clean     training text: normalise, filter, sort into runs by a seeded hash; merge the runs
3 hold out  dev and test pairs, if none were given
4 learn     subword models, from a sample
5 relate    which pieces translate each other, from a sample, if a filter or copies ask for it
6 encode    drop duplicates and overlaps, add changed copies and paragraphs; text to ids, in the
            order of the hash
7 write     shards, rejected pairs and manifest; publish

Every stage leaves whole files behind, so a preparation that was killed continues where it stopped.
A worker opens what it needs from the workplace (`CleanedText`), so nothing large is sent to it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.base import units
from dragoman.base.disk_errors import disk_errors_named
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.files import file_sha256, write_whole
from dragoman.base.languages import in_other_script
from dragoman.corpus.clean import (
    REJECTED,
    BlockCleaner,
    BlockReport,
    join_rejected,
    pack_rejected,
    read_reports,
    refuse_malformed,
)
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.context import CONTEXT, PARAGRAPHS
from dragoman.corpus.directions import Direction, listed, tempered
from dragoman.corpus.encode import (
    CleanedText,
    Counted,
    PartReport,
    count_side,
    read_entries,
    read_rows,
)
from dragoman.corpus.filters import OTHER_SCRIPT, check_filters, key_of
from dragoman.corpus.identify import (
    SeenInText,
    languages_seen_in_words,
    refuse_wrong_languages,
)
from dragoman.corpus.lexical import (
    ITERATIONS,
    LEAST_PAIRS,
    SAMPLE_PAIRS,
    SAMPLE_RANGE_BYTES,
    Counts,
    LexicalTable,
    OftenMet,
)
from dragoman.corpus.manifest import (
    FILE_NAME,
    FORMAT_VERSION,
    Manifest,
    OutputFile,
    SourceFile,
    SplitFacts,
    StageFacts,
    TextSize,
    digest_files,
)
from dragoman.corpus.pairs import PARALLEL, BlockReader
from dragoman.corpus.runs import MOST_RUNS, HeldOutSides, merge_runs, numbered, run_name
from dragoman.corpus.shards import SIDES, SideSize, id_dtype, write_entries, write_side
from dragoman.corpus.sources import Sources
from dragoman.corpus.split import HELD_OUT_SPLITS, hold_out, read_split, read_text, write_text
from dragoman.corpus.subword import train_on_words
from dragoman.corpus.survey import FILE_NAME as SURVEYS
from dragoman.corpus.survey import join_surveys, write_surveys
from dragoman.corpus.vocabulary import RowEncoder
from dragoman.corpus.workers import Workers, parallel_map
from dragoman.corpus.workplace import Workplace, locked_directory
from dragoman.telemetry.events import (
    Alert,
    CorpusPrepared,
    CorpusStage,
    EventWriter,
)

_MOST = 0.5
"""If a larger share of the training pairs is dropped, it is more likely a mistake than the text."""
_BLAMED = 0.1
"""A filter is named if it dropped at least this share of the training pairs."""
OnProgress = Callable[[str, int, int | None], None]
"""Called with a stage, the pairs done in it so far, and how many there are if that is known."""


def prepare(
    config: CorpusConfig,
    directory: Path,
    *,
    workers: Workers,
    events: EventWriter | None = None,
    progress: OnProgress | None = None,
    vocabulary: tuple[bytes, bytes] | None = None,
) -> Manifest:
    """Make a directory of shards, subword models and a manifest from the text of a recipe.

    workers: what cleans and encodes: so many processes, or the nodes of a cluster, which must see
        the directory under the same path; the result does not depend on them.
    vocabulary: the files of the source and target vocabularies to use; None: they are learnt.
    If the directory already holds the corpus of this section and these files, nothing is done.
    A preparation that was interrupted continues.
    Layout:
        manifest.json  source.model  target.model
        train/  valid/  test/        shards; valid and test also source.txt and target.txt
        rejected/<split>.tsv.zst     dropped pairs and reasons
        rejected/filters.json        the scores that filters gave, with examples
    Raises: ConfigError, CorpusError, MachineError; the directory then is as it was before. If no
    training pair was left, `failed-preparation/` has the dropped pairs and the reasons.
    """
    began = time.monotonic()
    languages = [code for direction in config.directions for code in direction]
    with disk_errors_named(directory), locked_directory(directory):
        sources = Sources(config, downloads=directory / "downloads")
        # A node works in another folder.
        place = Workplace(directory if isinstance(workers, int) else directory.absolute())
        manifest = _whole_manifest(directory)
        if manifest is not None and sources.match(manifest):
            place.discard()
            place.forget_failure()
            return manifest
        check_filters(config.filters, languages=languages)
        place.begin(sources.work_digest(vocabulary))
        if not isinstance(workers, int):
            workers = replace(workers, shared=place.plan)
        if not place.is_publishing():
            try:
                _Preparation(config, sources, place, workers, events, progress).run(vocabulary)
            except (ConfigError, CorpusError):
                place.discard()  # another text or other settings need other work
                raise
        place.publish()
        manifest = Manifest.load(directory)
        if events is not None:
            seconds_s = round(time.monotonic() - began, 3)
            pairs = manifest.train.pairs
            prepared = CorpusPrepared(
                digest=manifest.digest, train_pairs=pairs, seconds_s=seconds_s
            )
            events.write(prepared)
            for warning in (_most_dropped(manifest, directory), _no_paragraph(manifest)):
                if warning is not None:
                    events.write(warning)
        return manifest


def _most_dropped(manifest: Manifest, directory: Path) -> Alert | None:
    """The warning that most training pairs were dropped, with the keys that dropped them; None if
    most were kept, or the filter of languages has dropped them, which warns itself."""
    train = manifest.train
    lost = train.pairs_in - train.kept
    if lost <= _MOST * train.pairs_in or train.dropped.get("language", 0) > _MOST * train.pairs_in:
        return None
    languages = [code for one in manifest.config.directions for code in one]
    blamed = _blamed(train.dropped, train.pairs_in)
    remedies = [_remedy_for_script(name, languages) for name in blamed]
    if any(map(key_of, blamed)) or not any(remedies):
        remedies.append("loosen the key if good pairs are there")
    return Alert(
        severity="warning",
        cause=_dropped_in_words(train.dropped, train.pairs_in, lost),
        remedy=f"see {directory / REJECTED / 'filters.html'}, and "
        f"{', or '.join(filter(None, remedies))}",
    )


def _no_paragraph(manifest: Manifest) -> Alert | None:
    """The warning that paragraphs were asked for and there are none."""
    if manifest.config.context.sentences == 1 or CONTEXT in manifest.train.copies:
        return None
    return Alert(
        severity="warning",
        cause="corpus.context.sentences added no paragraph: no two kept pairs follow each other",
        remedy="give text that keeps its order, without shuffled = true, or leave the key out",
    )


def _blamed(dropped: Mapping[str, int], pairs_in: int) -> dict[str, int]:
    """The reasons for which many pairs were dropped, and how many, the commonest first."""
    by_pairs = sorted(dropped.items(), key=lambda item: -item[1])
    return {name: pairs for name, pairs in by_pairs if pairs >= _BLAMED * pairs_in}


def _dropped_in_words(dropped: Mapping[str, int], pairs_in: int, lost: int) -> str:
    counts = (
        f"{key_of(name) or name.replace('_', ' ')} {pairs:,}"
        for name, pairs in _blamed(dropped, pairs_in).items()
    )
    return (
        f"{units.SHARE.text(lost / pairs_in)} of the training pairs were dropped "
        f"({lost:,} of {pairs_in:,}): {', '.join(counts)}"
    )


def _remedy_for_script(reason: str, languages: Sequence[str]) -> str:
    """What to do about units that have a language only in another script; "" if that is not the
    reason."""
    if not reason.startswith(OTHER_SCRIPT):
        return ""
    other = reason.removeprefix(OTHER_SCRIPT)
    wanted = next((one for one in languages if in_other_script(one, [other])), "the other script")
    return f"write {other} in place of {wanted} in the recipe if the model is to translate that"


def _whole_manifest(directory: Path) -> Manifest | None:
    """The manifest of the directory, if it can be read and all its files are there."""
    try:
        manifest = Manifest.load(directory)
    except CorpusError:
        return None
    paths = {directory / name: file for name, file in manifest.files.items()}
    whole = all(
        path.is_file() and path.stat().st_size == file.size_bytes for path, file in paths.items()
    )
    return manifest if whole else None


@dataclass(frozen=True, slots=True)
class _Preparation:
    """The stages. Each reads what earlier stages left in the workplace."""

    config: CorpusConfig
    sources: Sources
    place: Workplace
    workers: Workers
    events: EventWriter | None
    progress: OnProgress | None

    def run(self, vocabulary: tuple[bytes, bytes] | None) -> None:
        """Leave the whole corpus, its manifest included, as the result of the workplace."""
        for side, model in zip(SIDES, vocabulary or (), strict=False):
            write_whole(self.place.result / f"{side}.model", model)
        given = [split for split in HELD_OUT_SPLITS if self.sources.entries[split]]
        if self.config.check_languages:
            self.place.once("identify", self._identify)
        for split in given:
            self._stage(split, f"read_{split}", partial(self._read, split))
        self._stage("train", "clean", self._clean)
        self.place.once("merge", partial(self._merge, ""))
        if self.config.context.sentences > 1:
            self.place.once("merge_paragraphs", partial(self._merge, PARAGRAPHS))
        with self._filters_blamed():
            self._stage("train", "hold_out", partial(self._hold_out, given))
            self._advance("learn", 0, None)
            self._learn()
        if self.config.filters.min_lexical_gain is not None or self.config.augment.placeholders:
            self.place.once("relate_directions", self._relate)
        self._stage("train", "encode", self._encode)
        self.place.once("runs_removed", self._remove_runs)
        self._write(given)

    @property
    def _here(self) -> int:
        """Processes for what is done on this machine alone."""
        return self.workers if isinstance(self.workers, int) else 1

    def _stage(self, split: str, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Do a stage once, and report its result; raises CorpusError if it left no pair."""
        began = time.monotonic()
        kept = self.place.once(name, make)
        if self.events is None or "facts" not in kept:
            return
        facts = StageFacts.model_validate(kept["facts"])
        self.events.write(
            CorpusStage(
                split=split,
                stage=facts.stage,
                pairs_in=facts.pairs_in,
                pairs_out=facts.pairs_out,
                seconds_s=round(time.monotonic() - began, 3),
            )
        )

    def _identify(self) -> dict[str, Any]:
        """Raise CorpusError if an entry clearly is in other languages than the recipe says."""
        refuse_wrong_languages(self.sources.entries, self.config, workers=self._here)
        return {}

    def _read(self, split: str) -> dict[str, Any]:
        """Read a dev or test set from its files."""
        given = read_split(self.sources.entries[split], self.config)
        self._warn_of_shifted(given.shifted)
        facts = _some_left(_stage_facts("clean", given.reports), place=f"corpus.{split}")
        directions = given.directions if len(self.config.directions) > 1 else None
        write_text(self.place.result / split, given.pairs, directions)
        write_whole(self.place.rejected(split), pack_rejected(given.rejected))
        return {
            "facts": facts.model_dump(),
            "sources": self.sources.describe(split, given.files),
        }

    def _clean(self) -> dict[str, Any]:
        reader = BlockReader(self.sources.entries["train"])
        task = BlockCleaner(self.config, self.place.runs)
        reports: list[BlockReport] = []
        pairs = 0
        for report in refuse_malformed(parallel_map(task, reader, workers=self.workers)):
            reports.append(report)
            pairs += report.pairs_in
            self._advance("clean", pairs, None)
        self._warn_of_shifted(reader.shifted)
        facts = _stage_facts("clean", reports)
        self._refuse_no_pairs(facts)
        of_language = facts.dropped.get("language", 0)
        if self.events is not None and of_language > _MOST * facts.pairs_in:
            dropped = f"{of_language} of {facts.pairs_in} pairs"
            seen = self._seen_in_words()
            self.events.write(
                Alert(
                    severity="warning",
                    cause=f"the language filter drops {dropped}; {seen.words}",
                    remedy=seen.remedy
                    or "name the languages of the text, or loosen "
                    "corpus.filters.max_language_log_odds",
                )
            )
        return {
            "facts": facts.model_dump(),
            "sources": self.sources.describe("train", reader.facts),
            "files": [report.file for report in reports],
            "entries": [report.entry for report in reports],
        }

    def _warn_of_shifted(self, shifted: Iterable[str]) -> None:
        if self.events is not None:
            for cause in shifted:
                self.events.write(Alert(severity="warning", cause=cause, remedy=PARALLEL))

    def _merge(self, kind: str) -> list[str]:
        """Merge the runs of a kind until few are left; returns their names in the folder of runs.

        kind: the folder in it; "": single sentences.
        """
        num_blocks = len(self.place.recall("clean")["files"])
        names = [str(Path(kind, run_name(block))) for block in range(num_blocks)]
        level = 0
        while len(names) > MOST_RUNS:
            merged = f"merged{kind}-{level}"
            # Each level is kept, because the next one removes its runs.
            names = self.place.once(merged, partial(self._merge_once, names, merged))
            level += 1
        return names

    def _merge_once(self, names: Sequence[str], merged: str) -> list[str]:
        """Merge each group of neighbouring runs; returns the names of the merged runs."""
        (self.place.runs / merged).mkdir(exist_ok=True)
        groups = [
            (names[first : first + MOST_RUNS], f"{merged}/{run_name(number)}")
            for number, first in enumerate(range(0, len(names), MOST_RUNS))
        ]
        merge = partial(_merge_group, self.place.runs)
        return list(parallel_map(merge, groups, workers=self.workers))

    def _hold_out(self, given: Sequence[str]) -> dict[str, Any]:
        """Take dev and test pairs from the training text, if they are not given as files."""
        text = CleanedText(self.place, self.config)
        sides = HeldOutSides(near=self.config.filters.drop_near_duplicates)
        for source, target, direction in text.held_out(given):
            sides.add(direction, text.plain(source), target)
        sizes = {"valid": self.config.valid_pairs, "test": self.config.test_pairs}
        wanted = {split: size for split, size in sizes.items() if split not in given}
        taken, keys = hold_out(
            text.runs,
            wanted,
            sides,
            directions=text.directions,
            written=text.written,
            words=text.words,
        )
        several = len(self.config.directions) > 1
        for split, pairs in taken.items():
            if pairs:
                write_text(
                    self.place.result / split,
                    [pair[:2] for pair in pairs],
                    [pair.direction for pair in pairs] if several else None,
                )
        return {"keys": keys.tolist()}

    def _learn(self) -> None:
        """Write source.model and target.model; the same bytes if the model is joint.

        Each is trained in a process of its own, one after the other, whose memory ends with it;
        in this process if nodes do the work, because no other has joined them.
        """
        for side in SIDES:
            path = self.place.result / f"{side}.model"
            if path.exists():
                continue
            if self.config.subword.joint and side == "target":
                write_whole(path, (self.place.result / "source.model").read_bytes())
            else:
                learn = partial(_learn_one, self.place, self.config, self.workers)
                list(parallel_map(learn, [side], workers=self._here))

    def _relate(self) -> dict[str, Any]:
        """Write a table of pieces that translate each other for each direction.

        The tables are learnt from a sample, or from the whole text if a direction is too rare in
        the sample. If a direction has fewer than LEAST_PAIRS pairs, there is none, and CorpusError
        is raised if a filter needs it.
        """
        text = CleanedText(self.place, self.config)
        self._advance("relate", 0, None)
        directions = self.config.train_directions
        most_pairs = SAMPLE_PAIRS * len(directions)
        for max_pairs in (most_pairs, None):
            sample = text.runs.ranges(max_pairs=max_pairs, range_bytes=SAMPLE_RANGE_BYTES)
            pairs = dict.fromkeys(directions, 0)
            met = {direction: OftenMet() for direction in directions}
            for part in parallel_map(text.count_co_occurrences, sample, workers=self.workers):
                for direction, (num_pairs, keys, counts) in part.items():
                    pairs[direction] += num_pairs
                    met[direction].add(keys, counts)
            if min(pairs.values()) >= LEAST_PAIRS or text.runs.num_pairs <= most_pairs:
                break
        rarest = min(directions, key=lambda one: pairs[one])
        if pairs[rarest] < LEAST_PAIRS:
            if self.config.filters.min_lexical_gain is None:
                return {"pairs": 0}  # copies then go by words that are the same on both sides
            of = f" of {listed([rarest])}" if len(directions) > 1 else ""
            raise CorpusError(
                f"{pairs[rarest]} pairs{of} are too few to learn which words translate each other",
                place="corpus.filters.min_lexical_gain",
                remedy=f"leave it out, or give at least {LEAST_PAIRS} pairs",
            )
        source_size, target_size = (encoder.vocab_size for encoder in text.encoders)
        tables = {
            direction: LexicalTable.uniform(
                met[direction].keys(), vocab_sizes=(source_size, target_size)
            )
            for direction in directions
        }
        self._save_tables(tables)
        for iteration in range(1, ITERATIONS + 1):
            task = CleanedText(self.place, self.config).count_translations  # by the saved tables
            sums: dict[Direction, Counts] = {}
            for found in parallel_map(task, sample, workers=self.workers):
                for direction, more in found.items():
                    sums[direction] = sums[direction] + more if direction in sums else more
            last = iteration == ITERATIONS
            tables = {
                direction: LexicalTable.of(table.keys, sums[direction], last=last)
                for direction, table in tables.items()
            }
            self._save_tables(tables)
        return {"pairs": sum(pairs.values())}

    def _save_tables(self, tables: Mapping[Direction, LexicalTable]) -> None:
        """Write the tables to the files that `CleanedText` reads."""
        for number, direction in enumerate(self.config.train_directions):
            tables[direction].save(self.place.lexical / str(number))

    def _encode(self) -> dict[str, Any]:
        text = CleanedText(self.place, self.config)
        reports: list[PartReport] = []
        pairs = 0
        for report in parallel_map(text.encode, text.runs.ranges(), workers=self.workers):
            reports.append(report)
            pairs += report.pairs_in
            self._advance("encode", pairs, text.runs.num_pairs)
        facts = _stage_facts("encode", reports)
        self._refuse_no_pairs(facts)
        self._refuse_empty_directions(len(reports))
        return {"facts": facts.model_dump(), "parts": [asdict(report) for report in reports]}

    def _refuse_no_pairs(self, facts: StageFacts) -> None:
        """Raise CorpusError if a stage has left no training pair, and keep what was dropped."""
        if not facts.pairs_out:
            self._write_rejected(self.place.failed)
            words, remedy = self._seen_in_words() if "language" in facts.dropped else ("", "")
            raise _none_left(
                facts,
                "corpus.train",
                remedy=f"{words}{'; ' if words else ''}look at {self.place.failed}, "
                + (f"and {remedy}" if remedy else "or loosen corpus.filters"),
            )

    @contextmanager
    def _filters_blamed(self) -> Iterator[None]:
        """If too little text is left inside the block, and filters have dropped most of it, the
        error begins its remedy with them."""
        try:
            yield
        except CorpusError as error:
            facts = StageFacts.model_validate(self.place.recall("clean")["facts"])
            lost = facts.pairs_in - facts.pairs_out
            if lost > _MOST * facts.pairs_in:
                self._write_rejected(self.place.failed)
                dropped = _dropped_in_words(facts.dropped, facts.pairs_in, lost)
                look = f"look at {self.place.failed}, and loosen the key if good pairs are there"
                error.set_words(remedy=f"{dropped}: {look}; or {error.remedy}")
            raise

    def _seen_in_words(self) -> SeenInText:
        """The languages that the training text seems to have, for who wonders what was dropped."""
        return languages_seen_in_words(self.sources.entries["train"], self.config)

    def _refuse_empty_directions(self, num_parts: int) -> None:
        """Raise CorpusError if no training pair of a direction is left: none would be learnt."""
        directions = [self.config.direction_of(entry) for entry in self.config.train]
        parts = (read_entries(self.place.parts, index) for index in range(num_parts))
        learnt = {directions[entry] for entries in parts for entry in np.unique(entries)}
        missing = [one for one in self.config.train_directions if one not in learnt]
        if not missing:
            return
        self._write_rejected(self.place.failed)
        cleaned = read_reports(self.place.runs)
        of_missing = [report for report in cleaned if directions[report.entry] in missing]
        facts = _stage_facts("clean", of_missing)
        reasons = [f"{reason} {pairs}" for reason, pairs in facts.dropped.items()]
        if facts.pairs_out:
            reasons.append(f"later filters {facts.pairs_out}")
        raise CorpusError(
            f"no training pair of {listed(missing)} is left ({', '.join(reasons)})",
            place="corpus.train",
            remedy=f"look at {self.place.failed}, loosen corpus.filters, or leave the entries out",
        )

    def _remove_runs(self) -> None:
        """Free disk space before the shards are written; rejected pairs stay."""
        for pattern in ("*.txt", "*.npy"):
            for path in self.place.runs.rglob(pattern):
                path.unlink()

    def _write(self, given: Sequence[str]) -> None:
        """Write shards, rejected pairs and, last, the manifest."""
        place = self.place
        encoders = CleanedText(place, self.config).encoders
        clean, encoded = place.recall("clean"), place.recall("encode")
        parts = [PartReport.from_json(values) for values in encoded["parts"]]
        directory = place.result / "train"
        directory.mkdir(exist_ok=True)
        for side, encoder in zip(SIDES, encoders, strict=True):
            size = SideSize(
                num_rows=sum(part.num_rows for part in parts),
                num_ids=sum(getattr(part, side).pieces for part in parts),
                dtype=id_dtype(encoder.vocab_size),
            )
            rows = (read_rows(place.parts, index, side) for index in range(len(parts)))
            write_side(directory, side, rows, size=size)
        if self.config.is_mixed:
            entries = (read_entries(place.parts, index) for index in range(len(parts)))
            num_pairs = sum(part.num_rows for part in parts)
            write_entries(directory, entries, num_pairs=num_pairs)
        stages = [StageFacts.model_validate(kept["facts"]) for kept in (clean, encoded)]
        splits = {"train": _split_facts(stages, parts)}
        sources = list(clean["sources"])
        for split in HELD_OUT_SPLITS:
            if pairs := read_text(place.result / split):
                report = _write_pairs(place.result / split, pairs, encoders)
                stage = _stage_facts("hold_out", [report])
                if split in given:
                    kept = place.recall(f"read_{split}")
                    stage = StageFacts.model_validate(kept["facts"])
                    sources += kept["sources"]
                splits[split] = _split_facts([stage], [report])
        files = _describe_files(place.result)
        rejected = place.result / REJECTED
        self._write_rejected(rejected)
        for split in given:
            join_rejected(rejected / f"{split}.tsv.zst", [place.rejected(split)])
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            digest=digest_files(files),
            config=self.config,
            source_vocab_size=encoders[0].vocab_size,
            target_vocab_size=encoders[1].vocab_size,
            sources=tuple(SourceFile.model_validate(source) for source in sources),
            splits=splits,
            files=files,
        )
        write_whole(place.result / FILE_NAME, manifest.model_dump_json(indent=1))

    def _write_rejected(self, folder: Path) -> None:
        """Write the training pairs that were dropped so far, and the scores that filters gave."""
        folder.mkdir(exist_ok=True)
        parts = (self.place.runs, self.place.parts)
        paths = [path for part in parts for path in numbered(part, ".rejected")]
        join_rejected(folder / "train.tsv.zst", paths)
        scores = (path.with_suffix(".scores") for path in paths)
        write_surveys(folder / SURVEYS, join_surveys(filter(Path.is_file, scores)))

    def _advance(self, stage: str, pairs: int, total: int | None) -> None:
        if self.progress is not None:
            self.progress(stage, pairs, total)


def _merge_group(runs: Path, group: tuple[Sequence[str], str]) -> str:
    """Merge some runs, which are named first, into one; returns its name."""
    names, merged = group
    merge_runs([runs / name for name in names], runs / merged)
    return merged


def _learn_one(place: Workplace, config: CorpusConfig, workers: Workers, side: str) -> None:
    """Train the model of one side on a sample: of both sides if the model is joint."""
    sides = SIDES if config.subword.joint else (side,)
    text = CleanedText(place, config)
    sample = text.runs.ranges(max_pairs=config.subword.sample_sentences // len(sides))
    by_direction: dict[Direction, Counted] = {}
    for counts in parallel_map(partial(text.count_words, sides), sample, workers=workers):
        for direction, counted in counts.items():
            known = by_direction.setdefault(direction, Counted(0, Counter()))
            known.words.update(counted.words)
            by_direction[direction] = known._replace(pairs=known.pairs + counted.pairs)
    word_counts = _in_shares(list(by_direction.values()), config.temperature)
    tokens = config.language_tokens if "source" in sides else ()
    for token in tokens:  # tokens are not text
        del word_counts[token]
    model = train_on_words(
        word_counts, config.subword, tags=[*config.tags, *config.stand_ins], tokens=tokens
    )
    write_whole(place.result / f"{side}.model", model)


def _in_shares(directions: Sequence[Counted], temperature: float | None) -> Counter[str]:
    """How often each word occurs if directions have the shares in which training draws them.

    Otherwise a language with little text, which training draws often, would be cut into letters.
    Words of the direction that is drawn least often for its size are counted as they are.
    """
    summed = Counter[str]()
    if temperature is None:
        for counted in directions:
            summed.update(counted.words)
        return summed
    shares = tempered([counted.pairs for counted in directions], temperature)
    draws = [share / max(1, one.pairs) for share, one in zip(shares, directions, strict=True)]
    least = min(draw for draw in draws if draw)
    for counted, draw in zip(directions, draws, strict=True):
        times = draw / least
        summed.update({word: round(count * times) for word, count in counted.words.items()})
    return summed


def _write_pairs(
    directory: Path, pairs: Sequence[tuple[str, str]], encoders: Sequence[RowEncoder]
) -> PartReport:
    """Write the shards of a dev or test split, all its pairs in their order."""
    counts = {}
    for number, (side, encoder) in enumerate(zip(SIDES, encoders, strict=True)):
        texts = [pair[number] for pair in pairs]
        rows = encoder.encode(texts)
        size = SideSize(len(texts), len(rows.ids), rows.ids.dtype)
        write_side(directory, side, [rows], size=size)
        counts[side] = count_side(texts, rows)
    return PartReport(len(pairs), len(pairs), {}, 0, counts["source"], counts["target"])


def _describe_files(result: Path) -> dict[str, OutputFile]:
    """Size and digest of every file of models and splits; `digest_files` takes them."""
    names = sorted(
        path.relative_to(result).as_posix()
        for path in result.rglob("*")
        if path.is_file() and path.name != FILE_NAME and path.parent.name != REJECTED
    )
    return {
        name: OutputFile(
            sha256=file_sha256(result / name), size_bytes=(result / name).stat().st_size
        )
        for name in names
    }


def _split_facts(stages: Sequence[StageFacts], reports: Sequence[PartReport]) -> SplitFacts:
    """The manifest's facts of a split."""
    pairs = sum(report.num_rows for report in reports)
    copies = Counter[str]()
    for report in reports:
        copies.update(report.copies)
    truncated = sum(report.truncated for report in reports)
    return SplitFacts(
        stages=tuple(stages),
        pairs=pairs,
        source_pieces=sum(report.source.pieces for report in reports),
        target_pieces=sum(report.target.pieces for report in reports),
        source_unknown_pieces=sum(report.source.unknown for report in reports),
        target_unknown_pieces=sum(report.target.unknown for report in reports),
        truncated=truncated,
        truncated_share=_share(truncated, pairs),
        copies=dict(sorted(copies.items())),
    )


def _stage_facts(name: str, reports: Sequence[BlockReport] | Sequence[PartReport]) -> StageFacts:
    dropped = Counter[str]()
    for report in reports:
        dropped.update(report.dropped)
    pairs_in = sum(report.pairs_in for report in reports)
    return StageFacts(
        stage=name,
        pairs_in=pairs_in,
        pairs_out=sum(report.pairs_out for report in reports),
        dropped=dict(sorted(dropped.items())),
        dropped_share=_share(dropped.total(), pairs_in),
        source_text=TextSize.of(sum(report.source_bytes for report in reports)),
        target_text=TextSize.of(sum(report.target_bytes for report in reports)),
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _some_left(facts: StageFacts, *, place: str) -> StageFacts:
    if facts.pairs_out:
        return facts
    raise _none_left(facts, place, remedy="look at the text")


def _none_left(facts: StageFacts, place: str, *, remedy: str) -> CorpusError:
    reasons = ", ".join(f"{reason} {pairs}" for reason, pairs in facts.dropped.items())
    return CorpusError(
        f"none of {facts.pairs_in} pairs is left ({reasons})", place=place, remedy=remedy
    )
