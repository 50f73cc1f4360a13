"""Text that a model of the build translates: for back-translation, and for a student.

The speed is measured on some lines first; the time left then decides how many lines are translated.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dragoman.api.synthetic import synthesize
from dragoman.api.translation import Translator
from dragoman.base.errors import CorpusError
from dragoman.base.files import open_regular, whole_file
from dragoman.base.line_files import InputReader
from dragoman.inference.synthesize import SynthesisDirection
from dragoman.recipe.recipe import Recipe, load_recipe

MOST_OF_PAIRS: Final = 5
"""The most lines back-translated per pair: 4.8 gained 5 BLEU, more was not measured."""
_TIMED_LINES: Final = 64
_WORTH: Final = 1.5
"""The least ratio of decoder weights, of teacher to student, that is worth a student's time."""
_SURE: Final = 0.8
"""Share of the time left to fill with lines: the timed lines may be easier than the rest."""
_LEAST_LINES: Final = 100


def translate(
    model: Path,
    text: Path,
    output: Path,
    *,
    direction: SynthesisDirection,
    seconds_s: float,
    most_lines: int | None,
    progress: bool,
) -> dict[str, Any]:
    """Translate as many lines of a text as fit into these seconds; resumes an unfinished attempt.

    most_lines: the most lines to translate; None: all, if they fit.
    Raises CorpusError if the text cannot be read or is empty, and the errors of `synthesize`.
    """
    part = output.with_name(f"text-{direction}.txt")
    if not part.exists():
        lines = count_sentences(text)
        if not lines:
            raise CorpusError("is empty", place=text, remedy="give one sentence per line")
        wanted = min(lines, most_lines or lines, _that_fit(model, text, seconds_s))
        part.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(part) as file:
            for line in _spread(text, lines, wanted):
                file.write(line)
    if not output.exists():
        synthesize(model, part, output, direction=direction, any_language=True, progress=progress)
    return {"lines": count_lines(part), "pairs": count_lines(output)}


def _that_fit(model: Path, text: Path, seconds_s: float) -> int:
    """How many lines fit into the time, at the speed of the first ones; 100 or more."""
    began = time.monotonic()
    with open_regular(text) as file:
        some = [
            line.decode(errors="replace").strip() for line in itertools.islice(file, _TIMED_LINES)
        ]
    with Translator(model) as translator:
        list(translator.translate(some[:8]))  # the first call makes buffers
        timed = time.monotonic()
        list(translator.translate(some))
    ended = time.monotonic()
    line_s = (ended - timed) / len(some)
    return max(int(_SURE * (seconds_s - (ended - began)) / line_s), _LEAST_LINES)


def _spread(text: Path, lines: int, wanted: int) -> Iterator[bytes]:
    """This many lines, spread over the whole text: neighbours are often alike."""
    with open_regular(text) as file:
        for number, line in enumerate(file):
            if number * wanted // lines != (number + 1) * wanted // lines:
                yield line if line.endswith(b"\n") else line + b"\n"


def count_lines(path: Path) -> int:
    """Lines of a file; raises CorpusError if it cannot be read."""
    with _unreadable_named(path), open_regular(path) as file:
        return sum(1 for _ in file)


def count_sentences(path: Path) -> int:
    """Lines of a text to translate; raises CorpusError if it cannot be read, is packed or is not
    UTF-8."""
    with _unreadable_named(path), open_regular(path) as file:
        return sum(1 for _ in InputReader(file, name=str(path)).text())


@contextmanager
def _unreadable_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorpusError(
            f"cannot be read: {error.strerror}", place=path, remedy="check its name"
        ) from error


def student_sections() -> dict[str, dict[str, Any]]:
    """The settings of the recipe `student-tiny` that define a student: its shape and beam size."""
    recipe = load_recipe("student-tiny")
    keys = ("d_model", "num_heads", "d_ffn", "encoder_layers", "decoder_layers", "norm")
    model = recipe.model.model_dump(mode="json")
    return {
        "model": {key: model[key] for key in keys},
        "search": {"beam_size": recipe.search.beam_size},
    }


def is_small(teacher: Recipe, student: Recipe) -> bool:
    """Whether a teacher's decoder does hardly more work per token than its student's.

    An encoder works on all tokens at once, so the decoder takes most of the time.
    """
    return _decoder_weights(teacher) < _WORTH * _decoder_weights(student)


def _decoder_weights(recipe: Recipe) -> int:
    """Weights of the decoder's matrices that each output token uses, the output matrix included."""
    model, pieces = recipe.model, recipe.corpus.subword.vocab_size
    inner = model.d_ffn * (3 if model.activation == "swiglu" else 2)
    return model.d_model * (model.decoder_layers * (6 * model.d_model + inner) + pieces)
