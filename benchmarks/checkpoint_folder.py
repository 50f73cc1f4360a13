"""Whether other programs translate with a checkpoint, as it lies in a run, as our search does.

    benchmarks/checkpoint_folder.py --multi30k DIR --scratch DIR [--steps 600]
        [--cases pre-joint ...] [--record]

Trains a small model of each case on Multi30k, one after the other, and translates test2016 in three
ways: by our own search, by transformers (`AutoTokenizer` and `AutoModelForSeq2SeqLM` of the
checkpoint's folder, with its own settings), and by CTranslate2 after its own converter has read the
folder, if that knows the architecture: it has none for FSMT, as post-norm models are there. Prints
how many lines are equal and BLEU of each. Our search has the length penalty of the folder there;
the recipe's own, which transformers lacks, is compared as well. Several runs of one scratch folder
train nothing twice.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import ctranslate2
import transformers

from dragoman.base.files import write_whole
from dragoman.corpus.directions import language_token, with_token
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.distributed.world import join_world
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.validate import read_lines
from dragoman.formats.trained_model import TranslationModel, checkpoint_path
from dragoman.model.config import SearchConfig, length_limit, power_search
from dragoman.recipe.run_directory import RunDirectory
from results import record, this_commit, this_machine

RECIPE: Final = """
name = "{name}"
[corpus]
source_language = "en"
target_language = "de"
train = [{train}]
valid = [{valid}]
[corpus.subword]
vocab_size = 2000
joint = {joint}
[data]
batch_tokens = 1024
[model]
d_model = 64
num_heads = 4
d_ffn = 256
encoder_layers = 2
decoder_layers = 2
norm = "{norm}"
tied_embeddings = "{tied}"
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = 5e-3
warmup_steps = {warmup}
[optimizer]
beta2 = 0.98
[train]
max_steps = {steps}
validate_every_steps = {steps}
validate_at_start = false
[checkpoint]
every_steps = {steps}
[evaluate]
bleu_pairs = 50
train_slice_pairs = 0
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the comparison; targets: the languages it translates into."""

    words: str
    norm: str
    tied: str
    targets: tuple[str, ...] = ("de",)

    @property
    def joint(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.tied == "all"


CASES: Final = {
    "pre-joint": Case("pre-norm, joint vocabulary", "pre", "all"),
    "post-joint": Case("post-norm, joint vocabulary", "post", "all"),
    "post-separate": Case("post-norm, two vocabularies", "post", "decoder"),
    "pre-languages": Case("pre-norm, two target languages", "pre", "all", ("de", "fr")),
}
ROWS: Final = 50
"""Lines of a batch in transformers."""
LEAST_EQUAL: Final = 990


def main() -> None:
    """Train, translate and print; exit with the shell's code of the first training that fails."""
    options = _options()
    options.scratch.mkdir(parents=True, exist_ok=True)
    processor, instructions = this_machine()
    print(f"{processor}, {instructions}; {this_commit()}; {datetime.now(UTC).date()}")
    print(f"transformers {transformers.__version__}, CTranslate2 {ctranslate2.__version__}")
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    for name in options.cases:
        _compare(CASES[name], _trained(name, options), options)


def _compare(case: Case, run: RunDirectory, options: argparse.Namespace) -> None:
    """Print the lines of a case, one for each program."""
    recipe = run.recipe()
    folder = checkpoint_path(run, "best", recipe)
    sources, references = _test(case, options.multi30k)
    search = power_search(recipe.search, Manifest.load(run.path).train.mean_target_tokens)
    with join_world() as world:
        model = TranslationModel.load(run, ["best"], world)
        ours = model.translate(sources, search)
        with_own_penalty = model.translate(sources, recipe.search)
    print(f"{case.words}: {folder}")
    for program, found in (
        ("our search", ours),
        ("our search, recipe's penalty", with_own_penalty),
        ("transformers", _by_transformers(folder, sources, search)),
        *([("CTranslate2", _by_ctranslate2(folder, sources))] if case.norm == "pre" else []),
    ):
        equal = sum(a.strip() == b.strip() for a, b in zip(ours, found, strict=True))
        score = bleu(found, references).value
        print(f"  {program:30} {equal:6,} of {len(ours):,} equal   BLEU {score:.2f}", flush=True)
        if options.record and program in ("transformers", "CTranslate2"):
            record(
                "checkpoint_folder",
                f"{case.words}: {program}",
                equal,
                "of",
                out_of=len(ours),
                at_least=LEAST_EQUAL,
                command="benchmarks/checkpoint_folder.py ...",
                note=f"{score:.1f} BLEU",
            )


def _by_transformers(folder: Path, sources: Sequence[str], search: SearchConfig) -> list[str]:
    """Translations as a user of transformers makes them.

    search: ours, whose limit of a batch's length spares the few translations that never end.
    """
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.generation_config.max_length = None  # it would say which limit counts
    found: list[str] = []
    for start in range(0, len(sources), ROWS):
        texts = [*sources[start : start + ROWS]]
        rows = tokenizer(texts, return_tensors="pt", padding=True)
        limit = length_limit(rows["input_ids"].shape[1] - 1, search)
        ids = model.generate(**rows, max_new_tokens=limit)
        found += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return found


def _by_ctranslate2(folder: Path, sources: Sequence[str]) -> list[str]:
    """Translations by CTranslate2 with the form that its converter makes of the folder."""
    from ctranslate2.converters import TransformersConverter

    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    settings = transformers.GenerationConfig.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as scratch:
        converted = Path(scratch, "converted")
        TransformersConverter(str(folder)).convert(str(converted))
        translator = ctranslate2.Translator(str(converted))
        results = translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]) for text in sources],
            beam_size=settings.num_beams,
            length_penalty=settings.length_penalty,
            max_decoding_length=settings.max_new_tokens,
            max_batch_size=ROWS,
        )
    rows = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    found: list[str] = tokenizer.batch_decode(rows, skip_special_tokens=True)
    return found


def _test(case: Case, multi30k: Path) -> tuple[list[str], list[str]]:
    """test2016 with its references; of several targets, each line is for one of them, in turn."""
    sources, references = [], []
    sides = {target: read_lines(multi30k / f"test2016.{target}") for target in case.targets}
    english = read_lines(multi30k / "test2016.en")
    for row, (line, target) in enumerate(zip(english, cycle(sides), strict=False)):
        sources.append(with_token(language_token(target), line) if len(sides) > 1 else line)
        references.append(normalize(sides[target][row]))
    return sources, references


def _trained(name: str, options: argparse.Namespace) -> RunDirectory:
    """The run of a case, trained to its end."""
    case, runs = CASES[name], options.scratch / "runs"
    text = RECIPE.format(
        name=name,
        train=", ".join(_entries(case, options.multi30k, "train")),
        valid=", ".join(_entries(case, options.multi30k, "valid")),
        joint=str(case.joint).lower(),
        norm=case.norm,
        tied=case.tied,
        steps=options.steps,
        warmup=max(1, options.steps // 5),
    )
    recipe = options.scratch / f"{name}.toml"
    write_whole(recipe, text)
    command = [sys.executable, "-m", "dragoman", "train", str(recipe), "--runs", str(runs)]
    subprocess.run([*command, "--ranks", "1"], check=True)
    newest: Path = max(runs.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
    return RunDirectory.open(newest)


def _entries(case: Case, multi30k: Path, split: str) -> Iterator[str]:
    """The entries of a recipe for the text of a split, one for each target language."""
    folder = multi30k.resolve()
    for target in case.targets:
        files = f'source = "{folder}/{split}.en", target = "{folder}/{split}.{target}"'
        yield f'{{{files}, target_language = "{target}"}}'


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--multi30k", type=Path, required=True, help="train.en, test2016.de ...")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--record", action="store_true", help="add the figures to results.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
