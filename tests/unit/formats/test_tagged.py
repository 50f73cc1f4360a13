"""Exports of a model whose sources may begin with a tag: it is one piece in each of them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import sentencepiece
import transformers

import dragoman
from dragoman.base.errors import CheckpointError
from dragoman.corpus.subword import Subword
from dragoman.evaluation.validate import read_lines
from dragoman.formats import huggingface
from dragoman.formats.export_job import Writer
from dragoman.formats.kinds import FORMATS, Kind
from dragoman.formats.normalizing_pieces import ModelProto, with_normalization
from dragoman.recipe.run_directory import RunDirectory
from parallel_text import sentences, write_pairs

RECIPE = """
name = "tagged"
[corpus]
train = [
  {source = "train.en", target = "train.de"},
  {source = "made.en", target = "made.de", tag = "<bt>"},
]
language_token = true
valid_pairs = 60
subword.vocab_size = 150
[data]
batch_tokens = 1000
[model]
d_model = 32
num_heads = 2
d_ffn = 64
encoder_layers = 1
decoder_layers = 1
[schedule]
kind = "constant"
peak_learning_rate = 0.005
warmup_steps = 20
[train]
max_steps = 60
validate_every_steps = 60
validate_at_start = false
[evaluate]
bleu_pairs = 0
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("tagged")
    write_pairs(folder, "train", sentences(400, seed=1))
    write_pairs(folder, "made", sentences(400, seed=2))
    (folder / "tagged.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trained = dragoman.train(dragoman.load_recipe("tagged.toml"))
        return RunDirectory.open(trained.path.resolve())


@pytest.fixture
def sources(run: RunDirectory) -> list[str]:
    """Sources with the token of the language and the tag."""
    lines = read_lines(run.path.parents[1] / "made.en")[:20]
    return [f"<2de> <bt> {line}" for line in lines]


@pytest.mark.system
def test_transformers_take_a_tag_as_one_piece(
    run: RunDirectory, sources: list[str], tmp_path: Path
) -> None:
    export = dragoman.export(run, to="huggingface", output=tmp_path / "theirs")
    assert export.verified.identical >= 0.95 * export.verified.sentences
    tokenizer = transformers.AutoTokenizer.from_pretrained(export.path)
    assert tokenizer.tokenize(sources[0])[:3] == ["<2de>", "▁", "<bt>"]
    own = Subword.load(run.path / "source.model")
    assert [ids[:-1] for ids in tokenizer(sources)["input_ids"]] == own.encode(sources)


@pytest.mark.system
def test_argos_translate_takes_a_tag_as_one_piece(
    run: RunDirectory, sources: list[str], tmp_path: Path
) -> None:
    export = dragoman.export(run, to="argos", output=tmp_path / "argos")
    with zipfile.ZipFile(export.path / "en_de.argosmodel") as archive:
        pieces = archive.read("translate-en_de/sentencepiece.model")
    theirs = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    plain = [line.removeprefix("<2de> ") for line in sources]
    assert theirs.encode(plain[0], out_type=str)[:2] == ["▁", "<bt>"]
    assert theirs.encode(plain) == Subword.load(run.path / "source.model").encode_plain(plain)


@pytest.mark.parametrize("to", ["ctranslate2", "onnx"])
def test_other_exports_are_checked_on_tagged_sentences(
    to: Kind, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    writer = FORMATS[to].load_writer()
    write = writer.write

    def watched(self: Writer, texts: list[str], draft: Path) -> list[str]:
        seen.extend(texts)
        return write(self, texts, draft)

    monkeypatch.setattr(writer, "write", watched)
    export = dragoman.export(run, to=to, output=tmp_path / to)
    assert export.verified.identical >= 0.95 * export.verified.sentences
    assert {line.split(" ")[0] for line in seen} == {"<2de>"}
    assert sum(line.startswith("<2de> <bt> ") for line in seen) == len(seen) // 2 == 30
    assert not [line for line in seen if line.count("<bt>") > 1]


def test_an_export_that_loses_the_tag_is_refused(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_tags(vocabulary: bytes, *, lowercase: bool) -> bytes:
        proto = ModelProto.FromString(with_normalization(vocabulary, lowercase=lowercase))
        (tag,) = [piece for piece in proto.pieces if piece.piece == "<bt>"]
        tag.type = ModelProto.SentencePiece.CONTROL
        written: bytes = proto.SerializeToString()
        return written

    monkeypatch.setattr(huggingface, "with_normalization", without_tags)
    with pytest.raises(CheckpointError, match="sentences differently from our own search"):
        dragoman.export(run, to="huggingface", output=tmp_path / "lost")
    assert not (tmp_path / "lost").exists()
