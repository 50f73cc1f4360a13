"""Exports for browsers: what is in them, and what is refused. The page: tests/e2e/test_web_page."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import stat
import tarfile
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
import sentencepiece
import torch

import dragoman
from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.files import unpack_tar
from dragoman.cli import main
from dragoman.corpus.shards import UNK
from dragoman.formats.int8_onnx import Int8ModelGraph, quantized, rounded
from dragoman.formats.onnx import translate_with_onnx, write_onnx
from dragoman.formats.onnxruntime_web import PACKAGE, runtime_files
from dragoman.formats.web import check_for_web
from dragoman.importing.folder import read_folder
from dragoman.importing.tokenizer import Languages
from dragoman.model.config import ModelConfig, SearchConfig
from dragoman.model.search import translate_batch
from dragoman.model.transformer import Transformer
from foreign_models import marian_folder
from real_text import real_lines
from small_run import small_run
from trained_model import real_pairs, train_on_real_text

GREEDY = SearchConfig(beam_size=1)
SHAPES: list[dict[str, Any]] = [
    {},
    {"norm": "post", "tied_embeddings": "decoder", "attention_bias": False},
    {"activation": "swiglu", "tied_embeddings": "none", "output_bias": True},
]


def test_no_weight_is_further_off_than_half_a_step() -> None:
    torch.manual_seed(1)
    matrix = torch.randn(6, 40) * torch.logspace(-6, 3, 6)[:, None]
    matrix[2] = 0.0
    numbers, scales = quantized(matrix)
    assert numbers.dtype == torch.int8
    assert ((numbers * scales - matrix).abs() <= 0.5001 * scales).all()
    assert numbers.abs().amax(dim=1).tolist() == [127, 127, 0, 127, 127, 127]


@pytest.mark.system
def test_the_graphs_translate_as_our_search_does_with_these_weights(tmp_path: Path) -> None:
    trained = train_on_real_text()
    write_onnx(trained.model, tmp_path, metadata={}, kind=Int8ModelGraph)
    found = translate_with_onnx(tmp_path, trained.sources[:60], GREEDY)
    with_these = translate_batch([rounded(trained.model)], trained.sources[:60], GREEDY)
    assert sum(ids == best.ids for ids, (best, *_) in zip(found, with_these, strict=True)) >= 59


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_every_shape_of_a_model_has_such_graphs(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = ModelConfig.model_validate(
        {"d_model": 32, "num_heads": 4, "d_ffn": 48, "encoder_layers": 1, "decoder_layers": 2}
        | options
    )
    model = Transformer(config, source_vocab_size=1000, target_vocab_size=1000).eval()
    write_onnx(model, tmp_path, metadata={}, kind=Int8ModelGraph)
    sources = [[piece % 1000 for piece in row] for row in real_pairs()[2][:20]]
    search = SearchConfig(beam_size=1, max_length_ratio=1.0, max_length_extra=2)
    found = translate_with_onnx(tmp_path, sources, search)
    ours = translate_batch([rounded(model)], sources, search)
    assert sum(ids == best.ids for ids, (best, *_) in zip(found, ours, strict=True)) >= 19
    for name in ("encoder.onnx", "decoder.onnx"):
        weights = onnx.load(tmp_path / name).graph.initializer
        matrices = [one for one in weights if len(one.dims) == 2 and min(one.dims) > 1]
        assert {one.data_type for one in matrices} == {onnx.TensorProto.INT8}
        shapes = [tuple(one.dims) for one in matrices if one.dims[0] == 1000]
        assert len(shapes) == (2 if options.get("tied_embeddings") == "none" else 1) or (
            name == "encoder.onnx"
        )


def refused(
    capfd: pytest.CaptureFixture[str], output: Path, *options: str, code: int | None = None
) -> str:
    """The one line that such an export is refused with; nothing is left behind.

    code: the exit code, if it matters which.
    """
    command = ["export", str(small_run().path), "--to", "web", "--output", str(output), *options]
    exit_code = main(command)
    assert exit_code == code if code else exit_code
    assert not list(output.parent.glob("*web*"))
    line = capfd.readouterr().err
    assert line.count("\n") == 1, line
    return line


def package(path: Path, *names: str, content: bytes = b"something else") -> Path:
    """An archive of npm with such files."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def test_a_package_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
    whole = package(tmp_path / "whole.tgz", *names)
    unpacked = tmp_path / "folder"
    with tarfile.open(whole) as archive:
        unpack_tar(archive, unpacked)
    (tmp_path / "large.tgz").write_bytes(b"")
    os.truncate(tmp_path / "large.tgz", 1 << 30)
    for place, problem in (
        (whole, "whole.tgz has another SHA-256"),
        (unpacked / "package", "ort.wasm.bundle.min.mjs has another SHA-256"),
        (tmp_path / "large.tgz", "has more than 67,108,864 bytes"),
        (tmp_path / "none.tgz", "No such file"),
        (unpacked, "No such file"),
    ):
        line = refused(capfd, tmp_path / "web", "--onnxruntime-web", str(place))
        assert problem in line
        assert line.startswith(f"dragoman: {place}: ")
        assert f"npm pack {PACKAGE}" in line


def test_a_pipe_is_not_opened(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Without a writer it would wait for one without end.
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    os.write(writer, b"no archive")
    line = refused(capfd, tmp_path / "web", "--onnxruntime-web", str(pipe), code=2)
    assert "is not a regular file" in line
    assert os.read(writer, 100) == b"no archive"
    os.close(writer)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("", "npm is not installed"),
        ("echo no network >&2; exit 7", "exit code 7): no network;"),
        ("exit 0", "exit code 0);"),
    ],
)
def test_without_npm_or_a_network_the_error_names_the_file_to_fetch(
    script: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "bin").mkdir()
    if script:
        npm = tmp_path / "bin" / "npm"
        npm.write_text(f"#!/bin/sh\n{script}\n")
        npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    line = refused(capfd, tmp_path / "web")
    assert problem in line
    assert line.startswith("dragoman: to web: npm ")
    assert 'name the file that it writes: onnxruntime_web="onnxruntime-web-1.30.0.tgz"' in line
    with pytest.raises(MachineError) as error:
        dragoman.export(small_run(), to="web", output=tmp_path / "web")
    assert str(error.value).startswith("to web: npm ")
    assert str(error.value).endswith('onnxruntime_web="onnxruntime-web-1.30.0.tgz"')


def test_an_error_of_npm_is_shown_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    began = time.monotonic()
    line = refused(capfd, tmp_path / "web")
    assert time.monotonic() - began < 30
    assert re.search(
        rf"\(exit code 1\): .*connect ECONNREFUSED 127.0.0.1:{port}; run `npm pack", line
    )


def test_npm_packs_the_archive_without_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive that npm leaves is read, and compared."""
    made = package(tmp_path / "made.tgz", "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
    npm = tmp_path / "npm"
    npm.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nfor a; do case "$a" in --pack-destination=*) '
        f'{shutil.which("cp")} {made} "${{a#*=}}/any.tgz";; esac; done\n'
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"any\.tgz has another SHA-256"):
        runtime_files(None)
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:2] == ["pack", PACKAGE]
    assert "--ignore-scripts" in asked


def test_other_weights_than_int8_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(capfd, tmp_path / "web", "--quantization", "float32")
    assert "web exports are written in int8, not in float32" in line


def trained_pieces(**options: Any) -> bytes:
    """A SentencePiece model of another tool."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(real_lines("train", "en")[:400]), model_writer=made,
        pad_id=0, unk_id=UNK, bos_id=2, eos_id=3, minloglevel=2, **{"vocab_size": 300, **options},
    )  # fmt: skip
    return made.getvalue()


def test_vocabularies_with_rules_of_their_own_are_refused_by_name(tmp_path: Path) -> None:
    plain = {"normalization_rule_name": "identity"}
    imported = marian_folder(tmp_path / "opus")
    for content, problem in (
        (read_folder(imported, Languages()).vocabularies[0], "was imported"),
        (trained_pieces(), "changes text by rules of its own"),
        (trained_pieces(add_dummy_prefix=False, **plain), "changes text by rules of its own"),
        (trained_pieces(treat_whitespace_as_suffix=True, **plain), "spaces at the ends of words"),
        (trained_pieces(byte_fallback=True, vocab_size=500, **plain), "pieces for bytes"),
        (
            trained_pieces(model_type="char", hard_vocab_limit=False, **plain),
            "neither BPE nor unigram",
        ),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            check_for_web(content, place=tmp_path / "source.model")
        assert "export to ctranslate2 or onnx" in str(caught.value)
    for kind in ("bpe", "unigram"):
        check_for_web(trained_pieces(model_type=kind, **plain), place=tmp_path)
