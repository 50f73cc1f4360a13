"""Exports and recipes of somebody who means harm: one line, at once, with little memory."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor

from dragoman.base.errors import CheckpointError
from dragoman.base.line_files import input_lines
from dragoman.cli import main
from dragoman.formats.bundle import Bundle
from dragoman.training.checkpoint import read_weights
from hostile import (
    SMALL_RUN,
    change_header,
    change_weights,
    redo_digests,
    redo_vocabularies,
    whole_export,
)

EMBEDDING = "model.shared.weight"
POSITIONS = "model.encoder.embed_positions.weight"
Spoil = Callable[[Path], object]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return copytree(whole_export(), tmp_path / "bundle")


@pytest.fixture
def for_ctranslate2(bundle: Path, tmp_path: Path) -> Path:
    """The same for CTranslate2, written by the export's own writer."""
    from dragoman.distributed.world import join_world
    from dragoman.formats.ctranslate2 import write_ctranslate2
    from dragoman.formats.load import load_translation_model

    path = copytree(bundle, tmp_path / "ct2")
    (path / "model.safetensors").unlink()
    with join_world() as world:
        model = load_translation_model(bundle, ["best"], world)
        write_ctranslate2(model.models[0], model.subwords, path, quantization="float32")
    change_json("kind", "ctranslate2")(path)
    redo_digests(path)
    return path


def both_vocabularies(change: Callable[[bytes], bytes]) -> Spoil:
    """Change them, and all that is said of them elsewhere."""

    def spoil(path: Path) -> None:
        for name in ("source.model", "target.model"):
            (path / name).write_bytes(change((path / name).read_bytes()))
        redo_vocabularies(path)

    return spoil


def as_imported(**changed: Any) -> Callable[[bytes], bytes]:
    """A SentencePiece model in the form that vocabularies of imported models have."""

    def change(content: bytes) -> bytes:
        size = SentencePieceProcessor(model_proto=content).get_piece_size()
        values = {
            "format": "dragoman vocabulary 1",
            "kind": "marian",
            "side": "source",
            "pieces": [f"p{number}" for number in range(size)],
            "their_ids": [*range(size)],
            "encoding": base64.b64encode(content).decode(),
        }
        return json.dumps(values | changed, separators=(",", ":")).encode()

    return change


def change_json(key: str, value: Any, name: str = "bundle.json") -> Spoil:
    def spoil(path: Path) -> None:
        content = json.loads((path / name).read_bytes())
        content[key] = value
        (path / name).write_text(json.dumps(content))

    return spoil


def change_recipe(pattern: str, value: str) -> Spoil:
    def spoil(path: Path) -> None:
        text, count = re.subn(pattern, value, (path / "recipe.toml").read_text("utf-8"))
        assert count
        (path / "recipe.toml").write_text(text)

    return spoil


def change_shape(key: str, there: str, value: int) -> Spoil:
    """Change the shape of the model in the recipe and, under its name there, in config.json."""

    def spoil(path: Path) -> None:
        change_recipe(rf"(?m)^{key} = \d+", f"{key} = {value}")(path)
        change_json(there, value, "config.json")(path)

    return spoil


def replace_weight(file: Path, name: str, weight: torch.Tensor) -> None:
    save_file(load_file(file) | {name: weight}, file, {"format": "pt"})


def header(change: Callable[[dict[str, Any]], object]) -> Spoil:
    return lambda path: change_header(path / "model.safetensors", change)


def place(name: str, make: Callable[[Path], object]) -> Spoil:
    def spoil(path: Path) -> None:
        (path / name).unlink()
        make(path / name)

    return spoil


CASES: dict[str, tuple[Spoil, str]] = {
    "a start that no piece has": (
        change_recipe(r"start_ids = \[[^]]*\]", "start_ids = [40000]"),
        "start_ids has 40000",
    ),
    "deep TOML": (
        lambda path: (path / "recipe.toml").write_text("a = " + "[" * 5000 + "]" * 5000),
        "nested",
    ),
    "tables in tables": (
        lambda path: (path / "recipe.toml").write_text("[" + "a." * 50 + "a]\nb = 1\n"),
        "nested",
    ),
    "a key of many parts": (
        lambda path: (path / "recipe.toml").write_text("a." * 20_000 + "a = 1\n"),
        "a hundred parts",
    ),
    "a key of many quoted parts": (
        lambda path: (path / "recipe.toml").write_text('"!" . ' * 20_000 + "a = 1\n"),
        "a hundred parts",
    ),
    "a number of many digits": (
        lambda path: (path / "recipe.toml").write_text("a = " + "9" * 5000),
        "recipe.toml",
    ),
    "a recipe of megabytes": (
        lambda path: (path / "recipe.toml").write_text("#" * (1 << 21)),
        "1,048,576 bytes",
    ),
    "blanks without end": (
        lambda path: (path / "recipe.toml").write_text(
            "x = [\n[" + " " * 500_000 + "\n]]\nwrong = 1\n"
        ),
        "unknown key",
    ),
    "a name with a NUL": (change_recipe(r"folder = .*", 'folder = "\\\\u0000"'), "folder"),
    "a hundred million layers": (
        change_recipe("encoder_layers = 1", "encoder_layers = 100000000"),
        "encoder_layers",
    ),
    "ten thousand layers": (
        change_shape("encoder_layers", "encoder_layers", 10_000),
        "10001 layers",
    ),
    "a wide model": (
        change_shape("d_model", "d_model", 10**6),
        f"asks for {EMBEDDING} of the shape",
    ),
    "a model too wide for any memory": (
        change_shape("d_model", "d_model", 10**12),
        f"asks for {EMBEDDING} of the shape",
    ),
    "a recipe of another model": (
        change_recipe("d_model = 32", "d_model = 64"),
        '"d_model" is 32, and the recipe has 64',
    ),
    "a configuration of another model": (
        change_json("encoder_attention_heads", 4, "config.json"),
        '"encoder_attention_heads" is 4, and the recipe has 2',
    ),
    "a configuration of another vocabulary": (
        change_json("pad_token_id", 0, "config.json"),
        '"pad_token_id" is 0, and the recipe has 2',
    ),
    "a configuration that is nested": (
        lambda path: (path / "config.json").write_text("[" * 100_000),
        "config.json: cannot be read as JSON",
    ),
    "a configuration that is a list": (
        lambda path: (path / "config.json").write_text("[]"),
        "config.json: is not a JSON object",
    ),
    "a shape that the form does not have": (
        change_recipe('activation = "relu"', 'activation = "swiglu"'),
        "model.activation: ",
    ),
    "weights under another name": (
        header(lambda found: found.update({"other": found.pop(EMBEDDING)})),
        "which the weights do not have",
    ),
    "one weight too many": (
        header(lambda found: found.update({"other": found.pop("final_logits_bias")})),
        "knows nothing of other, which the weights have",
    ),
    "positions that are not ours": (
        lambda path: change_weights(path / "model.safetensors", 0.5, POSITIONS),
        f"{POSITIONS} holds positions that are not",
    ),
    "positions without end": (
        lambda path: replace_weight(path / "model.safetensors", POSITIONS, torch.empty(2**34, 0)),
        f"{POSITIONS} holds positions that are not",
    ),
    "vocabularies that cannot share a matrix": (
        change_json("target_vocab_size", 401, "manifest.json"),
        "vocabulary",
    ),
    "negative width": (change_recipe("d_model = 32", "d_model = -32"), "d_model"),
    "a language that is a path": (
        change_recipe('target_language = "de"', 'target_language = "../../x"'),
        "target_language",
    ),
    "a huge number of parameters": (change_json("num_parameters", 10**300), "bundle.json"),
    "a name with markup": (change_json("name", "<script>alert(1)</script>"), "bundle.json"),
    "a name with an escape": (change_json("name", "a\x1b[31m"), "bundle.json"),
    "a language with markup": (change_json("source_language", "<b>"), "bundle.json"),
    "more directions than anybody has": (
        change_json("directions", [{"source": f"a{n}", "target": "b"} for n in range(10_001)]),
        "bundle.json",
    ),
    "nested JSON": (lambda path: (path / "bundle.json").write_text("[" * 100_000), "bundle.json"),
    "another vocabulary's size": (
        change_json("source_vocab_size", 401, "manifest.json"),
        "vocabulary",
    ),
    "a vocabulary without end": (
        change_json("source_vocab_size", 10**15, "manifest.json"),
        "manifest",
    ),
    "all weights NaN": (
        lambda path: change_weights(path / "model.safetensors", float("nan")),
        "not numbers",
    ),
    "one tensor infinite": (
        lambda path: change_weights(path / "model.safetensors", float("inf"), EMBEDDING),
        EMBEDDING,
    ),
    "a negative dimension": (
        header(lambda found: found[EMBEDDING].update(shape=[-400, 32])),
        "cannot be read",
    ),
    "an enormous dimension": (
        header(lambda found: found[EMBEDDING].update(shape=[2**62, 2**62])),
        "cannot be read",
    ),
    "an integer of many digits": (
        header(lambda found: found[EMBEDDING].update(shape=[10**400, 32])),
        "cannot be read",
    ),
    "offsets outside the file": (
        header(lambda found: found[EMBEDDING].update(data_offsets=[0, 10**12])),
        "cannot be read",
    ),
    "overlapping tensors": (
        header(lambda found: found[EMBEDDING].update(data_offsets=[4, 51204])),
        "cannot be read",
    ),
    "another type": (
        header(lambda found: [one.update(dtype="I32") for one in found.values() if "dtype" in one]),
        "I32",
    ),
    "a header without end": (
        lambda path: (path / "model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}"),
        "header",
    ),
    "a nested header": (
        lambda path: (path / "model.safetensors").write_bytes(
            struct.pack("<Q", 100_000) + b"[" * 100_000
        ),
        "cannot be read",
    ),
    "metadata that are no text": (
        header(lambda found: found.update(__metadata__={"a": 1})),
        "cannot be read",
    ),
    "empty weights": (lambda path: (path / "model.safetensors").write_bytes(b""), "cannot be read"),
    "an empty vocabulary": (
        lambda path: [(path / f"{side}.model").write_bytes(b"") for side in ("source", "target")],
        "SentencePiece",
    ),
    "a piece that is no text": (
        both_vocabularies(lambda content: content.replace(b"Office", b"O\xff\xffice", 1)),
        "source.model: is not a readable SentencePiece model; copy it here again",
    ),
    "a vocabulary of others in which nothing is special": (
        both_vocabularies(as_imported(special=[])),
        "source.model: is not a vocabulary that this version can read",
    ),
    "a vocabulary of others whose prefix has no end": (
        both_vocabularies(as_imported(prefix=[7] * 100_000)),
        "source.model: is not a vocabulary that this version can read",
    ),
    "a vocabulary of others with ids beyond the weights": (
        both_vocabularies(as_imported(their_ids=[*range(1, 401)])),
        "source.model: has pieces or ids that do not belong together",
    ),
    "a vocabulary of others that is not in base64": (
        both_vocabularies(as_imported(encoding="ä")),
        "source.model: is not a vocabulary that this version can read",
    ),
    **{
        f"a pipe for {name}": (place(name, os.mkfifo), "not a regular file")
        for name in ("recipe.toml", "model.safetensors", "source.model", "manifest.json")
    },
    **{
        f"a device for {name}": (
            place(name, lambda file: file.symlink_to("/dev/zero")),
            "not a regular file",
        )
        for name in ("recipe.toml", "model.safetensors", "README.md")
    },
    "a pipe that no list names": (lambda path: os.mkfifo(path / "vmap.txt"), "not a regular file"),
    "a link in a circle": (
        place("recipe.toml", lambda file: file.symlink_to(file.name)),
        "recipe.toml",
    ),
    "a link to nowhere": (
        place("recipe.toml", lambda file: file.symlink_to("gone")),
        "recipe.toml",
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", ["translate", "train"])
@pytest.mark.parametrize(("spoil", "words"), CASES.values(), ids=CASES)
def test_a_hostile_export_is_refused_in_one_line(
    bundle: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    spoil: Spoil,
    words: str,
    command: str,
) -> None:
    spoil(bundle)
    redo_digests(bundle)
    (tmp_path / "in").write_text("Click the table.\n")
    before = sorted(path for path in tmp_path.rglob("*"))
    arguments = {
        "translate": ["translate", str(bundle), "--input", str(tmp_path / "in")],
        "train": ["train", str(SMALL_RUN / "tiny.toml"), "--from", str(bundle)],
    }[command]
    assert main(arguments) != 0
    written = capfd.readouterr()
    assert written.err.count("\n") == 1, written.err
    assert words in written.err
    assert len(written.err) < 2000
    assert written.out == ""
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_start_that_no_piece_has_is_refused(for_ctranslate2: Path) -> None:
    change_recipe(r"start_ids = \[[^]]*\]", "start_ids = [40000]")(for_ctranslate2)
    redo_digests(for_ctranslate2)
    with pytest.raises(CheckpointError, match="start_ids has 40000, and the target's vocabulary"):
        Bundle.open(for_ctranslate2)
    change_recipe(r"vocab_size = \d+", "vocab_size = 50000")(for_ctranslate2)
    redo_digests(for_ctranslate2)
    with pytest.raises(CheckpointError, match="start_ids has 40000, and the target's vocabulary"):
        Bundle.open(for_ctranslate2)


@pytest.mark.system
def test_little_memory_is_enough_to_refuse_much(bundle: Path, tmp_path: Path) -> None:
    """A real process that may have 8 GB of addresses; PyTorch alone takes several."""
    change_shape("d_ffn", "encoder_ffn_dim", 2 * 10**9)(bundle)
    change_json("decoder_ffn_dim", 2 * 10**9, "config.json")(bundle)
    redo_digests(bundle)
    (tmp_path / "in").write_text("Click the table.\n")
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle)]
    done = subprocess.run(
        [*command, "--input", str(tmp_path / "in")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "fc1.weight of the shape (2000000000, 32)" in done.stderr


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_weight_that_is_no_number_is_found(bundle: Path, value: float) -> None:
    file = bundle / "model.safetensors"
    read_weights(file)
    content = bytearray(file.read_bytes())
    content[-4:] = struct.pack("<f", value)
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="not numbers"):
        read_weights(file)


def test_large_finite_weights_are_no_infinity(bundle: Path) -> None:
    change_weights(bundle / "model.safetensors", 3e38)
    weights = read_weights(bundle / "model.safetensors")
    assert max(float(weight.max()) for weight in weights.values()) > 2.9e38


def test_inspect_shows_no_escape_sequence(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (bundle / "a\x1b]0;owned\x07\nb").write_text("")
    assert main(["inspect", str(bundle)]) == 0
    shown = capfd.readouterr().out
    assert "\x1b" not in shown
    assert "a\ufffd]0;owned\ufffd\ufffdb" in shown


@pytest.mark.parametrize("at_terminal", [True, False])
@pytest.mark.parametrize("inspected", [True, False])
def test_a_translation_does_not_steer_the_terminal(
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    at_terminal: bool,
    inspected: bool,
) -> None:
    """A file or a pipe gets what the model says, and a tag as it is."""
    text = "<a title='\x1b]0;owned\x07'>Click the table.</a>\n"
    (tmp_path / "in").write_text(text)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: at_terminal)
    read = input_lines
    monkeypatch.setattr("dragoman.inference.translate.input_lines", lambda _: read(tmp_path / "in"))
    command = ["translate", str(bundle), "--format", "markup"]
    assert main([*command, *(["-i"] if inspected else [])]) == 0
    shown = capsys.readouterr().out
    assert ("\x1b" in shown) != at_terminal
    assert ("\ufffd]0;owned\ufffd" in shown) == at_terminal
