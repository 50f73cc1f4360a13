"""Examine a model, or another system, with sentences changed as people change them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dragoman.api.checks import checked, path_of
from dragoman.api.kinds import Count, Option, Target, TextFormat
from dragoman.base.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from dragoman.api.systems import TestSet
    from dragoman.corpus.directions import Direction
    from dragoman.evaluation.exam import Format, Glossary, Mark, System
    from dragoman.recipe.run_directory import RunDirectory

Examined = Annotated["RunDirectory | str | Path", Option(metavar="RUN|EXPORT|URL|PROGRAM")]


@dataclass(frozen=True, slots=True)
class Exam:
    """The marks of a system in each subject. test: the sentences that were changed."""

    system: str
    direction: str
    test: str
    marks: tuple[Mark, ...]


@checked
def exam(
    system: Examined,
    *others: Examined,
    test: Annotated[
        tuple[str | Path, str | Path] | None, Option("--test", "SOURCE,REFERENCE")
    ] = None,
    lines: Count = 200,
    program: bool = False,
    languages: Annotated[str, Option(metavar="SOURCE-TARGET")] = "",
    target_language: Target = "",
    threads: Count | None = None,
    progress: bool = False,
) -> list[Exam]:
    """Count how often a model copes with what people type.

    Sentences of a test set are put in capitals, get typing errors, a web address, tags and more.
    Each translation must stay like that of the plain sentence, or have what must be kept.

    system: a run, an export, the address of a server with LibreTranslate's interface, or a program
        that reads lines and writes a translation of each.
    others: more systems, to compare with it.
    test: the source text of a test set and its reference; None: the test set of the runs.
    lines: sentences of the test set to use, drawn over all of it.
    program: the systems are programs, with their arguments.
    languages: what a server or a program translates, such as en-de.
    target_language: the language to translate into, if the model has several.
    threads: cores; None: all.
    progress: show which subject is examined.
    The marks of a run are recorded in it, if it can be written to; its report shows them.
    Raises ConfigError if a system does not exist, the languages are not known or there is no test
    set; CorpusError if a text cannot be read; CheckpointError if a model is damaged; MachineError
    if a server or a program fails.
    """
    from dragoman.api import systems
    from dragoman.api.progress import bar_shown
    from dragoman.corpus.directions import parse_pair
    from dragoman.evaluation import exam as subjects

    names = [system, *others]
    paths = [None if program or _is_address(name) else path_of(name) for name in names]
    runs = [None if path is None else systems.run_of(path) for path in paths]
    if None in paths and (not languages or (test is None and not any(runs))):
        raise ConfigError(
            "a server or a program does not tell its languages and has no test set",
            place="exam",
            remedy="name languages, such as en-de, and test: a source and its reference",
        )
    directions = [
        parse_pair(languages, place="languages")
        if path is None
        else _direction_of(path, run, target_language)
        for path, run in zip(paths, runs, strict=True)
    ]
    if test is None:
        chosen = systems.test_of_runs([run for run in runs if run is not None])
    else:
        into = target_language if None not in paths else ""
        chosen = systems.named_test(Path(test[0]), Path(test[1]), into)
    pairs = _drawn(chosen, lines)
    exams = []
    for name, path, run, direction in zip(names, paths, runs, directions, strict=True):
        opened = (
            nullcontext((_other_system(str(name), direction, program=program), None))
            if path is None
            else _own_system(path, target_language, threads, chosen)
        )
        with opened as (translate, glossary), bar_shown(progress, len(subjects.SUBJECTS)) as show:
            marks = tuple(
                subjects.examine(translate, pairs, direction, glossary=glossary, on_subject=show)
            )
        exams.append(Exam(str(name), str(direction), chosen.name, marks))
        if run is not None:
            _record(exams[-1], run)
    return exams


def _is_address(system: object) -> bool:
    return isinstance(system, str) and system.startswith(("http://", "https://"))


def _drawn(test: TestSet, lines: int) -> list[tuple[str, str]]:
    """Sentences and references over all of a test set; lines without text are passed over."""
    pairs = [
        pair
        for pair in zip(test.sources, test.references, strict=True)
        if all(map(str.strip, pair))
    ]
    step = max(1, len(pairs) / lines)
    return [pairs[int(number * step)] for number in range(min(lines, len(pairs)))]


def _record(exam: Exam, run: RunDirectory) -> None:
    """Write the marks into the events of a run, if they can be written."""
    from dragoman.telemetry.events import EventWriter, ExamMarked

    with suppress(MachineError), EventWriter(run.events) as events:
        for mark in exam.marks:
            events.write(
                ExamMarked(
                    name=exam.test,
                    model=exam.system,
                    subject=mark.subject,
                    texts=mark.tried,
                    held=mark.held,
                    cure=mark.cure,
                )
            )


def _direction_of(path: Path, run: RunDirectory | None, target: str) -> Direction:
    """The languages of a model; raises ConfigError if it has several and none is named."""
    from dragoman.api import systems
    from dragoman.base.languages import same_language
    from dragoman.corpus.directions import listed

    recipe = systems.recipe_of(path, run)
    if recipe is None:
        raise ConfigError(
            "no such run or export",
            place=path,
            remedy="check its name; for a program set program",
        )
    directions = recipe.corpus.directions
    fitting = [one for one in directions if not target or same_language(one.target, target)]
    if len({one.target for one in fitting}) != 1:
        raise ConfigError(
            f"the model translates {listed(directions)}",
            place=path,
            remedy="name the language to translate into as the target language",
        )
    return fitting[0]


@contextmanager
def _own_system(
    path: Path, target: str, threads: int | None, test: TestSet
) -> Iterator[tuple[System, Glossary]]:
    """A run or an export as a system, and terms of the test set for it."""
    from dragoman.api.translation import Translator
    from dragoman.evaluation.exam import Glossary, terms_of
    from dragoman.inference.terms import has_term

    terms = terms_of([*zip(test.sources, test.references, strict=True)])
    with Translator(path, target_language=target, threads=threads) as translator:

        def translate(
            texts: Sequence[str], text_format: Format, terms: Mapping[str, str] | None = None
        ) -> list[str]:
            layout: TextFormat = "document" if text_format == "text" else "markup"
            return translator.translate(texts, text_format=layout, terms=terms)

        given = partial(translate, terms=terms)
        yield translate, Glossary(terms, given, has_term)


def _other_system(system: str, direction: Direction, *, program: bool) -> System:
    """A program or a server as a system."""
    from dragoman.evaluation.other_systems import from_program, from_server

    return from_program(shlex.split(system)) if program else from_server(system, direction)
