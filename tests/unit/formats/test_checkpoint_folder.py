"""A checkpoint is a folder in Hugging Face form: transformers loads it as it lies in the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman.corpus.config import CorpusConfig, SubwordConfig, TextFiles
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.distributed.world import join_world
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.formats.trained_model import layout_to_write
from dragoman.model.config import ModelConfig, SearchConfig
from dragoman.model.search import translate_batch
from dragoman.model.transformer import Transformer
from dragoman.recipe.recipe import Recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.training.average import average_checkpoints
from dragoman.training.checkpoint import CheckpointStore, TrainState, load_weights
from dragoman.training.config import CheckpointConfig
from hostile import SMALL_RUN
from real_text import real_lines

transformers = pytest.importorskip("transformers")

NUM_SENTENCES = 12
START = TrainState(seed=1, world_size=1, recipe_digest="r", corpus_digest="c")
SEARCH = SearchConfig(
    length_penalty="power",
    max_length_ratio=0.0,
    max_length_extra=12,
    never_padding=True,  # FSMT gives it no position; a model that is trained does not choose it
)
SHAPE = {"d_model": 32, "num_heads": 4, "d_ffn": 48, "encoder_layers": 2, "decoder_layers": 1}
FORMS: dict[str, dict[str, Any]] = {
    "pre": {"norm": "pre"},
    "pre, no biases": {"norm": "pre", "attention_bias": False},
    "post": {"norm": "post"},
    "post, two vocabularies": {"norm": "post", "tied_embeddings": "decoder"},
    "post, nothing tied": {"norm": "post", "tied_embeddings": "none", "activation": "gelu"},
}
NOT_THERE: dict[str, dict[str, Any]] = {
    "model.activation": {"activation": "swiglu"},
    "model.tied_embeddings": {"norm": "pre", "tied_embeddings": "decoder"},
}


class Saved:
    """A random model that a store has saved."""

    def __init__(self, options: dict[str, Any], folder: Path) -> None:
        joint = options.get("tied_embeddings", "all") == "all"
        text = [real_lines("valid", side)[:400] for side in ("en", "de")]
        subwords = SubwordConfig(vocab_size=300, joint=joint)
        sides = [text[0] + text[1]] * 2 if joint else text
        self.files = tuple(train_on_words(count_words(side), subwords) for side in sides)
        corpus = CorpusConfig(
            train=(TextFiles(source="a.en", target="a.de"),),
            valid_pairs=1,
            subword=subwords,
            max_pieces=40,
        )
        config = ModelConfig.model_validate(SHAPE | options)
        self.recipe = Recipe(name="x", corpus=corpus, model=config, search=SEARCH)
        self.model = self.random_model(1)
        source, target = self.files
        self.layout = layout_to_write(self.recipe, 20.0, (source, target))
        self.store = CheckpointStore(folder, CheckpointConfig(keep_last=9), self.layout)
        self.path = self.save(self.model, 1)

    def random_model(self, seed: int) -> Transformer:
        torch.manual_seed(seed)
        sizes = [Subword.parse(file, place=Path()).vocab_size for file in self.files]
        model = Transformer(
            self.recipe.model, source_vocab_size=sizes[0], target_vocab_size=sizes[1]
        )
        with torch.no_grad():  # so that translations differ
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
                else:
                    parameter.mul_(3.0)
        return model.eval()

    def save(self, model: Transformer, step: int) -> Path:
        state = START.model_copy(update={"step": step})
        return self.store.save(state, {"model": dict(model.named_parameters())}).path

    def our_translations(self, model: Transformer, lines: list[str]) -> list[str]:
        source, target = (Subword.parse(file, place=Path()) for file in self.files)
        found = translate_batch([model], source.encode(lines), SEARCH)
        return target.decode([best.ids for best, *_ in found])


def their_translations(folder: Path, lines: list[str]) -> list[str]:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    translations = []
    for line in lines:
        ids = torch.tensor(tokenizer([line])["input_ids"])
        (found,) = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12)
        translations.append(tokenizer.decode(found, skip_special_tokens=True))
    return translations


@pytest.mark.parametrize("name", FORMS)
def test_transformers_translates_from_a_checkpoint_and_an_average(
    name: str, tmp_path: Path
) -> None:
    saved = Saved(FORMS[name], tmp_path)
    lines = real_lines("test", "en")[:NUM_SENTENCES]
    ours = saved.our_translations(saved.model, lines)
    assert len({*ours}) > NUM_SENTENCES / 3
    assert [one.strip() for one in their_translations(saved.path, lines)] == [
        one.strip() for one in ours
    ]
    other = saved.save(saved.random_model(2), 2)
    average_checkpoints([saved.path, other], tmp_path / "average")
    mean = saved.random_model(3)
    load_weights(tmp_path / "average", mean, saved.layout)
    assert [one.strip() for one in their_translations(tmp_path / "average", lines)] == [
        one.strip() for one in saved.our_translations(mean, lines)
    ]


@pytest.mark.parametrize("options", [*FORMS.values(), *NOT_THERE.values()], ids=str)
def test_weights_come_back_bit_for_bit(options: dict[str, Any], tmp_path: Path) -> None:
    saved = Saved(options, tmp_path)
    again = saved.random_model(2)
    load_weights(saved.path, again, saved.layout)
    weights = dict(again.named_parameters())
    assert all(torch.equal(weights[name], one) for name, one in saved.model.named_parameters())


@pytest.mark.parametrize("setting", NOT_THERE)
def test_a_model_that_transformers_lacks_says_so(setting: str, tmp_path: Path) -> None:
    saved = Saved(NOT_THERE[setting], tmp_path)
    config = json.loads((saved.path / "config.json").read_bytes())
    assert config["not_in_transformers"] == setting
    with pytest.raises(ValueError, match="dragoman"):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(saved.path)


@pytest.mark.parametrize(
    ("override", "is_copy"), [("beam_size=2", True), ("max_length_extra=2000", False)]
)
def test_an_export_has_the_weights_of_the_checkpoint(
    override: str, is_copy: bool, tmp_path: Path
) -> None:
    """Their very file, unless longer translations need more positions in it."""
    run = RunDirectory.open(SMALL_RUN / "run")
    checkpoint = run.checkpoints / "step-0000200"
    (tmp_path / "sentences").write_text("\n".join(real_lines("test", "en")[:5]))
    request = Request(
        to="huggingface",
        checkpoint=str(checkpoint),
        output=tmp_path / "export",
        sentences=tmp_path / "sentences",
        overrides=[f"search.{override}"],
    )
    with join_world() as world:
        folder = export(run, request, world).path
    ours, theirs = (path / "model.safetensors" for path in (checkpoint, folder))
    assert (ours.read_bytes() == theirs.read_bytes()) == is_copy
    before, after = load_file(ours), load_file(theirs)
    positions = {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}
    assert all(torch.equal(after[name], before[name]) for name in {*before} - positions)
    longest = json.loads((folder / "config.json").read_bytes())["max_position_embeddings"]
    assert {len(after[name]) for name in positions} == {longest}
