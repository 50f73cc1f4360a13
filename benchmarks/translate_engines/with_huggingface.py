"""Hugging Face's `generate` over the exported model, sources sorted by length.

It is given the batch size that suits it best, and in beam search early_stopping=True, its quickest.
"""

from __future__ import annotations

import time
from functools import partial

from engine import EOS, PAD, Task, Translate, in_batches, padded, run_torch
from transformers import AutoModelForSeq2SeqLM

BATCHES = (16, 32, 64, 128, 256)
SAMPLE = 200


def make(task: Task) -> tuple[Translate, str]:
    model = AutoModelForSeq2SeqLM.from_pretrained(task.directory / "huggingface").eval()

    def search(sources: list[list[int]]) -> list[list[int]]:
        ids, lengths = padded(sources)
        found: list[list[int]] = model.generate(
            ids,
            attention_mask=(ids != PAD).long(),
            num_beams=task.beam,
            length_penalty=task.alpha,
            early_stopping=task.beam > 1,
            max_new_tokens=task.length_limit(max(lengths) - 1),
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )[:, 1:].tolist()
        return found

    sizes = {size: in_batches(task, search, size) for size in BATCHES}
    best = task.batch_size or min(sizes, key=partial(seconds, task, sizes))
    return in_batches(task, search, best), f"batch {best}"


def seconds(task: Task, sizes: dict[int, Translate], size: int) -> float:
    numbers = range(0, len(task.sources), -(-len(task.sources) // SAMPLE))
    sizes[size](numbers[:size])
    started = time.perf_counter()
    sizes[size](numbers)
    return time.perf_counter() - started


if __name__ == "__main__":
    run_torch(make)
