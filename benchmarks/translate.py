"""Sentences per second: `translate`, our PyTorch search, CTranslate2 by hand, and other toolkits.

All translate the Multi30k test set (2016) from English to German with the same weights (those of
--run), beam size and length penalty, on the same number of threads. Each is a process of its own
(translate_engines/), so that idle threads of one cannot hold up another; they take turns round by
round, each waiting while another works, and ratios are medians over the rounds. `translate` goes
from text to text, the others from ids to ids. Other toolkits get sentences sorted by length, in
batches of 64; Hugging Face the batch size that suits it best.

`translate` and CTranslate2 by hand do it with weights of eight bits, too. That is another model, so
BLEU is printed for each.

Then the whole command, from the start of a process to its end: `dragoman translate` on a file, and
each engine that is started, loads its model and translates once.

    python benchmarks/translate.py --work /tmp/translate --run runs/multi30k-tiny-... --peers eole
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.corpus.normalize import normalize
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.distributed.world import join_world
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.validate import read_lines
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.formats.trained_model import TranslationModel
from dragoman.model.transformer import Transformer
from dragoman.model.weights_form import WeightsForm
from dragoman.recipe.recipe import load_recipe
from dragoman.recipe.run_directory import RunDirectory

REPOSITORY = Path(__file__).resolve().parents[1]
ENGINES = REPOSITORY / "benchmarks/translate_engines"
PEERS = ("eole", "fairseq", "joeynmt")
OURS, INT8 = "dragoman", "dragoman, int8"
BATCH = 64
REST_S = 0.5
"""Between two engines: threads that wait for work spin for a while first."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A script of translate_engines/ and its batch size; 0: its own choice.

    bundle: the export that it reads if that is CTranslate2's.
    """

    name: str
    script: str
    batch_size: int
    python: str = sys.executable
    bundle: str = "bundle"


@dataclass(frozen=True, slots=True)
class Setting:
    """The input of all engines."""

    directory: Path
    beam: int
    alpha: float
    threads: int

    def command(self, engine: Engine) -> list[str]:
        numbers = [self.beam, self.alpha, engine.batch_size, self.threads]
        script = ENGINES / f"with_{engine.script}.py"
        chosen = [str(self.directory), *map(str, numbers), "--bundle", engine.bundle]
        return [engine.python, str(script), *chosen]

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"OMP_NUM_THREADS": str(self.threads)}


@dataclass(frozen=True, slots=True)
class Given:
    """The data to read and judge the translations."""

    subword: Vocabulary
    lowercase: bool
    references: Sequence[str]


def engines(peers: Sequence[str]) -> list[Engine]:
    """Ours first."""
    home = Path(os.environ.get("PEERS_HOME", "."))
    return [
        Engine(OURS, "dragoman", BATCH),
        Engine(INT8, "dragoman", BATCH, bundle="int8"),
        Engine("CTranslate2 int8 by hand, 64", "ctranslate2", BATCH, bundle="int8"),
        Engine("CTranslate2 by hand, batch 64", "ctranslate2", BATCH),
        Engine("CTranslate2 by hand, batch 1", "ctranslate2", 1),
        Engine("dragoman, PyTorch search", "dragoman_search", BATCH),
        Engine("Hugging Face", "huggingface", 0),
        *(Engine(name, name, BATCH, str(home / name / "bin/python")) for name in peers),
    ]


def write_for_engines(
    run: Path, checkpoint: str, lines: Sequence[str], directory: Path
) -> tuple[Vocabulary, bool]:
    """The model in every engine's format, and the sources; our subwords, and whether lower case."""
    with join_world() as world:
        opened = RunDirectory.open(run)
        for request in (
            Request(to="ctranslate2", output=directory / "bundle", checkpoint=checkpoint),
            Request(
                to="ctranslate2",
                output=directory / "int8",
                checkpoint=checkpoint,
                quantization="int8",
            ),
            Request(to="huggingface", output=directory / "huggingface", checkpoint=checkpoint),
        ):
            export(opened, request, world)
        trained = TranslationModel.load(opened, [checkpoint], world)
    search = load_recipe(run / "recipe.toml").search
    subword, model = trained.subwords[0], trained.models[0]
    sources = subword.encode([normalize(line, lowercase=trained.lowercase) for line in lines])
    given = {
        "run": str(run),
        "checkpoint": checkpoint,
        "lines": lines,
        "sources": sources,
        "pieces": [subword.pieces(source) for source in sources],
        "vocabulary": subword.all_pieces(),
        "vocab_size": len(model.embeddings.target_matrix),
        "shape": model.config.model_dump(),
        "length_limit": [search.max_length_ratio, search.max_length_extra],
    }
    (directory / "for-engines.json").write_text(json.dumps(given), encoding="utf-8")
    (directory / "lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_weights(model, directory / "fairseq-names.npz")
    return subword, trained.lowercase


def write_weights(model: Transformer, file: Path) -> None:
    """Under the names of fairseq, which Hugging Face has kept; the shared matrix once."""
    kept = WeightsForm("m2m_100").to_file(dict(model.named_parameters()))
    arrays = {name: one.numpy() for name, one in kept.items()}
    np.savez(file, allow_pickle=False, **arrays)


class Running:
    """An engine that is warm and waits for its turn; it times itself."""

    def __init__(self, process: subprocess.Popen[str], word: str) -> None:
        self._process = process
        self.word = word

    def ask(self) -> tuple[float, list[Any]]:
        """(Seconds, translations)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        spent_s, found = json.loads(self._process.stdout.readline())
        return spent_s, found


@contextmanager
def started(engine: Engine, setting: Setting) -> Iterator[Running]:
    log_file = setting.directory / f"{engine.script}-{engine.bundle}.log"
    with (
        log_file.open("w") as log,
        subprocess.Popen(
            setting.command(engine), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, env=setting.environment,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("ready"):
            if not line:
                raise SystemExit(f"{engine.name} has ended: see {log_file}")
        yield Running(process, line.removeprefix("ready").strip())
        process.stdin.close()


def steady(setting: Setting, sides: Sequence[Engine], given: Given, rounds: int) -> None:
    """Time all warm engines round by round and print them, and how good their translations are."""
    spent: dict[str, list[float]] = {}
    texts: dict[str, list[str]] = {}
    with ExitStack() as stack:
        running = {one: stack.enter_context(started(one, setting)) for one in sides}
        for _ in range(rounds):
            for engine, process in running.items():
                time.sleep(REST_S)
                name = f"{engine.name} {process.word}".strip()
                seconds, found = process.ask()
                spent.setdefault(name, []).append(seconds)
                texts[name] = found if isinstance(found[0], str) else given.subword.decode(found)
    notes = {}
    for name, found in texts.items():
        equal = sum(a == b for a, b in zip(texts[OURS], found, strict=True))
        score = bleu(found, given.references, lowercase=given.lowercase)
        notes[name] = f"{equal:4} of {len(found)} equal ours, BLEU {score.value:.2f}"
    show(spent, len(given.references), notes)


def whole(setting: Setting, sides: Sequence[Engine], num_lines: int, rounds: int) -> None:
    """Time whole processes round by round and print them."""
    output = setting.directory / "lines.out"
    commands = {
        one.name: [*setting.command(one), "--once"]
        if one.script != "dragoman"
        else [
            *(
                sys.executable,
                "-m",
                "dragoman",
                "translate",
                str(setting.directory / one.bundle),
            ),
            *("--input", str(setting.directory / "lines.txt"), "--output", str(output)),
            *("--threads", str(setting.threads), "--set", f"search.beam_size={setting.beam}"),
        ]
        for one in sides
    }
    spent: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            output.unlink(missing_ok=True)
            time.sleep(REST_S)
            begun = time.perf_counter()
            subprocess.run(command, check=True, env=setting.environment, capture_output=True)
            spent[name].append(time.perf_counter() - begun)
    show(spent, num_lines, {})


def show(spent: dict[str, list[float]], num_lines: int, notes: dict[str, str]) -> None:
    """A line an engine: its rate, and how many times as fast we are, as we are and in int8."""
    print(f"  {'':30} sentences/s   {'dragoman is':22} {'dragoman int8 is':22}")
    for name, seconds in spent.items():
        rate = num_lines / statistics.median(seconds)
        columns = [f"{_times(spent[side], seconds):22}" for side in (OURS, INT8)]
        print(f"  {name:30} {rate:11.1f}   {' '.join(columns)} {notes.get(name, '')}".rstrip())
    sys.stdout.flush()


def _times(ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):5.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    shared = os.environ.get("DRAGOMAN_SHARED", REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=shared, help="folder that holds multi30k/")
    parser.add_argument("--work", type=Path, required=True, help="for exports and outputs")
    parser.add_argument("--run", type=Path, required=True, help="whose model is taken")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole-rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=[], help="below PEERS_HOME")
    parser.add_argument("--beams", type=int, nargs="+", default=[5, 1])
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    lines = read_lines(arguments.data / "multi30k/test2016.en")[: arguments.sentences]
    references = read_lines(arguments.data / "multi30k/test2016.de")[: arguments.sentences]
    prepared = write_for_engines(arguments.run, arguments.checkpoint, lines, arguments.work)
    given = Given(*prepared, references)
    alpha = load_recipe(arguments.run / "recipe.toml").search.length_penalty_alpha
    print(f"{len(lines)} sentences, {arguments.threads} threads, {arguments.rounds} rounds")
    sides = engines(arguments.peers)
    for beam in arguments.beams:
        setting = Setting(arguments.work, beam, alpha, arguments.threads)
        print(f"\nbeam {beam}, warm" if beam > 1 else "\ngreedy, warm")
        steady(setting, sides, given, arguments.rounds)
        if arguments.whole_rounds:
            print(f"beam {beam}, whole command" if beam > 1 else "greedy, whole command")
            whole(setting, sides, len(lines), arguments.whole_rounds)


if __name__ == "__main__":
    main()
