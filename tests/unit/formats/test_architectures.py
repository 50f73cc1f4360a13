"""Every architecture a recipe can describe, beside CTranslate2 and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
from sentencepiece import SentencePieceProcessor

from dragoman.base.errors import ConfigError
from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.corpus.normalize import INVISIBLE, UNICODE_SPACES, normalize
from dragoman.corpus.shards import EOS, PAD
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.formats.ctranslate2 import write_ctranslate2
from dragoman.formats.ctranslate2_engine import CTranslate2Engine
from dragoman.formats.huggingface import (
    check_expressible,
    family_of,
    tokenizer_files,
)
from dragoman.formats.onnx import translate_with_onnx, write_onnx
from dragoman.importing.weights import Form, checked_files, read_model
from dragoman.model.config import ModelConfig, SearchConfig, length_limit
from dragoman.model.search import translate_batch
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe
from hugging_face import as_exported
from real_text import real_lines
from trained_model import real_pairs, train_on_real_text

ARCHITECTURES: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"norm": "post"},
    {"norm": "post", "tied_embeddings": "decoder", "attention_bias": False},
    {"norm": "post", "tied_embeddings": "none", "activation": "gelu"},
    {"norm": "pre", "activation": "gelu", "attention_bias": False},
    {"norm": "pre", "activation": "swiglu", "tied_embeddings": "none"},
]
SEARCHES = [
    SearchConfig(beam_size=4),
    SearchConfig(beam_size=1, max_length_ratio=1.0, max_length_extra=2),
    SearchConfig(beam_size=3, length_penalty="power", length_penalty_alpha=0.8),
    SearchConfig(beam_size=3, length_penalty="power", length_penalty_alpha=0.0),
    SearchConfig(beam_size=4, max_length_ratio=0.5, max_length_extra=1),
]

LONG = 540
"""Pieces; a new model has 512 positions."""


def random_model(vocab_size: int, options: dict[str, Any]) -> Transformer:
    """Random weights, yet of a kind that ends its sentences now and then."""
    torch.manual_seed(3)
    shape = {"d_model": 32, "num_heads": 4, "d_ffn": 48, "encoder_layers": 2, "decoder_layers": 3}
    config = ModelConfig.model_validate(shape | options)
    model = Transformer(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.embeddings.output_matrix[EOS] *= 1.5
    return model.eval()


@pytest.fixture
def subword() -> Subword:
    return real_pairs()[1]


@pytest.fixture
def sources() -> list[list[int]]:
    """The last is longer than the table of positions that is made at first."""
    rows = real_pairs()[2][:24]
    long = [piece for row in rows for piece in row][:LONG]
    assert len(long) == LONG
    return [*rows, long]


def test_tied_embeddings_are_in_an_onnx_file_once(
    subword: Subword, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    model = random_model(subword.vocab_size, {"tied_embeddings": "all"})
    write_onnx(model, tmp_path, metadata={})
    decoder = onnx.load(str(tmp_path / "decoder.onnx"))
    shapes = [tuple(one.dims) for one in decoder.graph.initializer]
    assert shapes.count(tuple(model.embeddings.output_matrix.shape)) == 1
    monkeypatch.setattr("dragoman.formats.onnx._MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"encoder\.onnx: would hold .* at most 2 GiB; export"):
        write_onnx(model, tmp_path, metadata={})


@pytest.mark.system
@pytest.mark.parametrize("options", ARCHITECTURES, ids=str)
def test_ctranslate2_finds_the_hypotheses_of_our_search(
    options: dict[str, Any], subword: Subword, sources: list[list[int]], tmp_path: Path
) -> None:
    model = random_model(subword.vocab_size, options)
    write_ctranslate2(model, (subword, subword), tmp_path, quantization="float32")
    engine = CTranslate2Engine(tmp_path, (subword, subword), threads=1, batch_cells=2048)
    for config in SEARCHES:
        ours = translate_batch([model], sources[:-1], config, num_hypotheses=config.beam_size)
        theirs = engine.search(sources[:-1], config, num_hypotheses=config.beam_size)
        others = 0
        for own, other in zip(ours, theirs, strict=True):
            same = [one.ids for one in own] == [one.ids for one in other][: len(own)]
            others += not same
            for one, two in zip(own, other, strict=False):
                assert one.score == pytest.approx(two.score, rel=1e-3 if same else 0.02, abs=1e-3)
        # With random weights, rounding may decide which of two candidates a beam drops.
        assert others <= 1
    (own,) = translate_batch([model], sources[-1:], SEARCHES[1])
    (other,) = engine.search(sources[-1:], SEARCHES[1])
    assert own[0].ids == other[0].ids


def test_a_row_has_its_own_length_limit_in_a_batch_of_longer_ones(
    subword: Subword, sources: list[list[int]], tmp_path: Path
) -> None:
    """A row beyond its limit is cut if nobody reads its score; else it is searched again."""
    model = random_model(subword.vocab_size, ARCHITECTURES[0])
    write_ctranslate2(model, (subword, subword), tmp_path, quantization="float32")
    engine = CTranslate2Engine(tmp_path, (subword, subword), threads=1, batch_cells=2048)
    search = SearchConfig(beam_size=1, max_length_ratio=1.0, max_length_extra=2)
    ours = [best.ids for best, *_ in translate_batch([model], sources[:-1], search)]
    limits = [length_limit(len(source), search) for source in sources[:-1]]
    reached = [len(ids) == limit < max(limits) for ids, limit in zip(ours, limits, strict=True)]
    assert any(reached)
    for scored in (True, False):
        found = engine.submit(sources[:-1], search, scored=scored)()
        assert [best.ids for best, *_ in found] == ours
        assert {best.score < 0 for best, *_ in found} == {scored}


@pytest.mark.parametrize("penalty", ["gnmt", pytest.param("power", marks=pytest.mark.system)])
def test_neighbours_do_not_change_the_translation_of_a_row(
    tmp_path: Path, penalty: Literal["gnmt", "power"]
) -> None:
    """Even if its search exceeds its own length limit and its best hypothesis does not."""
    trained = train_on_real_text()
    subwords = (trained.subword, trained.subword)
    write_ctranslate2(trained.model, subwords, tmp_path, quantization="float32")
    engine = CTranslate2Engine(tmp_path, subwords, threads=1, batch_cells=20_000)
    search = SearchConfig(
        beam_size=8,
        length_penalty=penalty,
        length_penalty_alpha=0.0,
        max_length_ratio=0.4,
        max_length_extra=1,
    )
    sources = trained.sources[:200]
    together = [best.ids for best, *_ in engine.search(sources, search)]
    alone = [engine.search([source], search)[0][0].ids for source in sources]
    assert sum(a != b for a, b in zip(together, alone, strict=True)) <= 1  # as below


@pytest.mark.parametrize(
    "alpha", [0.6, *(pytest.param(alpha, marks=pytest.mark.system) for alpha in (0.0, 1.0))]
)
def test_ctranslate2_ranks_by_gnmt_as_our_search_does(tmp_path: Path, alpha: float) -> None:
    """CTranslate2 has another length penalty, but returns the same translations."""
    beam_size = 4
    trained = train_on_real_text()
    subwords = (trained.subword, trained.subword)
    write_ctranslate2(trained.model, subwords, tmp_path, quantization="float32")
    engine = CTranslate2Engine(tmp_path, subwords, threads=1, batch_cells=8192)
    config = SearchConfig(beam_size=beam_size, length_penalty_alpha=alpha)
    sources = trained.sources[:100]
    for num_hypotheses in (1, beam_size - 1, beam_size):
        ours = translate_batch([trained.model], sources, config, num_hypotheses=num_hypotheses)
        theirs = engine.search(sources, config, num_hypotheses=num_hypotheses)
        others = 0
        for own, other in zip(ours, theirs, strict=True):
            if [one.ids for one in own] != [one.ids for one in other]:
                others += 1
                continue
            scores = [one.score for one in other]
            assert [one.score for one in own] == pytest.approx(scores, rel=1e-3, abs=5e-3)
        assert others <= 1  # rounding may decide between two


@pytest.mark.parametrize(
    "options",
    [
        ARCHITECTURES[0],
        pytest.param(ARCHITECTURES[1], marks=pytest.mark.system),
        *(pytest.param(options, marks=pytest.mark.slow) for options in ARCHITECTURES[2:-1]),
        ARCHITECTURES[-1],
    ],
    ids=str,
)
def test_onnx_finds_the_hypotheses_of_our_search(
    options: dict[str, Any], subword: Subword, sources: list[list[int]], tmp_path: Path
) -> None:
    model = random_model(subword.vocab_size, options)
    write_onnx(model, tmp_path, metadata={})
    search = SearchConfig(beam_size=1, max_length_ratio=1.0, max_length_extra=2)
    for batch in (sources[:-1], [*sources[:2], sources[-1]]):
        ours = [best.ids for best, *_ in translate_batch([model], batch, search)]
        assert translate_with_onnx(tmp_path, batch, search) == ours


@pytest.mark.system
@pytest.mark.parametrize("options", ARCHITECTURES[:-1], ids=str)
def test_transformers_finds_the_hypotheses_of_our_search(
    options: dict[str, Any], subword: Subword, sources: list[list[int]]
) -> None:
    model = random_model(subword.vocab_size, options)
    theirs = as_exported(model)
    config = SearchConfig(
        beam_size=4,
        length_penalty="power",
        length_penalty_alpha=0.6,
        never_padding=True,  # FSMT gives it no position; a model that is trained does not choose it
    )
    for source in sources[:8]:
        ((own,),) = translate_batch([model], [source], config)
        ids = torch.tensor([[*source, EOS]])
        limit = int(len(source) * config.max_length_ratio) + config.max_length_extra
        (found,) = theirs.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=4, length_penalty=0.6,
            early_stopping=True, do_sample=False, max_new_tokens=limit, bad_words_ids=[[PAD]],
        ).tolist()  # fmt: skip
        found = found[1:]
        assert own.ids == (found[: found.index(EOS)] if EOS in found else found)


@pytest.mark.parametrize(
    "options", [*ARCHITECTURES[:-1], {"norm": "post", "attention_bias": False}], ids=str
)
def test_weights_saved_by_transformers_are_read_back_unchanged(
    options: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(60, options)
    as_exported(model).save_pretrained(tmp_path)
    form = Form(family_of(model.config), model.config, (60, 60))
    again = read_model(tmp_path, checked_files(tmp_path, form), form, (range(60), range(60)))
    weights = dict(again.named_parameters())
    for name, weight in model.named_parameters():
        assert torch.equal(weights[name], weight), name


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"activation": "swiglu"}, "model.activation"),
        ({"norm": "pre", "tied_embeddings": "decoder"}, "model.tied_embeddings"),
    ],
)
def test_options_that_transformers_lacks_are_named(options: dict[str, Any], place: str) -> None:
    recipe = recipe_of(ModelConfig.model_validate(options), joint=True)
    with pytest.raises(ConfigError, match=place):
        check_expressible(recipe)


def test_two_vocabularies_with_tokens_of_languages_are_refused_for_transformers() -> None:
    recipe = recipe_of(ModelConfig(norm="post", tied_embeddings="none"), joint=False)
    check_expressible(recipe)
    corpus = recipe.corpus.model_copy(update={"language_token": True})
    with pytest.raises(ConfigError, match=r"corpus\.subword\.joint"):
        check_expressible(recipe.model_copy(update={"corpus": corpus}))


def recipe_of(model: ModelConfig, *, joint: bool) -> Recipe:
    corpus = CorpusConfig(
        train=(TextFiles(source="a.en", target="a.de"),),
        valid_pairs=1,
        subword=SubwordConfig(joint=joint),
    )
    return Recipe(name="x", corpus=corpus, model=model)


HOSTILE = [
    "Zwei  Männer\tstehen.",
    "naïve café — “quoted” …",
    "e\u0301 decomposed",
    "\ufeffbom and\u00a0no-break",
    "emoji 👩‍👩‍👧 and 漢字 end",
    "שלום עולם",
    "\u2581 lower block \u2581\u2581x",
    "UPPER lower ŒUVRE İ",
    "",
    "   ",
    "a" * 300,
    "\x0bcontrol\x0c characters\x1f at an end \x85",
    f"a{INVISIBLE}b{UNICODE_SPACES}c \u200b",
]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("signs", ["", "< / >"])
def test_the_tokenizer_of_transformers_gives_our_ids(
    kind: Any, lowercase: bool, signs: str, tmp_path: Path
) -> None:
    tokens, tags = ("<2de>", "<2pt-br>"), ("<bt>", "<s-t>")
    text = normalize("\n".join(real_lines("valid", "de")), lowercase=lowercase).split("\n")
    words = count_words([*text, *[signs] * 20])  # of the names of special pieces
    config = SubwordConfig(vocab_size=600, kind=kind)
    file = train_on_words(words, config, tags=tags, tokens=tokens)
    own = Subword(SentencePieceProcessor(model_proto=file))
    recipe = recipe_of(ModelConfig(), joint=True)
    corpus = recipe.corpus.model_copy(update={"lowercase": lowercase})
    files = tokenizer_files((file, file), recipe.model_copy(update={"corpus": corpus}))
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == own.vocab_size
    assert theirs.tokenize("<2de> <bt> Ein")[:3] == ["<2de>", "▁", "<bt>"]
    for line in [*text[:100], *HOSTILE]:
        first = line.split(" ", 1)[0]
        for whole in (
            line,
            f"<2de> {line}",
            f"<2pt-br> {line}",
            f"<bt> {line}",
            f"\ufeff  <s-t>  {line}",
            f"{line} <bt>",
            f"{first}<bt>{line}",
            f"<bt><s-t> {line}>bt<",
            f"<2de> <bt> {line}",
        ):
            (expected,) = own.encode([normalize(whole, lowercase=lowercase)])
            assert theirs(whole)["input_ids"] == [*expected, EOS], whole
    rows = own.encode(text[:50])
    assert theirs.batch_decode(rows) == own.decode(rows)
