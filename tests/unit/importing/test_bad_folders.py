"""Folders that cannot be imported: one line that names what is wrong, and nothing is written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dragoman
from dragoman import CheckpointError, ConfigError, export, import_model
from dragoman.cli import main
from dragoman.importing.config import read_config
from foreign_models import m2m100_folder, marian_folder, trained_spm
from own_folder import own_folder
from real_text import real_lines

pytest.importorskip("transformers")


class Trap:
    """A pickle that leaves a file behind if it is ever loaded."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def settings(name: str = "config.json", **changed: Any) -> Callable[[Path], None]:
    """Change keys of a file of JSON; None takes a key out."""

    def break_(folder: Path) -> None:
        values = json.loads((folder / name).read_bytes()) | changed
        kept = {key: value for key, value in values.items() if value is not None}
        (folder / name).write_text(json.dumps(kept))

    return break_


def weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def break_(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return break_


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, size: int) -> Callable[[Path], None]:
    def break_(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return break_


def written(name: str, text: str) -> Callable[[Path], None]:
    def break_(folder: Path) -> None:
        (folder / name).write_text(text)

    return break_


def in_parts(**weight_map: Any) -> Callable[[Path], None]:
    """The weights in the files that an index names."""

    def break_(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        index = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index)

    return break_


def another_end(folder: Path) -> None:
    settings(eos_token_id=7)(folder)
    settings("generation_config.json", eos_token_id=7, forced_eos_token_id=7)(folder)


def only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(folder.parent / "trapped")))


def listed(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def break_(folder: Path) -> None:
        values = json.loads((folder / "vocab.json").read_bytes())
        change(values)
        (folder / "vocab.json").write_text(json.dumps(values))

    return break_


def learned_positions(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.encoder.embed_positions.weight"] = torch.randn(128, 32)


def not_a_number(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.encoder.layers.1.fc1.bias"][3] = torch.nan


def positions_without_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.encoder.embed_positions.weight"] = torch.tensor(1.0)


def only_marian(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "opus.npz").write_bytes(b"PK")


def a_huge_vocabulary_without_a_list(folder: Path) -> None:
    settings(vocab_size=9_999_999, decoder_vocab_size=9_999_999)(folder)
    (folder / "vocab.json").unlink()


def an_index_of_lists(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": ["b"]}}')


def half_a_character(ids: dict[str, Any]) -> None:
    ids["\ud800"] = ids.pop([*ids][10])


def a_made_up_name(ids: dict[str, Any]) -> None:
    names = [*ids]
    ids[f"<not listed {ids.pop(names[10])}>"] = ids.pop(names[20])


def a_pipe(name: str) -> Callable[[Path], None]:
    def break_(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return break_


def quantized(tensors: dict[str, torch.Tensor]) -> None:
    name = "model.encoder.layers.1.fc1.weight"
    tensors[name] = tensors[name].to(torch.int8)


def untied(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["model.shared.weight"] + 1


def of_another_model(folder: Path) -> None:
    backwards = tuple(line[::-1] for line in real_lines("train", "en")[:3000])
    (folder / "source.spm").write_bytes(trained_spm(backwards, 500))


BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (without("config.json"), "config.json: is missing"),
    "a model of Marian itself": (only_marian, "opus.npz: is a file of Marian itself"),
    "pieces of another model": (
        of_another_model,
        "of its 500 pieces; copy the list and the SentencePiece model from the same model",
    ),
    "torn config": (cut("config.json", 40), "config.json: cannot be read as JSON"),
    "a list as config": (
        written("config.json", "[]"),
        "config.json: is not a JSON object",
    ),
    "a kind that is a list": (settings(model_type=["marian"]), '"model_type" is ["marian"]'),
    "architectures that are a number": (settings(architectures=5), '"architectures" is 5'),
    "an activation that is a list": (
        settings(activation_function=["swish"]), '"activation_function" is ["swish"], not one of'
    ),
    "no position": (
        settings(max_position_embeddings=1), '"max_position_embeddings" is 1, not a whole number'
    ),
    "another architecture": (settings(model_type="t5"), '"model_type" is "t5"'),
    "several architectures": (settings(model_type=["marian"]), '"model_type" is ["marian"]'),
    "a number of architectures": (settings(architectures=5), '"architectures" is 5; import a'),
    "a list of activations": (
        settings(activation_function=[]), '"activation_function" is [], not one of'
    ),
    "a list of files for a weight": (
        in_parts(weight=["model.safetensors"]), "index.json: names no files of weights"
    ),
    "a file of weights that no disk has": (
        in_parts(weight="a\0b"), "index.json: names no files of weights"
    ),
    "an id of thousands of digits": (
        settings("tokenizer_config.json", added_tokens_decoder={"9" * 5000: {"content": "<ent>"}}),
        "has the added token '<ent>'",
    ),
    "a language of a page": (
        settings("tokenizer_config.json", source_lang="en" * 99), "is not a language code"
    ),
    "a decoder alone": (
        settings(architectures=["MarianForCausalLM"], is_encoder_decoder=False, is_decoder=True),
        '"architectures" is ["MarianForCausalLM"]',
    ),
    "unknown activation": (
        settings(activation_function="gelu_new"), '"activation_function" is "gelu_new"'
    ),
    "pre-norm": (settings(normalize_before=True), '"normalize_before" is true'),
    "norm of embeddings": (settings(normalize_embedding=True), '"normalize_embedding" is true'),
    "learned positions by name": (
        settings(static_position_embeddings=False), '"static_position_embeddings" is false'
    ),
    "learned positions in fact": (
        weights(learned_positions), "embed_positions.weight holds positions that are not"
    ),
    "positions without rows": (
        weights(positions_without_rows), "embed_positions.weight holds positions that are not"
    ),
    "sides of unequal width": (settings(decoder_ffn_dim=64), '"decoder_ffn_dim" is 64'),
    "sides of unequal heads": (
        settings(decoder_attention_heads=2), '"decoder_attention_heads" is 2'
    ),
    "heads that do not divide": (
        settings(encoder_attention_heads=5, decoder_attention_heads=5), '"d_model" is 32'
    ),
    "false for a number": (settings(eos_token_id=False), '"eos_token_id" is false'),
    "false for a share": (settings(dropout=False), '"dropout" is false, not a number from 0'),
    "words for numbers": (settings(encoder_layers="two"), '"encoder_layers" is "two"'),
    "more layers than weights": (
        settings(encoder_layers=9000), "asks for 9002 layers, and the weights are"
    ),
    "one layer more": (
        settings(encoder_layers=3), "asks for model.encoder.layers.2.self_attn.q_proj.weight"
    ),
    "one layer less": (
        settings(decoder_layers=1), "knows nothing of model.decoder.layers.1."
    ),
    "another width": (settings(d_model=64), "of the shape"),
    "another vocabulary size": (
        settings(vocab_size=10_000, decoder_vocab_size=10_000), "config.json: asks for"
    ),
    "a vocabulary of any size": (  # noticed before a list of so many pieces is made
        a_huge_vocabulary_without_a_list, "asks for model.shared.weight of the shape (9999999"
    ),
    "two vocabularies for shared embeddings": (
        settings(vocab_size=900, decoder_vocab_size=899),
        '"decoder_vocab_size" is 899, but "vocab_size" is 900, and encoder and decoder share',
    ),
    "quantized by key": (
        settings(quantization_config={"load_in_8bit": True}), '"quantization_config"'
    ),
    "quantized weights": (weights(quantized), "holds I8, not floats"),
    "truncated weights": (cut("model.safetensors", 5000), "model.safetensors: cannot be read"),
    "an index that names no files": (
        an_index_of_lists, "model.safetensors.index.json: names no files of weights"
    ),
    "no weights": (without("model.safetensors"), "model.safetensors: is missing"),
    "a pickle": (only_a_pickle, "pytorch_model.bin: is not read"),
    "not a number": (weights(not_a_number), "infinite or not numbers"),
    "ties that are none": (weights(untied), "ties embeddings that are not equal"),
    "no list of pieces": (without("vocab.json"), "vocab.json: is missing"),
    "ids twice": (listed(lambda ids: ids.update({"twice": 5})), "the same id 5"),
    "ids outside": (listed(lambda ids: ids.update({"far": 10**6})), "the id 1000000"),
    "half a character": (listed(half_a_character), "which holds a lone surrogate"),
    "a name that we give to rows without a piece": (
        listed(a_made_up_name), "has the piece '<not listed 10>', a name that dragoman gives"
    ),
    "a pipe as SentencePiece model": (
        a_pipe("source.spm"), "is not a readable SentencePiece model; copy the file again"
    ),
    "no unknown piece": (listed(lambda ids: ids.pop("<unk>") and None), "has no '<unk>'"),
    "another end": (another_end, "the eos token '</s>'"),
    "no SentencePiece model": (without("source.spm"), "source.spm: is missing"),
    "torn SentencePiece model": (
        cut("target.spm", 100), "target.spm: is not a readable SentencePiece model"
    ),
    "a language of many letters": (
        settings("tokenizer_config.json", source_lang="e" * 36), "' is not a language code"
    ),
    "a language with an end of a line": (
        settings("tokenizer_config.json", target_lang="de\n"), "'de\\n' is not a language code"
    ),
    "sampled pieces": (
        settings("tokenizer_config.json", sp_model_kwargs={"enable_sampling": True}),
        '"sp_model_kwargs" is not empty',
    ),
    "another search": (
        settings("generation_config.json", repetition_penalty=1.3), '"repetition_penalty" is 1.3'
    ),
    "a search to the end": (
        settings("generation_config.json", early_stopping="never"), '"early_stopping" is "never"'
    ),
    "a tokenizer of others": (
        settings("tokenizer_config.json", tokenizer_class="XLMTokenizer"),
        """"tokenizer_class" is 'XLMTokenizer', not MarianTokenizer""",
    ),
    "a forced beginning": (
        settings("generation_config.json", forced_bos_token_id=5), '"forced_bos_token_id" is 5'
    ),
    "banned words": (
        settings("generation_config.json", bad_words_ids=[[5, 6]]), '"bad_words_ids" is [[5, 6]]'
    ),
    "another start of the search": (
        settings("generation_config.json", decoder_start_token_id=0),
        '"decoder_start_token_id" is 0, and config.json has',
    ),
    "another end of the search": (
        settings("generation_config.json", eos_token_id=7), '"eos_token_id" is 7, and config.json'
    ),
    "several ends": (
        settings("generation_config.json", eos_token_id=[0, 7]), '"eos_token_id" is [0, 7]'
    ),
    "a longest translation in words": (
        settings("generation_config.json", max_length=99.5), '"max_length" is 99.5'
    ),
    "no new tokens": (
        settings("generation_config.json", max_new_tokens=0), '"max_new_tokens" is 0'
    ),
    "a watermark": (
        settings("generation_config.json", watermarking_config={"bias": 2.0}),
        '"watermarking_config" is {"bias": 2.0}, which our search does not do',
    ),
    "an added token": (
        settings("tokenizer_config.json", added_tokens_decoder={"900": {"content": "<ent>"}}),
        "has the added token '<ent>'",
    ),
    "an added token of old": (
        written("added_tokens.json", '{"<ent>": 900}'), "has the added token '<ent>'"
    ),
}  # fmt: skip


@cache
def good() -> Path:
    return marian_folder(own_folder("good") / "model")


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    break_, expected = BAD[name]
    folder = shutil.copytree(good(), tmp_path / "model")
    break_(folder)
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    assert main(["import", str(folder), "--to", str(tmp_path / "bundle")]) in (1, 2)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    assert expected in said.err
    assert "; " in said.err  # a remedy
    assert sorted(tmp_path.rglob("*")) == before


def test_the_generation_file_counts_alone(tmp_path: Path) -> None:
    folder = shutil.copytree(good(), tmp_path / "model")
    assert read_config(folder).search.end_at_limit
    settings("generation_config.json", forced_eos_token_id=None, max_new_tokens=9)(folder)
    settings(forced_eos_token_id=0)(folder)
    search = read_config(folder).search
    assert not search.end_at_limit
    assert (search.max_length_ratio, search.max_length_extra) == (0.0, 9)


def test_a_key_of_a_newer_transformers_is_ignored(tmp_path: Path) -> None:
    folder = shutil.copytree(good(), tmp_path / "model")
    before = read_config(folder)
    settings("generation_config.json", key_of_tomorrow={"fast": True})(folder)
    settings(key_of_tomorrow=[1])(folder)
    assert read_config(folder) == before


def test_places_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good()
    capsys.readouterr()  # transformers' progress
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "letter.txt").write_text("dear")
    for arguments, expected in (
        ([str(tmp_path / "nothing"), "--to", str(tmp_path / "bundle")], "nothing: is not a folder"),
        (
            ["Helsinki-NLP/opus-mt-en-de", "--to", str(tmp_path / "bundle")],
            "not a folder; fetch it first: hf download Helsinki-NLP/opus-mt-en-de --local-dir opus",
        ),
        ([str(good()), "--to", str(taken)], "taken: exists already and is not an export"),
        (
            [str(good()), "--to", str(tmp_path / "bundle"), "--source-language", "../x"],
            "'../x' is not a language code",
        ),
    ):
        assert main(["import", *arguments]) in (1, 2)
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert expected in said
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (taken / "letter.txt").read_text() == "dear"


def test_an_older_import_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        assert main(["import", str(good()), "--to", str(tmp_path / "bundle")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_vocabulary_that_was_altered_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    assert main(["import", str(good()), "--to", str(bundle)]) == 0
    file = bundle / "source.model"
    file.write_text(file.read_text().replace('"▁the"', '"▁teh"'))
    capsys.readouterr()
    assert main(["translate", str(bundle), "--input", str(bundle / "README.md")]) == 1
    assert "source.model" in capsys.readouterr().err


def test_a_folder_is_imported_before_it_translates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good()
    (tmp_path / "text").write_text("A dog.\n")
    capsys.readouterr()  # transformers' progress
    assert main(["translate", str(good()), "--input", str(tmp_path / "text")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"of another tool; import it first: dragoman import {good()}" in said


def test_the_model_that_is_read_is_never_the_output(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "opus")
    bundle = import_model(folder, tmp_path / "bundle").path
    text = tmp_path / "text"
    text.write_text("a dog\n")
    (tmp_path / "link").symlink_to(bundle)
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    for output in (bundle, tmp_path / "link"):
        with pytest.raises(CheckpointError, match="is the model that is read"):
            export(bundle, to="ctranslate2", output=output, sentences=text)
    exported = export(bundle, to="huggingface", output=tmp_path / "hf", sentences=text).path
    with pytest.raises(CheckpointError, match="is the model that is read"):
        import_model(exported, exported)
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before


@pytest.mark.parametrize(
    ("languages", "problem"),
    [
        ({"target_language": "fr"}, "its target language is 'de', not 'fr'"),
        ({"target_language": "fra"}, "its target language is 'de', not 'fra'"),
        ({"source_language": "cs"}, "its source language is 'en', not 'cs'"),
        ({"source_language": "english"}, "is not a language code; did you mean en?"),
        ({"source_language": "eng", "target_language": "deu"}, ""),
        ({"source_language": "en_GB"}, ""),
        ({"source_language": "eng_Latn", "target_language": "DE"}, ""),
    ],
)
def test_other_languages_than_the_folder_s_are_refused(
    languages: dict[str, str], problem: str, tmp_path: Path
) -> None:
    folder = marian_folder(tmp_path / "opus")
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    settings |= {"source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if not problem:
        import_model(folder, tmp_path / "bundle", **languages)
        return
    with pytest.raises(ConfigError, match=problem):
        import_model(folder, tmp_path / "bundle", **languages)
    assert not (tmp_path / "bundle").exists()


def test_a_language_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "opus")
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"source_lang": {}}))
    with pytest.raises(ConfigError, match=r'"source_lang" is \{\}, not the code'):
        import_model(folder, tmp_path / "bundle")


def test_a_training_names_languages_that_the_model_knows(tmp_path: Path) -> None:
    nllb, _ = m2m100_folder(tmp_path / "m2m100")
    opus = marian_folder(tmp_path / "many", codes=(">>deu<<", ">>fra<<"))
    (tmp_path / "a.tsv").write_text("a dog\tein Hund\n" * 20)
    for folder, source, target in ((nllb, "tlh", "de"), (opus, "eng", "ita")):
        recipe = {
            "corpus": {
                "train": [{"tsv": str(tmp_path / "a.tsv")}],
                "valid_pairs": 5,
                "source_language": source,
                "target_language": target,
            }
        }
        with pytest.raises(ConfigError, match=r"has no language 'tlh'|has no >>ita<<"):
            dragoman.train(recipe, origin=folder, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
