"""CTranslate2 as somebody drives it who has only its documentation, in one call or one by one.

BATCH_SIZE 1: a call for each sentence, its cores on that one. More: all in one call, in batches of
so many, one batch on each core, which suits so small a model better than one batch on all.
"""

from __future__ import annotations

from collections.abc import Sequence

import ctranslate2
from engine import Found, Task, Translate, run


def make(task: Task) -> tuple[Translate, str]:
    one_by_one = task.batch_size == 1
    translator = ctranslate2.Translator(
        str(task.directory / task.bundle),
        inter_threads=1 if one_by_one else task.threads,
        intra_threads=task.threads if one_by_one else 1,
    )
    pieces = task.given["pieces"]
    ids = {piece: number for number, piece in enumerate(task.given["vocabulary"])}

    def translate(numbers: Sequence[int]) -> Found:
        rows = [pieces[number] for number in numbers]
        calls = [[row] for row in rows] if one_by_one else [rows]
        results = [
            one
            for call in calls
            for one in translator.translate_batch(
                call,
                beam_size=task.beam,
                length_penalty=task.alpha,
                max_batch_size=task.batch_size,
            )
        ]
        return [[ids[piece] for piece in one.hypotheses[0]] for one in results]

    return translate, ""


if __name__ == "__main__":
    run(make)
