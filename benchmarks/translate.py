"""Sentences per second: ours over CTranslate2 and over PyTorch, CTranslate2 by hand, Hugging Face.

All translate the Multi30k test set (2016) from English to German with the same weights, beam size
and length penalty on the same threads, interleaved round by round; ratios are medians over the
rounds. CTranslate2 is driven by hand as its documentation does it: one sentence a call, and all in
one call in batches of 64. Hugging Face is given sentences sorted by length and the batch size that
suits it best (in beam search with early_stopping=True, its quickest). With --peers, fairseq and
JoeyNMT search with the same weights in processes of their own (translate_peers/), sorted by
length, in batches of 64; each waits while another is measured.

The model is that of --run, or is trained here for a few minutes on first use and kept in --work:
random weights do not end their sentences.

    python benchmarks/translate.py --work /tmp/translate [--run runs/multi30k-tiny-...]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.normalize import normalize
from dragoman.corpus.special_ids import EOS, PAD
from dragoman.corpus.subword import Subword, train_subword
from dragoman.data.batch import make_batch
from dragoman.distributed.world import join_world
from dragoman.evaluate.metrics import bleu
from dragoman.export.ctranslate2 import write_ctranslate2
from dragoman.export.ctranslate2_engine import CTranslate2Engine
from dragoman.export.huggingface import to_huggingface
from dragoman.model.config import ModelConfig, SearchConfig
from dragoman.model.search import translate_batch
from dragoman.model.transformer import Transformer
from dragoman.run_directory import RunDirectory
from dragoman.translation import TranslationModel

REPOSITORY = Path(__file__).resolve().parents[1]
VOCAB_SIZE = 8000
SMALL = ModelConfig(d_model=256, num_heads=4, d_ffn=1024, encoder_layers=3, decoder_layers=3)
HF_BATCHES = (16, 32, 64, 128)

PEERS = ("fairseq", "joeynmt")
PEER_BATCH = 64

Translate = Callable[[Sequence[list[int]]], list[list[int]]]
Timed = Callable[[Sequence[list[int]]], tuple[float, list[list[int]]]]


def read(data: Path, split: str, language: str) -> list[str]:
    text = (data / f"multi30k/{split}.{language}").read_text("utf-8")
    return normalize(text.removesuffix("\n")).split("\n")


def subword_model(data: Path, work: Path) -> Subword:
    path = work / "subword.model"
    if not path.exists():
        texts = [read(data, "train", language) for language in ("en", "de")]
        path.write_bytes(train_subword(texts, SubwordConfig(vocab_size=VOCAB_SIZE)))
    return Subword.load(path)


def trained_model(data: Path, work: Path, subword: Subword, steps: int) -> Transformer:
    """Weights from --work, or trained on the spot on batches of 100 pairs of like length."""
    torch.manual_seed(1)
    model = Transformer(SMALL, source_vocab_size=VOCAB_SIZE, target_vocab_size=VOCAB_SIZE)
    path = work / f"model-{steps}.safetensors"
    if path.exists():
        model.load_state_dict(load_file(path))
        return model.eval()
    sources, targets = (subword.encode(read(data, "train", lang)) for lang in ("en", "de"))
    order = sorted(range(len(sources)), key=lambda pair: len(targets[pair]))
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    rng = np.random.default_rng(1)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1.5e-3 * min(step / 150, (150 / step) ** 0.5)
        start = int(rng.integers(0, len(order) - 100))
        sides = [[side[row] for row in order[start : start + 100]] for side in (sources, targets)]
        flat = [np.concatenate([np.array(row) for row in side]) for side in sides]
        lengths = [np.array([len(row) for row in side]) for side in sides]
        batch = make_batch(flat[0], lengths[0], flat[1], lengths[1])
        optimizer.zero_grad()
        loss = model(batch)
        (loss.loss / batch.num_target_tokens).backward()
        optimizer.step()
        if step % 50 == 0:
            nll = loss.nll.item() / batch.num_target_tokens
            print(f"training: step {step} of {steps}, {nll:.2f} nats", flush=True)
    save_file(model.state_dict(), path)
    return model.eval()


def ours(model: Transformer, config: SearchConfig, sources: Sequence[list[int]]) -> list[list[int]]:
    return [found[0].ids for found in translate_batch([model], sources, config)]


def theirs(
    model: Any,
    config: SearchConfig,
    sources: Sequence[list[int]],
    *,
    batch_size: int,
    early_stopping: bool | str,
) -> list[list[int]]:
    order = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    results: list[list[int]] = [[] for _ in sources]
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        longest = len(sources[rows[0]])
        ids = torch.tensor(
            [[*sources[row], EOS] + [PAD] * (longest - len(sources[row])) for row in rows]
        )
        with torch.inference_mode():
            answer = model.generate(
                ids,
                attention_mask=(ids != PAD).long(),
                num_beams=config.beam_size,
                length_penalty=config.length_penalty_alpha,
                early_stopping=early_stopping if config.beam_size > 1 else False,
                max_new_tokens=int(config.max_length_ratio * longest) + config.max_length_extra,
                do_sample=False,
            )
        for row, found in zip(rows, answer[:, 1:].tolist(), strict=True):
            results[row] = found[: found.index(EOS)] if EOS in found else found
    return results


def over_ctranslate2(
    engine: CTranslate2Engine, config: SearchConfig, sources: Sequence[list[int]]
) -> list[list[int]]:
    return [found[0].ids for found in engine.search(sources, config)]


def by_hand(
    directory: Path, subword: Subword, config: SearchConfig, threads: int, batch_size: int
) -> Translate:
    """CTranslate2 as somebody drives it who has only its documentation."""
    translator = ctranslate2.Translator(str(directory), inter_threads=1, intra_threads=threads)
    ids = {piece: number for number, piece in enumerate(subword.all_pieces())}

    def translate(sources: Sequence[list[int]]) -> list[list[int]]:
        rows = [subword.pieces(source) for source in sources]
        options = {
            "beam_size": config.beam_size,
            "length_penalty": config.length_penalty_alpha,
            "max_batch_size": batch_size,
        }
        calls = [rows] if batch_size > 1 else [[row] for row in rows]
        results = [one for call in calls for one in translator.translate_batch(call, **options)]
        return [[ids[piece] for piece in one.hypotheses[0]] for one in results]

    return translate


def write_for_peers(
    model: Transformer, sources: Sequence[list[int]], config: SearchConfig, work: Path
) -> Path:
    """Weights under the names of fairseq, which Hugging Face has kept, shape, and sources."""
    shape = model.config
    if shape.activation != "relu" or shape.tied_embeddings != "all":
        raise SystemExit("--peers: only for models with ReLU and one shared matrix")
    directory = work / "for-peers"
    directory.mkdir(exist_ok=True)
    state = to_huggingface(model).state_dict()
    kept = {name: weight.numpy() for name, weight in state.items() if "embed_positions" not in name}
    kept.pop("lm_head.weight", None)
    if "model.shared.weight" in kept:
        kept = {name: weight for name, weight in kept.items() if "embed_tokens" not in name}
    np.savez(directory / "weights.npz", allow_pickle=False, **kept)
    described = shape.model_dump() | {
        "vocab_size": len(model.embeddings.target_matrix),
        "length_limit": [config.max_length_ratio, config.max_length_extra],
    }
    (directory / "model.json").write_text(json.dumps(described))
    (directory / "sources.json").write_text(json.dumps([*sources]))
    return directory


@contextmanager
def peer(name: str, directory: Path, config: SearchConfig, threads: int) -> Iterator[Timed]:
    """Another toolkit in a process of its own; it times itself, without the way to and fro."""
    home = Path(os.environ["PEERS_HOME"])
    script = REPOSITORY / f"benchmarks/translate_peers/with_{name}.py"
    numbers = [config.beam_size, config.length_penalty_alpha, PEER_BATCH, threads]
    command = [str(home / name / "bin/python"), str(script), str(directory), *map(str, numbers)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    with (
        (directory / f"{name}.log").open("w") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=environment,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        while (line := stdout.readline()) != "ready\n":
            if not line:
                raise SystemExit(f"{name} has ended: see {directory / f'{name}.log'}")

        def ask(sources: Sequence[list[int]]) -> tuple[float, list[list[int]]]:
            stdin.write("\n")
            stdin.flush()
            spent_s, found = json.loads(stdout.readline())
            return len(sources) / spent_s, found

        yield ask
        stdin.close()


def timed(translate: Translate, sources: Sequence[list[int]]) -> tuple[float, list[list[int]]]:
    """(Sentences per second, translations)."""
    start = time.perf_counter()
    results = translate(sources)
    return len(sources) / (time.perf_counter() - start), results


def compare(
    model: Transformer,
    subword: Subword,
    sources: Sequence[list[int]],
    *,
    beam_size: int,
    rounds: int,
    threads: int,
    directory: Path,
    peers: Sequence[str],
) -> list[list[int]]:
    """Time all sides round by round and print them; returns our translations."""
    config = SearchConfig(beam_size=beam_size, length_penalty="power", length_penalty_alpha=0.6)
    hugging_face = partial(theirs, to_huggingface(model), config, early_stopping=True)
    sample = sources[:: -(-len(sources) // 200)]
    rates = {size: timed(partial(hugging_face, batch_size=size), sample)[0] for size in HF_BATCHES}
    best = max(rates, key=lambda size: rates[size])
    engine = CTranslate2Engine(directory, (subword, subword), threads=threads)
    sides: dict[str, Translate] = {
        "dragoman": partial(over_ctranslate2, engine, config),
        "CTranslate2 by hand, batch 64": by_hand(directory, subword, config, threads, 64),
        "CTranslate2 by hand, batch 1": by_hand(directory, subword, config, threads, 1),
        "dragoman, PyTorch search": partial(ours, model, config),
        f"Hugging Face, batch {best}": partial(hugging_face, batch_size=best),
    }
    for translate in sides.values():
        translate(sample[:50])
    all_sides: dict[str, Timed] = {name: partial(timed, side) for name, side in sides.items()}
    outputs: dict[str, list[list[int]]] = {}
    with ExitStack() as stack:
        given = write_for_peers(model, sources, config, directory) if peers else directory
        for name in peers:
            all_sides[f"{name}, batch {PEER_BATCH}"] = stack.enter_context(
                peer(name, given, config, threads)
            )
        measured: dict[str, list[float]] = {name: [] for name in all_sides}
        for _ in range(rounds):
            for name, side in all_sides.items():
                rate, outputs[name] = side(sources)
                measured[name].append(rate)
    print(f"\nbeam {beam_size}" if beam_size > 1 else "\ngreedy")
    for name, found in measured.items():
        ratio = statistics.median(a / b for a, b in zip(measured["dragoman"], found, strict=True))
        same = sum(a == b for a, b in zip(outputs["dragoman"], outputs[name], strict=True))
        print(
            f"  {name:32} {statistics.median(found):7.1f} sentences/s"
            f"   dragoman is {ratio:4.2f} x   {same} of {len(sources)} translations equal ours"
        )
    return outputs["dragoman"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    shared = os.environ.get("DRAGOMAN_SHARED", REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=shared, help="folder that holds multi30k/")
    parser.add_argument("--work", type=Path, required=True, help="where the model is kept")
    parser.add_argument("--run", type=Path, help="a run whose model is taken")
    parser.add_argument("--checkpoint", default="best")
    parser.add_argument("--train-steps", type=int, default=600)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=[], help="below the folder PEERS_HOME"
    )
    parser.add_argument("--beams", type=int, nargs="+", default=[5, 1])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    lowercase = False
    if arguments.run is not None:
        with join_world() as world:
            run = RunDirectory.open(arguments.run)
            trained = TranslationModel.load(run, [arguments.checkpoint], world)
        model, subword, lowercase = trained.models[0], trained.subwords[0], trained.lowercase
    else:
        subword = subword_model(arguments.data, arguments.work)
        model = trained_model(arguments.data, arguments.work, subword, arguments.train_steps)
    directory = arguments.work / "ctranslate2"
    directory.mkdir(exist_ok=True)
    write_ctranslate2(model, (subword, subword), directory, quantization="float32")
    lines = read(arguments.data, "test2016", "en")[: arguments.sentences]
    references = read(arguments.data, "test2016", "de")[: arguments.sentences]
    sources = subword.encode([normalize(line, lowercase=lowercase) for line in lines])
    print(f"{len(lines)} sentences, {arguments.threads} threads, {arguments.rounds} rounds")
    for beam_size in arguments.beams:
        found = compare(
            model,
            subword,
            sources,
            beam_size=beam_size,
            rounds=arguments.rounds,
            threads=arguments.threads,
            directory=directory,
            peers=arguments.peers,
        )
        print(f"  ours: {bleu(subword.decode(found), references, lowercase=lowercase)}")


if __name__ == "__main__":
    main()
