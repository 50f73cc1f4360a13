"""Our Hugging Face export, trained further by transformers, comes back as our model."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from card_example import python_on_card
from dragoman.cli import main
from dragoman.corpus.normalize import normalize
from dragoman.corpus.subword import vocabulary_digests
from dragoman.distributed.world import join_world
from dragoman.evaluation.validate import read_lines
from dragoman.formats.bundle import Bundle
from dragoman.formats.load import Origin, load_translation_model
from dragoman.model.search import translate_batch
from dragoman.recipe.run_directory import RunDirectory
from parallel_text import sentences, write_pairs

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

NUM_STEPS = 20
NUM_SENTENCES = 50
RECIPE = """
name = "returned"
[corpus]
train = [
  {{source = "train.en", target = "train.de"}},
  {further}
]
source_language = "en"
target_language = "de"
valid_pairs = 60
{corpus}
[data]
batch_tokens = 1000
[model]
d_model = 32
num_heads = 2
d_ffn = 64
encoder_layers = 1
decoder_layers = 2
{model}
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


@dataclass(frozen=True)
class Form:
    """What of the recipe is other than in the plain one."""

    model: str
    corpus: str = "subword.vocab_size = 150"
    further: str = ""
    tokens: tuple[str, ...] = ()


FORMS = {
    "pre": Form('norm = "pre"'),
    "post": Form('norm = "post"'),
    "pre, two languages, a tag, unigram": Form(
        'norm = "pre"\nactivation = "gelu"\nattention_bias = false\nlabel_smoothing = 0.0',
        'subword.vocab_size = 150\nsubword.kind = "unigram"\nlowercase = true',
        '{source = "made.en", target = "made.de", target_language = "nl", tag = "<bt>"},',
        ("<2de>", "<2nl>"),
    ),
    "post, output tied to the target": Form(
        'norm = "post"\ntied_embeddings = "decoder"\nattention_bias = false',
        "subword.vocab_size = 150\nlanguage_token = true",
        tokens=("<2de>",),
    ),
    "post, untied": Form('norm = "post"\ntied_embeddings = "none"\nactivation = "silu"'),
    "post, two vocabularies": Form(
        'norm = "post"\ntied_embeddings = "decoder"',
        "subword.vocab_size = 100\nsubword.joint = false",
    ),
}

pytestmark = pytest.mark.system


@pytest.fixture(scope="module", params=[
    "pre", "post", *(pytest.param(name, marks=pytest.mark.system) for name in [*FORMS][2:])
])  # fmt: skip
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunDirectory, Path, Form]:
    """A run, its export for transformers, and the form of its recipe."""
    form = FORMS[request.param]
    folder = tmp_path_factory.mktemp("returned")
    write_pairs(folder, "train", sentences(400, seed=1))
    write_pairs(folder, "made", sentences(400, seed=2))
    further, corpus, model = form.further, form.corpus, form.model
    text = RECIPE.format(further=further, corpus=corpus, model=model)
    (folder / "returned.toml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = RunDirectory.open(
            dragoman.train(dragoman.load_recipe("returned.toml")).path.resolve()
        )
    done = dragoman.export(run, to="huggingface", output=folder / "theirs")
    assert done.verified.identical >= 0.98 * done.verified.sentences
    return run, done.path, form


def fine_tuned(
    export: Path, sources: list[str], targets: list[str], place: Path, *, heeded: bool = True
) -> Path:
    """The model of an export after some steps of transformers' own trainer, as that saves it.

    heeded: whether what its card says of training is done.
    """
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(export)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(export)
    _, *for_training = python_on_card(export)
    if for_training and heeded:
        exec(for_training[0], {"model": model})
    rows = [
        {**tokenizer(source), "labels": tokenizer(text_target=target)["input_ids"]}
        for source, target in zip(sources, targets, strict=True)
    ]
    settings = transformers.Seq2SeqTrainingArguments(
        output_dir=str(place / "trainer"), max_steps=NUM_STEPS, learning_rate=1e-3,
        per_device_train_batch_size=16, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = transformers.Seq2SeqTrainer(
        model=model, args=settings, train_dataset=rows, processing_class=tokenizer,
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model),
    )  # fmt: skip
    trainer.train()
    trainer.save_model(str(place / "tuned"))
    return place / "tuned"


def translations(folder: Path, lines: list[str]) -> list[str]:
    """By transformers, each line alone."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    rows = [tokenizer(line, return_tensors="pt") for line in lines]
    found = [model.generate(**row, max_new_tokens=40)[0] for row in rows]
    return list(tokenizer.batch_decode(found, skip_special_tokens=True))


def test_a_model_that_transformers_trained_on_comes_back(
    exported: tuple[RunDirectory, Path, Form], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, export, form = exported
    folder = run.path.parents[1]
    sources = read_lines(folder / "train.en")
    marked = [f"{form.tokens[row % len(form.tokens)]} {line}" if form.tokens else line
              for row, line in enumerate(sources)]  # fmt: skip
    tuned = fine_tuned(export, marked, read_lines(folder / "train.de"), tmp_path)
    assert not (tuned / "recipe.toml").exists()
    assert main(["import", str(tuned), "--to", str(tmp_path / "back")]) == 0
    bundle = Bundle.open(tmp_path / "back")
    before = run.recipe()
    assert bundle.info.imported == "tuned"
    assert bundle.recipe.corpus.directions == before.corpus.directions
    sides = {"source_language", "target_language"}
    assert sides <= bundle.recipe.corpus.model_fields_set
    assert bundle.recipe.corpus.lowercase == before.corpus.lowercase
    shape = {"d_model", "num_heads", "d_ffn", "norm", "activation", "dropout", "label_smoothing"}
    assert bundle.recipe.model.model_dump(include=shape) == before.model.model_dump(include=shape)

    texts = marked[:NUM_SENTENCES]
    vocabularies = vocabulary_digests(run.path)
    assert vocabulary_digests(tmp_path / "back") == vocabularies
    with dragoman.Translator(tmp_path / "back", engine="torch", target_language="de") as model:
        assert model.translate(sources[:1])
    origin = Origin.open(tuned)
    assert torch.equal(
        origin.model.embeddings.target_matrix,
        Origin.open(tmp_path / "back").model.embeddings.target_matrix,
    )
    first = Origin.open(run.path).model.embeddings.target_matrix
    assert not torch.equal(origin.model.embeddings.target_matrix, first)
    theirs = translations(tuned, texts)
    ours = translated_by_us(tmp_path / "back", texts)
    equal = sum(a.strip() == b for a, b in zip(ours, theirs, strict=True))
    print(f"{equal} of {len(theirs)} translations are equal")
    assert equal >= 0.98 * len(theirs)

    recipe = dragoman.load_recipe(
        folder / "returned.toml", ["train.max_steps=2", "train.validate_every_steps=2"]
    )
    monkeypatch.chdir(folder)
    further = dragoman.train(recipe, origin=tuned, runs=tmp_path / "further")
    assert vocabulary_digests(further.path) == vocabularies


def test_languages_that_only_the_entries_name_come_back(
    exported: tuple[RunDirectory, Path, Form], tmp_path: Path
) -> None:
    _, export, form = exported
    if form.tokens:
        pytest.skip("a model of several languages names them in each entry anyway")
    copy = shutil.copytree(export, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    corpus = config["dragoman_recipe"]["corpus"]
    languages = {side: corpus.pop(side) for side in ("source_language", "target_language")}
    corpus["train"] = [entry | languages for entry in corpus["train"]]
    (copy / "config.json").write_text(json.dumps(config))
    command = ["import", str(copy), "--to", str(tmp_path / "back"), "--target-language", "DEU"]
    assert main(command) == 0
    info = Bundle.open(tmp_path / "back").info
    assert (info.source_language, info.target_language) == ("en", "de")


def test_positions_that_transformers_trained_are_refused(
    exported: tuple[RunDirectory, Path, Form], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, export, form = exported
    if 'norm = "pre"' in form.model:
        pytest.skip("Pegasus does not train its positions")
    sources, targets = (
        read_lines(run.path.parents[1] / f"train.{side}")[:40] for side in ("en", "de")
    )
    tuned = fine_tuned(export, sources, targets, tmp_path, heeded=False)
    assert main(["import", str(tuned), "--to", str(tmp_path / "back")]) != 0
    assert "embed_positions.weight holds positions that are not" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()


def translated_by_us(bundle: Path, texts: list[str]) -> list[str]:
    """By our own search of the bundle; texts begin with their tokens."""
    with join_world() as world:
        model = load_translation_model(bundle, ["best"], world)
    search = Bundle.open(bundle).recipe.search.model_copy(
        update={"max_length_ratio": 0.0, "max_length_extra": 40}
    )
    ids = model.subwords[0].encode([normalize(text, lowercase=model.lowercase) for text in texts])
    return model.subwords[1].decode(
        [best.ids for best, *_ in translate_batch(model.models, ids, search)]
    )
