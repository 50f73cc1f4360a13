"""`dragoman translate` from text to text, warm: what its command does between start and end."""

from __future__ import annotations

from collections.abc import Sequence

from engine import Found, Task, Translate, run

from dragoman.formats.bundle import Bundle
from dragoman.inference.translator import translator_of


def make(task: Task) -> tuple[Translate, str]:
    bundle = Bundle.open(task.directory / task.bundle)
    translator = translator_of(bundle, threads=task.threads)
    search = bundle.recipe.search
    search = search.model_copy(update={"beam_size": task.beam, "length_penalty_alpha": task.alpha})
    lines = task.given["lines"]

    def translate(numbers: Sequence[int]) -> Found:
        texts = [lines[number] for number in numbers]
        found = translator.stream(texts, search, text_format="line", scored=False)
        return [best.text for group in found for best, *_ in group]

    return translate, ""


if __name__ == "__main__":
    run(make)
