"""Whether every export translates like our own search: all of Multi30k test2016.

For each format: lines identical to those of our search, BLEU and its distance from ours.

    python benchmarks/exports.py --run runs/multi30k-tiny-...
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from dragoman.corpus.normalize import normalize
from dragoman.distributed.world import join_world
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.validate import read_lines
from dragoman.formats.bundle import Bundle
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.formats.huggingface import translate_with_huggingface
from dragoman.formats.kinds import Quantization
from dragoman.formats.load import load_translation_model
from dragoman.formats.onnx import translate_with_onnx
from dragoman.formats.trained_model import TranslationModel, checkpoint_path
from dragoman.inference.translator import translator_of
from dragoman.model.config import SearchConfig
from dragoman.recipe.run_directory import RunDirectory

REPOSITORY = Path(__file__).resolve().parents[1]
QUANTIZATIONS: tuple[Quantization, ...] = ("float32", "float16", "int8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    shared = os.environ.get("DRAGOMAN_SHARED", REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=shared, help="folder that holds multi30k/")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--checkpoint", default="best")
    return parser.parse_args()


def main() -> None:
    arguments = _options()
    run = RunDirectory.open(arguments.run)
    recipe = run.recipe()
    lowercase = recipe.corpus.lowercase
    texts, references = (
        read_lines(arguments.data / f"multi30k/test2016.{language}") for language in ("en", "de")
    )
    references = [normalize(line) for line in references]

    def report(name: str, found: list[str], own: list[str], size_bytes: int) -> None:
        same = sum(a == b for a, b in zip(found, own, strict=True))
        score = bleu(found, references, lowercase=lowercase).value
        away = score - bleu(own, references, lowercase=lowercase).value
        print(
            f"{name:24} {same / len(own):7.1%} identical   BLEU {score:6.2f} ({away:+.2f})"
            f"   {size_bytes / 1e6:7.1f} MB",
            flush=True,
        )

    with join_world() as world, tempfile.TemporaryDirectory() as name:
        # Fixed here: the run may be training, and its best checkpoint another one in a minute.
        checkpoint = str(checkpoint_path(run, arguments.checkpoint, recipe))
        model = TranslationModel.load(run, [checkpoint], world)

        def written(request: Request) -> tuple[Path, int]:
            done = export(run, request, world)
            return done.path, done.size_bytes

        def own(search: SearchConfig) -> list[str]:
            return model.translate(texts, search)

        ours = own(recipe.search)
        print(f"{run.path.name}, {Path(checkpoint).name}: {len(texts)} sentences, {recipe.search}")
        print(f"our search: {bleu(ours, references, lowercase=lowercase)}")
        path, size = written(
            Request(to="huggingface", output=Path(name, "hf"), checkpoint=checkpoint)
        )
        read = load_translation_model(path, ["best"], world)
        report("Hugging Face, read by us", read.translate(texts, recipe.search), ours, size)
        found_there = translate_with_huggingface(path, texts, recipe.search)
        report("Hugging Face", found_there, ours, size)
        for bits in QUANTIZATIONS:
            output = Path(name, bits)
            request = Request(
                to="ctranslate2", output=output, quantization=bits, checkpoint=checkpoint
            )
            path, size = written(request)
            translator = translator_of(Bundle.open(path), threads=None)
            found = translator.translate(texts, recipe.search, text_format="line")
            report(f"CTranslate2 {bits}", [best.text for best, *_ in found], ours, size)
        path, size = written(Request(to="onnx", output=Path(name, "onnx"), checkpoint=checkpoint))
        greedy = recipe.search.model_copy(update={"beam_size": 1})
        ids = model.subwords[0].encode([normalize(text, lowercase=lowercase) for text in texts])
        found_there = model.subwords[1].decode(translate_with_onnx(path, ids, greedy))
        report("ONNX, greedy", found_there, own(greedy), size)


if __name__ == "__main__":
    main()
