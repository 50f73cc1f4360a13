"""Totals of a run: duration, corpus and checkpoints; questions 1, 7, 8 and 9."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman.base import units
from dragoman.reporting import measures
from dragoman.reporting.facts import Facts
from dragoman.reporting.pauses import out_of_reach, paused_s, still
from dragoman.reporting.record import summed
from dragoman.reporting.verdict import Evidence, Judgement, evidence, in_words

_KIB = 1024
_NO_CHECKPOINT = (in_words("checkpoints of the run's directory", "none is whole"),)


def duration(facts: Facts) -> Judgement:
    """How long does it take?"""
    wall_s = facts.wall_s
    if wall_s is None:
        return "cannot tell", "Nothing was timed.", ""
    says = f"{_so_far(facts)} {_long(wall_s)} for {units.COUNT.text(facts.last_step)} steps"
    train_s = facts.train_s
    says += "." if train_s is None else f", {_long(train_s)} of it in training."
    if (left_s := measures.left_s(facts)) is not None:
        by = "By its budget" if facts.clock else "At this speed"
        says += f" {by} {_long(left_s)} are left."
    if facts.is_silent:
        says += " What it did after its last interval is missing."
    return "measured", says, ""


def _so_far(facts: Facts) -> str:
    if facts.is_finished:
        return "It took"
    if facts.lives[-1].reason == "signal":
        return "Until a signal stopped it, it took"
    if not facts.is_silent:
        return "So far it took"
    if facts.exit is None:
        return "Its record ends without saying why, after"
    words = {"failed": "It failed after", "gone": "It was killed after"}
    return words.get(facts.exit.state, "It was ended after")


def duration_evidence(facts: Facts) -> Iterator[Evidence]:
    """The parts of the wall clock, and what was done in it."""
    yield evidence("wall clock", units.DURATION, facts.wall_s)
    yield evidence("prepare, not included", units.DURATION, facts.prepare_s)
    for name, seconds_s in wall_parts(facts).items():
        yield evidence(name, units.DURATION, seconds_s)
    for score in facts.test_scores:
        yield evidence(f"translate {score.label}, afterwards", units.DURATION, score.decode_s)
    yield evidence("steps", units.COUNT, facts.last_step)
    if facts.repeated_steps:
        text = f"{units.COUNT.text(facts.repeated_steps)} in {_long(facts.repeated_s)}"
        yield Evidence("steps made again after a resume", facts.repeated_steps, text)
    yield evidence("samples (pairs)", units.COUNT, summed(facts.intervals["pairs"]))
    yield evidence("source + target tokens", units.COUNT, measures.tokens(facts))
    yield evidence("starts", units.COUNT, len(facts.lives))
    if facts.exit is not None and facts.exit.problem:
        yield in_words("how it ended", facts.exit.problem)


def wall_parts(facts: Facts) -> dict[str, float | None]:
    """The parts of the wall clock, by name; idle is the rest of it."""
    parts = {
        "train": facts.train_s,
        "evaluate": measures.validate_s(facts),
        "save checkpoints": measures.save_s(facts),
    }
    if stood := still(facts):
        parts["stand still"] = paused_s(stood)
    if unreached := [pause for pause, _ in out_of_reach(facts)]:
        parts["ranks out of reach"] = paused_s(unreached)
    if facts.unrecorded_s:
        parts["since the last interval, not recorded"] = facts.unrecorded_s
    parts["idle"] = None
    if facts.wall_s is not None and facts.train_s is not None:
        parts["idle"] = max(facts.wall_s - (summed(parts.values()) or 0.0), 0.0)
    return parts


def corpus(facts: Facts) -> Judgement:
    """How big was the training set?"""
    manifest = facts.manifest
    if manifest is not None:
        text = manifest.train.stages[-1]
        both = text.source_text.num_bytes + text.target_text.num_bytes
        says = (
            f"{units.COUNT.text(manifest.train.pairs)} pairs, {_both_sizes(both)} of text on both "
        )
        used = facts.recipe.data.share if facts.recipe is not None else 1.0
        part = "" if used == 1.0 else f"; {units.SHARE.text(used)} of them were used (data.share)"
        return "measured", f"{says}sides{part}.", ""
    if facts.imported is not None and facts.imported.train_file is not None:
        says = f"It was read from {facts.imported.train_file}; its size was not logged."
        return "cannot tell", says, ""
    return "cannot tell", "There is no manifest of the training text.", ""


def corpus_evidence(facts: Facts) -> Iterator[Evidence]:
    """The files that were read, and the pairs and sizes after each stage."""
    if facts.manifest is None:
        yield in_words("manifest.json", "not in the record")
        return
    train = facts.manifest.train
    for source in facts.manifest.sources:
        if source.split == "train":
            size = _both_sizes(source.text.num_bytes)
            lines = units.COUNT.text(source.lines)
            text = f"{lines} lines, {size}, sha256 {source.sha256[:12]}"
            yield Evidence(f"read {source.name}", source.text.num_bytes, text)
    for stage in train.stages:
        kept = f"{units.COUNT.text(stage.pairs_out)} of {units.COUNT.text(stage.pairs_in)} pairs"
        sides = (_both_sizes(side.num_bytes) for side in (stage.source_text, stage.target_text))
        text = f"{kept}, source {next(sides)}, target {next(sides)}"
        yield Evidence(f"after {stage.stage}", stage.pairs_out, text)
    pieces = (train.source_pieces, train.target_pieces)
    text = " + ".join(units.COUNT.text(count) for count in pieces)
    yield Evidence("source + target pieces", sum(pieces), text)
    for reason, pairs in sorted(train.dropped.items(), key=lambda item: -item[1]):
        text = f"{units.COUNT.text(pairs)} pairs, {units.SHARE.text(pairs / train.pairs_in)}"
        yield Evidence(f"dropped: {reason.replace('_', ' ')}", pairs, text)
    for change, pairs in train.copies.items():
        yield Evidence(f"copies: {change.replace('_', ' ')}", pairs, units.COUNT.text(pairs))
    yield evidence("cut short", units.SHARE, train.truncated_share)
    yield in_words("digest of the prepared text", facts.manifest.digest[:16])


def checkpoint_files(facts: Facts) -> Judgement:
    """Which files make up a checkpoint?"""
    files = facts.checkpoint_files
    if not files:
        return "cannot tell", _no_checkpoint(facts), ""
    return "measured", f"{len(files)} files: {', '.join(file.name for file in files)}.", ""


def checkpoint_files_evidence(facts: Facts) -> Sequence[Evidence]:
    """The purpose of each file."""
    return [in_words(file.name, file.purpose) for file in facts.checkpoint_files] or _NO_CHECKPOINT


def checkpoint_size(facts: Facts) -> Judgement:
    """How big is a checkpoint?"""
    files = facts.checkpoint_files
    weights = [file.size_bytes for file in files if file.name == "model.safetensors"]
    if files:
        says = f"{_both_sizes(sum(file.size_bytes for file in files))} to resume from it"
        says += f"; {_both_sizes(weights[0])} to translate with it." if weights else "."
        return "measured", says, ""
    if facts.checkpoints and facts.checkpoints[-1].size_bytes:
        whole = _both_sizes(facts.checkpoints[-1].size_bytes)
        return "measured", f"{whole} when it was written; it is no longer there.", ""
    return "cannot tell", _no_checkpoint(facts), ""


def checkpoint_size_evidence(facts: Facts) -> Sequence[Evidence]:
    """The size of each file."""
    files = facts.checkpoint_files
    sizes = [Evidence(file.name, file.size_bytes, _both_sizes(file.size_bytes)) for file in files]
    return sizes or _NO_CHECKPOINT


def _no_checkpoint(facts: Facts) -> str:
    if facts.imported is not None and facts.imported.checkpoint_every_steps:
        every = units.COUNT.text(facts.imported.checkpoint_every_steps)
        return f"Not logged; the first one was to be saved at step {every}."
    return "There is no checkpoint."


def _both_sizes(num_bytes: int) -> str:
    if num_bytes < _KIB:
        return units.SIZE.text(num_bytes)
    return f"{units.SIZE.text(num_bytes)} (= {units.BINARY_SIZE.text(num_bytes)})"


def _long(seconds_s: float) -> str:
    """A duration; from one hour on also in decimal hours."""
    text = units.DURATION.text(seconds_s)
    return f"{text} ({units.HOURS.text(seconds_s)})" if seconds_s >= units.HOUR_S else text
