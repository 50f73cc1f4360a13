"""CTranslate2's own converter reads our Hugging Face export as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.formats.huggingface import write_folder
from dragoman.model.config import SearchConfig
from dragoman.model.search import translate_batch
from dragoman.recipe.recipe import Recipe
from real_text import real_lines
from trained_model import VOCAB_SIZE, train_on_real_text

NUM_SENTENCES = 200


@pytest.mark.system
def test_a_converted_export_translates_as_our_search_does(tmp_path: Path) -> None:
    converters = pytest.importorskip("ctranslate2.converters")
    import ctranslate2

    trained = train_on_real_text()
    corpus = CorpusConfig(
        train=(TextFiles(source="a.en", target="b.de"),),
        valid_pairs=1,
        subword=SubwordConfig(vocab_size=VOCAB_SIZE),
    )
    search = SearchConfig(beam_size=4, length_penalty="power", length_penalty_alpha=0.6)
    recipe = Recipe(name="x", corpus=corpus, model=trained.model.config, search=search)
    export, converted = tmp_path / "export", tmp_path / "converted"
    export.mkdir()
    vocabularies = (trained.subword_file, trained.subword_file)
    write_folder(trained.model, recipe, 0.0, vocabularies, export)
    converters.TransformersConverter(str(export)).convert(str(converted))

    lines = real_lines("test", "en")[:NUM_SENTENCES]
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(export)
    translator = ctranslate2.Translator(str(converted), inter_threads=1, intra_threads=1)
    found = translator.translate_batch(
        [tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"]) for line in lines],
        beam_size=4, length_penalty=0.6, max_decoding_length=100,
    )  # fmt: skip
    theirs = [
        tokenizer.decode(tokenizer.convert_tokens_to_ids(one.hypotheses[0]),
                         skip_special_tokens=True)
        for one in found
    ]  # fmt: skip
    limits = search.model_copy(update={"max_length_ratio": 0.0, "max_length_extra": 100})
    ids = trained.subword.encode(lines)
    ours = trained.subword.decode(
        [best.ids for best, *_ in translate_batch([trained.model], ids, limits)]
    )
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"{equal} of {NUM_SENTENCES} lines are equal")
    assert equal >= 0.99 * NUM_SENTENCES
