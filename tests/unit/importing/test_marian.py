"""MarianMT models: the same tokens, logits and translations as in transformers."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman.base.errors import ConfigError
from dragoman.cli import main
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.shards import EOS, PAD
from dragoman.evaluation.sentences import cut_into_chunks
from dragoman.formats.onnx import translate_with_onnx, write_onnx
from dragoman.importing.folder import ImportedModel, read_folder
from dragoman.importing.tokenizer import Languages
from dragoman.inference.text import TextFormat
from dragoman.inference.translator import open_translator
from dragoman.model.config import SearchConfig
from dragoman.model.search import translate_batch
from foreign_models import (
    MARIAN_VARIANTS,
    marian_folder,
    write_marian_tokenizer,
)
from own_folder import own_folder
from real_text import real_lines
from trained_model import batch_of

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


@cache
def opus() -> Path:
    """One folder for all tests that only read it."""
    return marian_folder(own_folder("opus") / "opus-mt-en-de", loud=True)


def vocabularies(imported: ImportedModel) -> tuple[ImportedVocabulary, ImportedVocabulary]:
    source, target = (
        ImportedVocabulary.parse(content, place=Path("memory")) for content in imported.vocabularies
    )
    return source, target


def theirs_of(folder: Path) -> tuple[Any, Any]:
    """Model in eval mode and tokenizer, as transformers loads them."""
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    return model, transformers.MarianTokenizer.from_pretrained(folder)


def in_their_ids(vocabulary: ImportedVocabulary, ids: list[int]) -> list[int]:
    return [vocabulary.file.their_ids[one] for one in ids]


def check_logits(folder: Path, *, sentences: int = 12) -> None:
    """Ours of a batch of unequal lengths beside theirs, on real text, padding left out."""
    imported = read_folder(folder, Languages())
    source, target = vocabularies(imported)
    theirs, tokenizer = theirs_of(folder)
    texts, references = real_lines("test", "en")[:sentences], real_lines("test", "de")[:sentences]
    asked = tokenizer(texts, text_target=references, padding=True, return_tensors="pt")
    labels = asked["labels"]
    start = theirs.config.decoder_start_token_id
    inputs = torch.cat([torch.full((len(labels), 1), start), labels[:, :-1]], dim=1)
    with torch.no_grad():
        expected = theirs(
            input_ids=asked["input_ids"], attention_mask=asked["attention_mask"],
            decoder_input_ids=inputs,
        ).logits  # fmt: skip
    ours = [source.encode(texts), target.encode(references)]
    for row, (ids, wanted) in enumerate(zip(ours[1], labels.tolist(), strict=True)):
        assert [*in_their_ids(target, ids), 0] == wanted[: len(ids) + 1], references[row]
    with torch.no_grad():
        found = imported.model.logits(batch_of(*ours))
    order = torch.tensor(target.file.their_ids)
    for row, ids in enumerate(ours[1]):
        length = len(ids) + 1
        wanted = expected[row, :length][:, order]
        assert wanted.std() > 0.3  # random, yet not flat
        torch.testing.assert_close(found[row, :length], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MARIAN_VARIANTS)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    check_logits(marian_folder(tmp_path / "model", MARIAN_VARIANTS[name]))


def test_a_bias_of_zeros_costs_nothing(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "model", biased=False)
    check_logits(folder)
    assert not read_folder(folder, Languages()).recipe.model.output_bias


def test_half_precision_and_several_files_are_read(tmp_path: Path) -> None:
    folder = marian_folder(tmp_path / "model")
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float16)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    check_logits(folder)


def test_a_folder_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Keys of generation in config.json, keys nobody reads any more, positions in the weights."""
    folder = marian_folder(tmp_path / "model")
    generation = json.loads((folder / "generation_config.json").read_bytes())
    config = json.loads((folder / "config.json").read_bytes())
    for name in ("share_encoder_decoder_embeddings", "decoder_vocab_size", "tie_word_embeddings"):
        del config[name]  # others' defaults
    config |= {
        "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
        "static_position_embeddings": True, "add_bias_logits": False, "extra_pos_embeddings": 58101,
        "id2label": {"0": "LABEL_0"}, "num_hidden_layers": 2, "classif_dropout": 0.0,
        "num_beams": 3, "max_length": 40, "bad_words_ids": generation["bad_words_ids"],
        "length_penalty": 0.8,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    model, _ = theirs_of(folder)
    weights = load_file(folder / "model.safetensors")
    positions = model.model.encoder.embed_positions.weight.detach()
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_positions.weight"] = positions.clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    check_logits(folder)
    search = read_folder(folder, Languages()).recipe.search
    assert search.beam_size == 3
    assert search.length_penalty_alpha == 0.8
    assert search.max_length_ratio == 0
    assert search.max_length_extra == 39
    assert search.never_padding
    assert search.end_at_limit


@pytest.mark.slow
@pytest.mark.parametrize("pair", [("en", "de"), ("fr", "cs"), ("cs", "en"), ("de", "fr")])
def test_a_thousand_sentences_have_the_same_tokens(
    tmp_path: Path, shared_data: Path, pair: tuple[str, str]
) -> None:
    lines = {
        language: (shared_data / "multi30k" / f"train.{language}").read_text("utf-8").splitlines()
        for language in pair
    }
    sides = (tuple(lines[pair[0]][:8000]), tuple(lines[pair[1]][:8000]))
    sizes = write_marian_tokenizer(tmp_path, sides, vocab_size=2000)
    check_tokens(tmp_path, sizes, lines[pair[0]][-1000:], lines[pair[1]][-1000:])


def test_sentences_have_the_same_tokens(tmp_path: Path) -> None:
    sides = tuple(tuple(real_lines("train", language)[:3000]) for language in ("en", "de"))
    sizes = write_marian_tokenizer(tmp_path, (sides[0], sides[1]), vocab_size=800)
    strange = [
        "ﬁne  ligatures … ½ ①",
        "☃ and 漢字☃",
        "x" * 300,
        "a\u00a0b",
        "émigré é",
        "🙂🙂",
        "▁",
    ]
    lines = [*real_lines("test", "en"), *strange]
    check_tokens(tmp_path, sizes, lines, [*real_lines("test", "de"), *strange])


def check_tokens(
    folder: Path, sizes: tuple[int, int], sources: list[str], targets: list[str]
) -> None:
    """Ids of both sides, there and back, beside those of MarianTokenizer."""
    from dragoman.corpus.normalize import normalize
    from dragoman.importing.config import read_config
    from dragoman.importing.tokenizer import read_tokenizer

    padding = sizes[0] - 1
    config = {"model_type": "marian", "vocab_size": sizes[0], "pad_token_id": padding,
        "decoder_start_token_id": padding}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = read_tokenizer(folder, read_config(folder), Languages())
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    unknown = 0
    for file, texts, asked in (
        (tokenizer.source, sources, theirs(sources)["input_ids"]),
        (tokenizer.target, targets, theirs(text_target=targets)["input_ids"]),
    ):
        content = file.model_dump_json().encode()
        vocabulary = ImportedVocabulary.parse(content, place=folder)
        ours = vocabulary.encode([normalize(text) for text in texts])
        for text, ids, expected in zip(texts, ours, asked, strict=True):
            assert [*in_their_ids(vocabulary, ids), 0] == expected, text
            unknown += expected.count(1)
        written = theirs.batch_decode(asked, skip_special_tokens=True)
        assert vocabulary.decode([[*ids, EOS] for ids in ours]) == written
    assert unknown > 0  # pieces that the list does not have


def beam_translations(folder: Path, texts: list[str], **options: Any) -> list[str]:
    theirs, tokenizer = theirs_of(folder)
    asked = tokenizer(texts, padding=True, return_tensors="pt")
    found = theirs.generate(**asked, **options)
    written: list[str] = tokenizer.batch_decode(found, skip_special_tokens=True)
    return written


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 7},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                {"early_stopping": True},
                {"renormalize_logits": False},
                {"num_beams": 1},
                {"length_penalty": 0.4},
            )
        ),
    ],
)
def test_beam_search_finds_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    """A short limit cuts most translations off: then the end is forced, at no cost."""
    folder = shutil.copytree(opus(), tmp_path / "model")
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | options))
    imported = read_folder(folder, Languages())
    source, target = vocabularies(imported)
    texts = real_lines("test", "en")[:100]
    found = translate_batch([imported.model], source.encode(texts), imported.recipe.search)
    ours = target.decode([best.ids for best, *_ in found])
    expected = beam_translations(folder, texts)
    assert sum(map(str.__eq__, ours, expected)) == 100
    assert len(set(ours)) > 20
    plain = imported.recipe.search.model_copy(
        update={"early_stopping": True, "renormalize": True, "length_penalty_alpha": 1.0}
    )
    others = translate_batch([imported.model], source.encode(texts), plain)
    if plain != imported.recipe.search and "num_beams" not in options:
        assert others != found, "the settings are seen"


@pytest.mark.system
@pytest.mark.parametrize("name", ["opus", "starts with the end", "separate vocabularies"])
def test_the_graphs_of_an_export_to_onnx_decode_as_transformers(tmp_path: Path, name: str) -> None:
    folder = marian_folder(tmp_path / "model", MARIAN_VARIANTS[name], loud=True)
    imported = read_folder(folder, Languages())
    source, target = vocabularies(imported)
    write_onnx(imported.model, tmp_path, metadata={})
    texts = real_lines("test", "en")[:100]
    start_ids = imported.recipe.model.start_ids
    found = translate_with_onnx(
        tmp_path, source.encode(texts), imported.recipe.search, start_ids=start_ids
    )
    theirs, tokenizer = theirs_of(folder)
    asked = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        rows = theirs.generate(**asked, num_beams=1, early_stopping=False, forced_eos_token_id=None)
    special = (0, theirs.config.pad_token_id)
    expected = [[one for one in row if one not in special] for row in rows.tolist()]
    assert [in_their_ids(target, ids) for ids in found] == expected
    assert len(set(map(tuple, expected))) > 20
    assert start_ids == ((EOS,) if name == "starts with the end" else (PAD,))
    from_s = translate_with_onnx(tmp_path, source.encode(texts), imported.recipe.search)
    assert from_s != found, "the start is seen"


@pytest.mark.system
def test_the_command_imports_and_translates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With CTranslate2 as with its own converter's files, with PyTorch as with transformers."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    bundle, lines, out = tmp_path / "bundle", tmp_path / "in.txt", tmp_path / "out.txt"
    assert main(["import", str(opus()), "--to", str(bundle), "--licence", "CC-BY 4.0"]) == 0
    assert "en to de" in capsys.readouterr().out
    assert "CC-BY 4.0" in (bundle / "README.md").read_text()
    texts = real_lines("test", "en")[:100]
    lines.write_text("\n".join(texts) + "\n")

    def translated(engine: str, *options: str) -> list[str]:
        out.unlink(missing_ok=True)
        arguments = ["translate", str(bundle), "--input", str(lines), "--output", str(out)]
        assert main([*arguments, "--engine", engine, *options]) == 0
        return out.read_text().splitlines()

    expected = beam_translations(opus(), texts)
    assert translated("torch") == expected
    assert beam_translations(bundle, texts) == expected, "it is a folder of transformers, too"
    converter = ctranslate2.converters.TransformersConverter(str(opus()))
    converter.convert(str(tmp_path / "converted"))
    model = ctranslate2.Translator(str(tmp_path / "converted"), inter_threads=1, intra_threads=1)
    _, tokenizer = theirs_of(opus())
    pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
    results = model.translate_batch(
        pieces, beam_size=4, length_penalty=1.0, max_decoding_length=46, min_decoding_length=0
    )
    expected = [
        tokenizer.decode(tokenizer.convert_tokens_to_ids(result.hypotheses[0]))
        for result in results
    ]
    # CTranslate2 by itself forces no end at the limit.
    alike = ["--set", "search.end_at_limit=false", "--set", "search.max_length_extra=46"]
    found = translated("ctranslate2", *alike)
    assert sum(map(str.__eq__, found, expected)) == 100


def test_a_language_is_chosen_for_all_or_in_a_text(tmp_path: Path) -> None:
    codes = (">>deu<<", ">>nld<<")
    folder = marian_folder(tmp_path / "model", codes=codes)
    source, _ = vocabularies(read_folder(folder, Languages()))
    _, tokenizer = theirs_of(folder)
    texts = [">>nld<< Open the file.", "Open the file.", ">>xyz<< Open", ">>nld<<Open", ">> a"]
    for text, ids in zip(texts, source.encode(texts), strict=True):
        assert [*in_their_ids(source, ids), 0] == tokenizer(text)["input_ids"], text
    chosen, _ = vocabularies(read_folder(folder, Languages(target="deu")))
    plain, prefixed = chosen.encode(["Open the file.", ">>nld<< Open the file."])
    assert chosen.pieces(plain)[0] == ">>deu<<"
    assert plain[1:] == source.encode(["Open the file."])[0]
    assert chosen.pieces(prefixed)[0] == ">>nld<<"
    for text, code in (("", ">>deu<<"), (">>nld<< ", ">>nld<<")):
        text += "Open the file. " * 20
        chunks = cut_into_chunks(text.strip(), chosen, max_pieces=30)
        assert len(chunks) > 2
        for chunk in chunks:
            assert len(chunk) <= 30
            assert [piece for piece in chosen.pieces(chunk) if piece in codes] == [code]
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    several = settings | {"target_lang": "deu+nld"}  # as published models name them
    (folder / "tokenizer_config.json").write_text(json.dumps(several))
    assert read_folder(folder, Languages()).recipe.corpus.target_language == "deu_nld"
    with pytest.raises(ConfigError, match=r"has no >>fra<<; it has >>deu<<, >>nld<<"):
        read_folder(folder, Languages(target="fra"))


def test_the_code_of_a_text_is_of_all_its_sentences(tmp_path: Path) -> None:
    codes = (">>deu<<", ">>nld<<")
    folder, bundle = marian_folder(tmp_path / "model", codes=codes), tmp_path / "bundle"
    assert main(["import", str(folder), "--to", str(bundle)]) == 0
    with open_translator(
        bundle, checkpoints=["best"], overrides=(), engine="torch", threads=1
    ) as opened:
        translator = opened.translator
        source = translator.subwords[0]

        def found(text: str, text_format: TextFormat) -> list[str]:
            rows = translator.encode([text], text_format).rows
            return [source.pieces(row)[0] for row in rows]

        nld, deu = ">>nld<<", ">>deu<<"
        two = "Open the file. Close it."
        assert found(f"{nld} {two}", "document") == [nld, nld]
        assert found(f"{nld}\n\nOpen it.\n{deu} Close it. Open it.", "document") == [nld, deu, deu]
        assert found("<p>&gt;&gt;nld&lt;&lt; <b>Open</b> it. Close it.</p>", "markup") == [nld] * 2
        assert set(found(f"{nld} {two * 500}", "line")) == {nld}
        for text in (two, f">>xyz<< {two}"):  # no code, and one that the model does not know
            assert nld not in found(text, "document") + found(text, "line")
        assert translator.encode([f"{nld} {two}", two], "document").rows[2:] == (
            translator.encode([two], "document").rows
        ), "a code is of its own text alone"
        later = translator.after(["\n", f"{nld} Open it."], "document")
        first, second = later.encode(["Close it.", f"{deu} Close it."], "document").rows
        assert (source.pieces(first)[0], source.pieces(second)[0]) == (nld, deu)


def test_padding_is_never_said_and_never_missed() -> None:
    """transformers counts the probability of padding and does not use it: so do we."""
    imported = read_folder(opus(), Languages())
    source, _ = vocabularies(imported)
    ids = source.encode(real_lines("test", "en")[:8])
    model = imported.model
    assert model.embeddings.output_bias is not None
    bias = model.embeddings.output_bias.clone()
    search = SearchConfig(beam_size=4, max_length_ratio=0, max_length_extra=12, never_padding=True)
    with torch.no_grad():
        model.embeddings.output_bias[0] = 9.0  # far likelier than all others
    found = translate_batch([model], ids, search)
    assert all(0 not in best.ids for best, *_ in found)
    assert all(best.log_probability < -3 * len(best.ids) for best, *_ in found)
    careless = search.model_copy(update={"never_padding": False})
    assert all(set(best.ids) <= {0} for best, *_ in translate_batch([model], ids, careless))
    with torch.no_grad():
        model.embeddings.output_bias.copy_(bias)


def test_the_loss_counts_the_bias() -> None:
    imported = read_folder(opus(), Languages())
    source, target = vocabularies(imported)
    lines = real_lines("test", "en")[:6], real_lines("test", "de")[:6]
    batch = batch_of(source.encode(lines[0]), target.encode(lines[1]))
    for smoothing in (0.0, 0.1):
        model = imported.model
        model.config = model.config.model_copy(update={"label_smoothing": smoothing})
        logits = model.logits(batch)
        rows = np.concatenate([np.arange(n) for n in batch.target_lengths_B.tolist()])
        sentences = np.repeat(np.arange(6), batch.target_lengths_B.numpy())
        expected = torch.nn.functional.cross_entropy(
            logits[sentences, rows], batch.target_BT[sentences, rows], reduction="sum",
            label_smoothing=smoothing,
        )  # fmt: skip
        torch.testing.assert_close(model(batch).loss, expected, rtol=1e-5, atol=0)
