"""Training on from a MarianMT model: as transformers trains it, and back to its own form."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.api.teacher import write_sources
from dragoman.cli import main
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.shards import PAD, TokenShards
from dragoman.data.loader import BatchStream
from dragoman.formats.bundle import Bundle
from dragoman.formats.load import Origin
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import TrainInterval, read_events
from foreign_models import MARIAN_VARIANTS, m2m100_folder, marian_folder
from real_text import real_lines, write_real_text

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

LEARNING_RATE = 2e-4
RECIPE = """
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid = [{source = "valid.en", target = "valid.de"}]
max_pieces = 100
[data]
batch_tokens = 300
[model]
dropout = 0.0
label_smoothing = 0.0
[schedule]
kind = "constant"
peak_learning_rate = 2e-4
warmup_steps = 0
[train]
precision = "fp32"
log_every_steps = 1
validate_every_steps = 10000
validate_at_start = false
[checkpoint]
every_steps = 10000
[evaluate]
bleu_pairs = 0
[search]
max_length_ratio = 1.0
max_length_extra = 5
"""


def trained(
    folder: Path, place: Path, *, steps: int, settings: tuple[str, ...] = (), ranks: int = 1
) -> RunDirectory:
    """`dragoman train --from FOLDER` on real text; the run."""
    write_real_text(place, "train", 1500)
    write_real_text(place, "valid", 40)
    (place / "new.toml").write_text(RECIPE)
    arguments = ["train", str(place / "new.toml"), "--from", str(folder), "--workers", "1"]
    arguments += ["--runs", str(place / "runs"), "--set", f"train.max_steps={steps}"]
    arguments += ["--ranks", str(ranks)]
    for setting in settings:
        arguments += ["--set", setting]
    assert main(arguments) == 0
    (path,) = (place / "runs").iterdir()
    return RunDirectory.open(path)


def losses(run: RunDirectory) -> list[float]:
    events = read_events(run.events / "log.jsonl")
    return [event.payload["train_loss"] for event in events if event.kind == TrainInterval.kind]


def vocabulary(run: RunDirectory, side: str) -> ImportedVocabulary:
    file = run.path / f"{side}.model"
    return ImportedVocabulary.parse(file.read_bytes(), place=file)


def train_theirs(folder: Path, run: RunDirectory, *, steps: int) -> tuple[Any, list[float]]:
    """The same batches through transformers' own model and loss, with PyTorch's plain Adam."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()  # no dropout
    orders = [torch.tensor(vocabulary(run, side).file.their_ids) for side in ("source", "target")]
    recipe = run.recipe()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9)
    found = []
    with BatchStream(
        TokenShards(run.prepared() / "train"), recipe.data, seed=recipe.train.seed, rank=0,
        world_size=1, start_update=0, device=torch.device("cpu"),
    ) as stream:  # fmt: skip
        for _ in range(steps):
            (batch,) = next(stream).micro_batches
            labels = orders[1][batch.target_BT]
            labels[batch.target_BT == PAD] = -100
            loss = model(
                input_ids=orders[0][batch.source_BS],
                attention_mask=(batch.source_BS != PAD).long(),
                labels=labels,
            ).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return model, found


def logits_of(model: Any, folder: Path, *, sentences: int = 10) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    asked = tokenizer(
        real_lines("test", "en")[:sentences], text_target=real_lines("test", "de")[:sentences],
        padding=True, return_tensors="pt",
    )  # fmt: skip
    with torch.no_grad():
        found: torch.Tensor = model(**asked).logits
    return found[asked["labels"] != model.config.pad_token_id]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opus", "separate, output alone", "shared, output alone"])
def test_two_hundred_steps_are_those_of_transformers(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = marian_folder(tmp_path / "model", MARIAN_VARIANTS[name])
    check_training(tmp_path, folder, folder, 200)


@pytest.mark.slow
@pytest.mark.parametrize("nllb", [False, True])
def test_two_hundred_steps_of_m2m100_are_those_of_transformers(
    tmp_path: Path, nllb: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, _ = m2m100_folder(tmp_path / "model", nllb=nllb)
    languages = ("eng_Latn", "deu_Latn") if nllb else ("en", "de")
    chosen = ["--source-language", languages[0], "--target-language", languages[1]]
    assert main(["import", str(folder), "--to", "bundle", *chosen]) == 0
    check_training(tmp_path, folder, tmp_path / "bundle", 200)


@pytest.mark.system
def test_steps_are_those_of_transformers_and_the_model_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = marian_folder(tmp_path / "model", MARIAN_VARIANTS["opus"])
    check_training(tmp_path, folder, folder, 25)


def test_a_dry_run_takes_the_models_that_a_training_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which languages an NLLB model translates follows from the recipe."""
    monkeypatch.chdir(tmp_path)
    m2m100_folder(tmp_path / "model", nllb=True)
    config = tmp_path / "model" / "tokenizer_config.json"
    settings_of_model = json.loads(config.read_text())
    kept = {key: value for key, value in settings_of_model.items() if "_lang" not in key}
    config.write_text(json.dumps(kept))  # as published: it names no pair
    write_real_text(tmp_path, "train", 60)
    write_real_text(tmp_path, "valid", 20)
    Path("recipe.toml").write_text(RECIPE)
    settings = ["--set", "corpus.source_language=en", "--set", "corpus.target_language=de"]
    for command in (["train", "recipe.toml", "--dry-run"], ["plan", "recipe.toml", "--gpu=cpu"]):
        assert main([*command, "--from", "model", *settings]) == 0, capsys.readouterr().err


@pytest.mark.system
def test_an_export_has_the_languages_of_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = 'source_language="fr",target_language="it"}'
    settings = [
        f'corpus.{split}=[{{source="{split}.en",target="{split}.de",{said}]'
        for split in ("train", "valid")
    ]
    settings.append("corpus.check_languages=false")  # the text is English and German
    run = trained(marian_folder(tmp_path / "model"), tmp_path, steps=1, settings=tuple(settings))
    assert main(["export", str(run.path), "--to", "huggingface", "--output", "back"]) == 0
    tokenizer = json.loads(Path("back/tokenizer_config.json").read_text())
    assert (tokenizer["source_lang"], tokenizer["target_lang"]) == ("fr", "it")


def test_an_export_needs_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(marian_folder(tmp_path / "model"), tmp_path, steps=1)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["export", str(run.path), "--output", "back"]) == 0
    verified = Bundle.open(Path("back")).info.verified
    assert verified.identical == verified.sentences > 0


def check_training(place: Path, folder: Path, origin: Path, steps: int) -> None:
    """Train on from a model here and in transformers, and give it back.

    folder: in Hugging Face form. origin: of `--from`, the folder or its bundle.
    """
    run = trained(origin, place, steps=steps)
    theirs, expected = train_theirs(folder, run, steps=steps)
    found = losses(run)
    assert found == pytest.approx(expected, abs=1e-4)
    assert expected[-1] < expected[0] - 0.3  # it has learned
    # Back to their form, which transformers loads with nothing left over or missing.
    assert main(["export", str(run.path), "--to", "huggingface", "--output", "back"]) == 0
    loaded, notes = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        place / "back", output_loading_info=True
    )
    assert not notes["missing_keys"]
    assert not notes["unexpected_keys"]
    apart = (logits_of(loaded.eval(), place / "back") - logits_of(theirs, folder)).abs()
    # Adam moves a weight by the learning rate even if its gradient is rounding error alone, as that
    # of a rare piece may be. So the logits of a piece or two may differ more than the others.
    assert (apart > 5e-3).float().mean() < 3 / apart.shape[1]
    assert apart.max() < 2e-2
    # And from there once more: the same weights and pieces as in the run.
    again, first = Origin.open(place / "back"), Origin.open(run.path)
    weights = dict(again.model.named_parameters())
    assert all(torch.equal(weights[key], one) for key, one in first.model.named_parameters())
    for side in (0, 1):
        files = [json.loads(one.vocabulary[side]) for one in (again, first)]
        assert files[0] == files[1]


@pytest.mark.slow
def test_an_import_that_is_exported_is_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hardly trained on, the exported folder has the logits and tokens of the first."""
    monkeypatch.chdir(tmp_path)
    for name in ("separate, output alone", "relu and deep encoder"):
        folder = marian_folder(tmp_path / name / "model", MARIAN_VARIANTS[name])
        settings = ("schedule.peak_learning_rate=1e-12",)
        run = trained(folder, tmp_path / name, steps=1, settings=settings)
        back = tmp_path / name / "back"
        assert main(["export", str(run.path), "--to", "huggingface", "--output", str(back)]) == 0
        models = [transformers.MarianMTModel.from_pretrained(one).eval() for one in (folder, back)]
        before, after = (logits_of(model, folder) for model in models)
        torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
        tokenizers = [transformers.AutoTokenizer.from_pretrained(one) for one in (folder, back)]
        texts = [*real_lines("test", "en")[:200], *real_lines("test", "de")[:200]]
        for given in ({"text": texts}, {"text_target": texts}):
            first, second = (tokenizer(**given)["input_ids"] for tokenizer in tokenizers)
            assert first == second
        shutil.rmtree(tmp_path / name)


@pytest.mark.slow
def test_frozen_parts_stay_and_others_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = marian_folder(tmp_path / "model")
    settings = ('train.freeze=["embeddings","encoder"]', "optimizer.weight_decay=0.1")
    run = trained(folder, tmp_path, steps=4, settings=settings)
    before, after = (
        dict(Origin.open(path).model.named_parameters()) for path in (folder, run.path)
    )
    for name, weight in after.items():
        frozen = name.startswith(("embeddings.", "encoder."))
        assert torch.equal(before[name], weight) == frozen, name
    assert main(["train", str(run.path)]) == 0  # such a run is taken up again
    # Forgetting: two texts, before and after.
    bundle = str(tmp_path / "bundle")
    assert main(["import", str(folder), "--to", bundle]) == 0
    texts = ["--test", "valid.en,valid.de", "--test", "train.en,train.de"]
    capsys.readouterr()
    assert main(["compare", bundle, str(run.path), *texts, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [f"{tmp_path}/valid.en, valid.de", f"{tmp_path}/train.en, train.de"]
    assert [one["test"] for one in found] == names
    assert all(one["result"]["scores"]["bleu"].keys() >= {"first", "second"} for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "diloco"])
def test_frozen_parts_stay_with_every_strategy(
    tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks; the outer Adam of diloco had no moments of what is not trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = marian_folder(tmp_path / "model")
    settings = ['train.freeze=["encoder"]', f'distributed.strategy="{strategy}"']
    if strategy == "diloco":
        settings += [f"distributed.diloco.{key}" for key in ("every=8", "fragments=1", "delay=1")]
    run = trained(folder, tmp_path, steps=16, settings=tuple(settings), ranks=2)
    before, after = (
        dict(Origin.open(path).model.named_parameters()) for path in (folder, run.path)
    )
    for name, weight in after.items():
        kept = name.startswith("encoder.") or name == "embeddings.output_bias"
        assert torch.equal(before[name], weight) == kept, name


def test_a_student_learns_from_text_without_the_code_of_the_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = marian_folder(tmp_path / "model", codes=(">>deu<<", ">>nld<<"))
    bundle = tmp_path / "bundle"
    assert main(["import", str(folder), "--to", str(bundle), "--target-language", "deu"]) == 0
    teacher = trained(bundle, tmp_path, steps=1)
    first = TokenShards(teacher.prepared() / "train").source(0).tolist()
    assert vocabulary(teacher, "source").pieces(first)[0] == ">>deu<<"
    write_sources(teacher, tmp_path / "sources.txt")
    sources = (tmp_path / "sources.txt").read_text().splitlines()
    assert len(sources) > 1000
    assert not [line for line in sources if ">>" in line]
    assert len(set(real_lines("train", "en")) & set(sources)) > 0.9 * len(sources)
