"""A small, fast model that learns from the translations of a larger one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dragoman.api.checks import checked, opened_run
from dragoman.api.kinds import (
    CheckpointChoice,
    Count,
    OnEvent,
    Option,
    Overrides,
    RecipeLike,
    RunLike,
)
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.formats.kinds import Quantization

if TYPE_CHECKING:
    from dragoman.api.comparison import Comparison
    from dragoman.api.synthetic import Synthesized
    from dragoman.recipe.run_directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Served:
    """An export and its speed.

    sentences_per_s: sentences of the test set that it translates per second on this machine.
    """

    path: Path
    size_bytes: int
    beam_size: int
    sentences_per_s: float


@dataclass(frozen=True, slots=True)
class Distilled:
    """A student, and its comparison with the teacher.

    run: the student's run.
    synthesized: the translations that it learnt from.
    comparison: how well the two exports translate the test set; `first` is the teacher.
    """

    run: RunDirectory
    synthesized: Synthesized
    comparison: Comparison
    teacher: Served
    student: Served


@checked
def distill(
    teacher: RunLike,
    recipe: RecipeLike = "student-small",
    *,
    text: Annotated[str | Path | None, Option("--input")] = None,
    any_language: bool = False,
    n_best: Count = 1,
    synthetic_only: bool = False,
    checkpoint: CheckpointChoice = "best",
    quantization: Quantization = "int8",
    overrides: Overrides = (),
    folder: str | Path = "distilled",
    runs: str | Path = "runs",
    ranks: Count | None = None,
    threads: Count | None = None,
    on_event: OnEvent | None = None,
    progress: bool = False,
) -> Distilled:
    """Train a small, fast model on the output of a larger one.

    It learns from the translations and the pairs of the teacher (Kim and Rush 2016); then both are
    compared. An interrupted call resumes if it is made again; a finished translation is not made
    again.

    teacher: a run. Its dev and test sets and its languages become the student's.
    recipe: the student's: student-small, student-tiny, or a TOML file; its text, its languages and
        the weights of texts are not used.
    text: a file to translate, one sentence per line; None: the sources of the teacher's training
        text.
    any_language: take that file even if it seems to be in a language that the teacher does not
        translate.
    n_best: translations of each sentence to learn from; the teacher's beam is at least as wide.
    synthetic_only: learn from translations alone. By default the student learns from the teacher's
        own pairs as well, except for those with a tag, such as back-translations.
    checkpoint: which weights of the teacher to use: best, last, a step or a folder.
    quantization: the type of the weights in both exports, which are compared.
    overrides: a setting to change in the recipe, such as train.max_steps=8000; may be given again.
    folder: the text and the exports go into a folder there, named after student and teacher. A
        student with other settings uses the same text and gets an export named after its run.
    runs, ranks, on_event, progress: as for `train`.
    threads: cores that translate; None: all.
    Raises ConfigError, CorpusError, CheckpointError, TrainingError and MachineError.
    """
    import hashlib
    from contextlib import suppress
    from dataclasses import replace

    from dragoman.api.comparison import compare
    from dragoman.api.scoring import weights_digest
    from dragoman.api.synthetic import synthesize
    from dragoman.api.systems import record
    from dragoman.api.teacher import (
        digest_of_text,
        finished,
        held_out,
        keep_counts,
        removed_if_unused,
        speeds,
        student_text,
        write_own_pairs,
        write_sources,
    )
    from dragoman.api.training import recipe_of, train
    from dragoman.api.translation import export
    from dragoman.base.errors import MachineError
    from dragoman.corpus.config import TextFiles
    from dragoman.corpus.directions import listed
    from dragoman.corpus.manifest import Manifest
    from dragoman.evaluation.validate import read_lines
    from dragoman.telemetry.events import EventWriter, StudentMeasured

    student = recipe_of(recipe, overrides)
    run = opened_run(teacher)
    directions = run.recipe().corpus.directions
    if len(directions) > 1:
        raise ConfigError(
            f"translates in several directions ({listed(directions)}), and a student learns one",
            place=run.path,
            remedy="make forward pairs of one target language with dragoman synthesize, and train "
            "on them",
        )
    # Another teacher or other translations make another student, in a folder of its own.
    checkpoint = str(checkpoint)
    learnt_from = weights_digest(run.path, checkpoint) + Manifest.load(run.path).digest
    if text is not None:
        learnt_from += digest_of_text(Path(text))
    if n_best > 1:
        learnt_from += f"{n_best} translations"
    digest = hashlib.sha256(learnt_from.encode()).hexdigest()[:8]
    place = (Path(folder) / f"{student.name}-of-{digest}").absolute()
    is_text_of_teacher = text is None
    with removed_if_unused(place):
        valid, test = (held_out(run, split, place) for split in ("valid", "test"))
        place.mkdir(parents=True, exist_ok=True)
        if text is None:
            text = place / "source.txt"
            if not text.exists():
                write_sources(run, text)
        output = place / "synthetic.tsv"
        synthesized = finished(output)
        if synthesized is None:
            output.unlink(missing_ok=True)  # a call that ended before it kept the counts left it
            synthesized = synthesize(
                run,
                text,
                output,
                direction="forward",
                checkpoint=checkpoint,
                n_best=n_best,
                any_language=any_language or is_text_of_teacher,
                overrides=[f"search.beam_size={max(n_best, run.recipe().search.beam_size)}"],
                threads=threads,
                progress=progress,
            )
            keep_counts(synthesized)
    if not synthesized.pairs:
        reasons = ", ".join(f"{reason} {count}" for reason, count in synthesized.dropped.items())
        raise CorpusError(
            f"none of its {synthesized.lines} lines has a translation to learn from ({reasons})",
            place=text,
            remedy="train the teacher for longer, or give other text",
        )
    learnt = [TextFiles(tsv=str(synthesized.output), translated="target", shuffled=True)]
    if not synthetic_only:
        pairs = place / "pairs.tsv"
        if not pairs.exists():
            write_own_pairs(run, pairs)
        if pairs.stat().st_size:  # it is empty if each of them has a tag
            learnt.append(TextFiles(tsv=str(pairs), shuffled=True))
    corpus = student_text(student.corpus, run.recipe().corpus, tuple(learnt), valid, test)
    stages = tuple(stage.model_copy(update={"weights": None}) for stage in student.stages)
    trained = train(
        student.model_copy(update={"corpus": corpus, "stages": stages}),
        runs=runs,
        ranks=ranks,
        on_event=on_event,
        progress=progress,
    )
    exports = [place / f"{name}-{quantization}" for name in ("teacher", trained.path.name)]
    sizes = []
    for one, named, to in zip((run, trained), (checkpoint, "best"), exports, strict=True):
        written = export(
            one, to="ctranslate2", checkpoint=named, output=to, quantization=quantization
        )
        sizes.append(written.size_bytes)
    (comparison,) = compare(*exports, tests=[test], threads=threads)
    comparison = replace(comparison, test="test")  # it is the student's own test set, too
    record(comparison, trained, "second")
    rates = speeds(exports, read_lines(test.source), threads)
    beams = [one.recipe().search.beam_size for one in (run, trained)]
    first, second = map(Served, exports, sizes, beams, rates)
    with suppress(MachineError), EventWriter(trained.events) as events:
        events.write(
            StudentMeasured(
                teacher=str(run.path.absolute()),
                pairs=synthesized.pairs,
                size_bytes=second.size_bytes,
                teacher_size_bytes=first.size_bytes,
                beam_size=second.beam_size,
                teacher_beam_size=first.beam_size,
                sentences_per_s=second.sentences_per_s,
                teacher_sentences_per_s=first.sentences_per_s,
            )
        )
    return Distilled(trained, synthesized, comparison, first, second)
