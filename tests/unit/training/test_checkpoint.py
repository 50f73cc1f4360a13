"""Checkpoints are whole or not there, and training goes on from them exactly."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dragoman.base.errors import CheckpointError
from dragoman.base.files import json_bytes
from dragoman.distributed.world import World
from dragoman.model.config import CONFIG_FILE
from dragoman.model.weights_form import WeightsForm
from dragoman.training.checkpoint import (
    TRAINED_WITH_KEY,
    Checkpoint,
    CheckpointStore,
    ModelLayout,
    TrainState,
    check_trained_with,
    copy_named,
    is_choice,
    load_weights,
    read_state,
    read_trained_with,
    read_weights,
)
from dragoman.training.config import CheckpointConfig, TrainConfig
from dragoman.training.snapshot import agreed_checkpoint, restore, snapshot
from toy_task import ONE_RANK, TOY_MODEL, ToyPairs, ToyTraining, toy_training

PAIRS = ToyPairs(100)
START = TrainState(seed=1, world_size=1, recipe_digest="r", corpus_digest="c")


def make_store(directory: Path, *, keep_last: int = 2, keep_best: int = 1) -> CheckpointStore:
    return CheckpointStore(
        directory / "checkpoints", CheckpointConfig(keep_last=keep_last, keep_best=keep_best)
    )


def save_step(
    store: CheckpointStore, step: int, *, dev_loss: float | None = None, bleu: float | None = None
) -> Path:
    state = START.model_copy(update={"step": step, "dev_loss": dev_loss, "bleu": bleu})
    return store.save(state, {"model": {"weight": torch.full((3,), float(step))}}).path


def steps(store: CheckpointStore) -> list[int]:
    return [int(path.name[5:]) for path in store.paths()]


def layout_with(trained_with: dict[str, str]) -> ModelLayout:
    files = {CONFIG_FILE: json_bytes({TRAINED_WITH_KEY: trained_with})}
    return ModelLayout(trained_with=trained_with, files=files)


def fail(error: CheckpointError) -> None:
    raise error


def train(training: ToyTraining, num_updates: int) -> dict[str, Tensor]:
    for update in islice(training.stream, num_updates):
        training.step(update, learning_rate=1e-2)
    _, groups = snapshot(START, training.step)
    return {
        f"{group}/{name}": tensor.clone()
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_training_goes_on_bit_for_bit(
    tmp_path: Path, precision: Literal["fp32", "fp16"], ema_decay: float
) -> None:
    config = TrainConfig(precision=precision, ema_decay=ema_decay)
    store = make_store(tmp_path)
    with toy_training(PAIRS, train=config) as training:
        train(training, 3)
        state, groups = snapshot(START.model_copy(update={"step": 3}), training.step)
        store.save(state, groups)
        expected = train(training, 3)
    with toy_training(PAIRS, train=config, start_update=3) as training:
        checkpoint = store.latest_valid(fail)
        assert checkpoint is not None
        assert checkpoint.state == state
        restore(checkpoint, training.step)
        found = train(training, 3)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_the_files_are_plain_safetensors_with_names_of_transformers(tmp_path: Path) -> None:
    with toy_training(PAIRS, train=TrainConfig(ema_decay=0.5)) as training:
        train(training, 1)
        path = make_store(tmp_path).save(*snapshot(START, training.step)).path
        weights = dict(training.model.named_parameters())
        assert training.step.ema is not None
        averages = WeightsForm().to_file(training.step.ema.weights())
    for name, expected in (("updated", WeightsForm().to_file(weights)), ("model", averages)):
        on_disk = load_file(path / f"{name}.safetensors")
        assert on_disk.keys() == expected.keys()
        assert all(torch.equal(on_disk[part], tensor) for part, tensor in expected.items())
    assert "model.decoder.layers.0.encoder_attn.k_proj.weight" in on_disk
    moments = load_file(path / "optimizer.safetensors")
    assert moments.keys() == {
        f"{name}/{kind}" for name in weights for kind in ("step", "exp_avg", "exp_avg_sq")
    }


DAMAGES = ["cut", "flip", "gone"]
FILES = ["model.safetensors", "state.json", "digests.json"]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, name: str, damage: str) -> None:
    store = make_store(tmp_path)
    for step in (1, 2):
        save_step(store, step)
    file = store.directory / "step-0000002" / name
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[:-7])
    else:
        content[-2] ^= 1
        file.write_bytes(content)
    warnings: list[CheckpointError] = []
    checkpoint = store.latest_valid(warnings.append)
    assert checkpoint is not None
    assert checkpoint.state.step == 1
    (warning,) = warnings
    assert "step-0000002" in warning.place
    # Training comes to step 2 again and replaces what was damaged.
    save_step(store, 2)
    checkpoint = store.latest_valid(fail)
    assert checkpoint is not None
    assert checkpoint.state.step == 2
    assert not list(store.directory.glob(".*"))


def test_no_checkpoint_is_no_error_but_only_damaged_ones_are(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.latest_valid(fail) is None
    (save_step(store, 1) / "digests.json").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"checkpoints: none of the 1 checkpoints is intact: the newest is missing or torn; ",
    ):
        store.latest_valid(lambda _: None)


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep_last=2, keep_best=2)
    losses = [5.0, 2.0, 3.0, 2.5, None, 4.0, 3.5]
    bleus = [1.0, 2.0, 9.0, None, None, 3.0, 4.0]
    kept = []
    for step, (dev_loss, bleu) in enumerate(zip(losses, bleus, strict=True), start=1):
        save_step(store, step, dev_loss=dev_loss, bleu=bleu)
        kept.append(steps(store))
    assert kept == [
        [1],
        [1, 2],
        [2, 3],
        [2, 3, 4],
        [2, 3, 4, 5],
        [2, 3, 4, 5, 6],
        [2, 3, 4, 6, 7],
    ]


def test_a_state_is_among_the_best_of_those_that_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep_last=1, keep_best=2)

    def is_among_best(step: int, dev_loss: float | None, bleu: float | None) -> bool:
        update = {"step": step, "dev_loss": dev_loss, "bleu": bleu}
        return store.is_among_best(START.model_copy(update=update))

    assert is_among_best(1, 5.0, 0.0)
    save_step(store, 1, dev_loss=5.0, bleu=0.0)
    save_step(store, 2, dev_loss=4.0, bleu=2.0)
    assert is_among_best(3, 4.5, 0.0)  # the second best
    assert is_among_best(3, 9.0, 1.0)  # of two that are above 0
    assert not is_among_best(3, 5.0, 0.0)
    assert not is_among_best(3, None, None)
    store = make_store(tmp_path, keep_best=0)
    assert not is_among_best(3, 0.1, 99.0)


def test_a_bleu_of_0_is_no_best(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep_last=9)
    for step, dev_loss in ((1, 5.0), (2, 4.0), (3, 4.5)):
        save_step(store, step, dev_loss=dev_loss, bleu=0.0)
    assert store.choose("best").name == "step-0000002"


def test_a_score_that_was_altered_chooses_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for step, bleu in ((1, 10.0), (2, 20.0)):
        file = save_step(store, step, bleu=bleu) / "state.json"
        assert store.choose("best-bleu").name == f"step-000000{step}"
    first = store.directory / "step-0000001" / "state.json"
    first.write_text(first.read_text().replace("10.0", "90.0"))
    assert store.choose("best-bleu").name == "step-0000002"
    file.write_text(file.read_text().replace("20.0", "21.0"))
    with pytest.raises(CheckpointError, match=r"state\.json: its content has changed"):
        store.choose("best")


def test_a_future_that_was_given_up_is_removed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for step in (4, 8, 12):
        save_step(store, step)
    save_step(store, 10)
    assert steps(store) == [8, 10]


def test_remains_of_a_killed_save_are_cleaned_up(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save_step(store, 1)
    for name in (".step-0000002.draft", ".step-0000001.doomed"):
        (store.directory / name).mkdir()
        (store.directory / name / "model.safetensors").write_bytes(b"half")
    assert store.latest_valid(fail) is not None
    store.clean()
    assert [path.name for path in store.directory.iterdir()] == ["step-0000001"]


def test_a_checkpoint_is_put_back_if_a_kill_stopped_its_replacement(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save_step(store, 1)
    save_step(store, 2)
    for step in (1, 2):
        shutil.copytree(
            store.directory / f"step-000000{step}", store.directory / f".step-000000{step}.older"
        )
    shutil.rmtree(store.directory / "step-0000002")  # killed between the two renames
    found = agreed_checkpoint(store, ONE_RANK, fail)
    assert found is not None
    assert found.state.step == 2
    assert steps(store) == [1, 2]
    assert Checkpoint.open(store.directory / "step-0000002").state.step == 2
    assert not list(store.directory.glob(".*"))
    save_step(store, 2)
    assert not list(store.directory.glob(".*"))


@pytest.mark.parametrize(
    ("step", "digest", "problem"),
    [
        (-1, "", "rank 1 has no checkpoint, and rank 0 has one of step 2"),
        (3, "", "rank 1 lacks the checkpoint of step 2, the newest intact one of rank 0"),
        (1, "1", "rank 0 lacks the checkpoint of step 1, the newest intact one of rank 1"),
        (2, "2", "ranks 0 and 1 have different checkpoints of step 2"),
    ],
)
def test_ranks_without_the_same_checkpoint_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, digest: str, problem: str
) -> None:
    store = make_store(tmp_path)
    save_step(store, 2)
    of_rank_1 = iter((step, digest))
    monkeypatch.setattr(World, "gather_json", lambda _world, own: [own, next(of_rank_1)])
    with pytest.raises(CheckpointError) as error:
        agreed_checkpoint(store, ONE_RANK, fail)
    assert error.value.problem == problem


FULL_DISK = """
import resource, sys
from pathlib import Path
import torch
from dragoman.base.errors import MachineError
from dragoman.training.checkpoint import CheckpointStore
from dragoman.training.config import CheckpointConfig
from dragoman.training.checkpoint import TrainState

store = CheckpointStore(Path(sys.argv[1]), CheckpointConfig(keep_last=1))
state = TrainState(seed=1, world_size=1, recipe_digest="r", corpus_digest="c")
store.save(state, {"model": {"weight": torch.zeros(10)}})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save(state.model_copy(update={"step": 1}), {"model": {"weight": torch.zeros(10**6)}})
except MachineError as error:
    print(error)
"""


@pytest.mark.system
def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails half way as it would."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "step-0000001: cannot be written" in done.stdout
    assert "free disk space" in done.stdout
    assert done.stdout.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000"]
    assert CheckpointStore(tmp_path, CheckpointConfig()).latest_valid(fail) is not None


def test_weights_of_another_model_are_refused_by_name_and_shape(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    with toy_training(PAIRS) as training:
        path = store.save(*snapshot(START, training.step)).path
    wider = TOY_MODEL.model_copy(update={"d_ffn": 96})
    deeper = TOY_MODEL.model_copy(update={"decoder_layers": 2})
    with (
        toy_training(PAIRS, model=wider) as training,
        pytest.raises(CheckpointError, match=r"fc1.*\(64, 32\).*\(96, 32\)"),
    ):
        load_weights(path, training.model)
    with (
        toy_training(PAIRS, model=deeper) as training,
        pytest.raises(CheckpointError, match=r"decoder\.layers\.1\..* is in the model only"),
    ):
        load_weights(path, training.model)


def test_nothing_is_copied_when_one_shape_differs(tmp_path: Path) -> None:
    target = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(CheckpointError) as refused:
        copy_named({"a": torch.ones(2), "b": torch.ones(4)}, target, place=tmp_path)
    assert refused.value.place == str(tmp_path)
    assert target["a"].sum() == 0


def damaged_weights(file: Path, damage: str) -> None:
    weights = torch.ones(3)
    if damage == "whole numbers":
        weights = torch.arange(3)
    elif damage == "no number":
        weights[1] = torch.nan
    save_file({"weight": weights}, file)
    content = file.read_bytes()
    if damage == "a long header":
        file.write_bytes((1 << 40).to_bytes(8, "little") + content[8:])
    elif damage == "half of it":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "its last byte":
        file.write_bytes(content[:-1])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("whole numbers", "weight holds I64, not floats of 16 or 32 bits"),
        ("no number", "weight has weights that are infinite or not numbers"),
        (
            "a long header",
            "claims a header of 1,099,511,627,776 bytes, over the limit of 16,777,216",
        ),
        ("half of it", "cannot be read: Error while deserializing header: invalid"),
        ("its last byte", "cannot be read: Error while deserializing header: incomplete"),
    ],
)
def test_a_file_of_weights_that_cannot_be_used_is_named_with_a_remedy(
    tmp_path: Path, damage: str, problem: str
) -> None:
    file = tmp_path / "model.safetensors"
    damaged_weights(file, damage)
    with pytest.raises(CheckpointError) as refused:
        read_weights(file)
    assert refused.value.problem.startswith(problem)
    assert (refused.value.place, refused.value.remedy) == (
        str(file),
        "use another checkpoint, or copy the file here again",
    )


def test_weights_are_used_with_the_vocabulary_of_their_training_alone(tmp_path: Path) -> None:
    trained_with = {"vocabulary": "0123456789abcdef", "norm": "pre"}
    store = CheckpointStore(tmp_path, CheckpointConfig(), layout_with(trained_with))
    path = store.save(START, {"model": {"weight": torch.ones(3)}}).path
    assert read_trained_with(path) == trained_with
    for alike in (trained_with, {}, {"norm": "pre"}, {**trained_with, "later": "setting"}):
        check_trained_with(path, alike)
    with pytest.raises(CheckpointError) as refused:
        check_trained_with(path, {**trained_with, "vocabulary": "another"})
    assert refused.value.problem == "was trained with another vocabulary: 0123456789ab"
    assert refused.value.place == str(path)


def test_a_list_for_what_it_was_trained_with_is_named(tmp_path: Path) -> None:
    layout = ModelLayout(files={CONFIG_FILE: json_bytes({TRAINED_WITH_KEY: [1]})})
    store = CheckpointStore(tmp_path, CheckpointConfig(), layout)
    path = store.save(START, {"model": {"weight": torch.ones(3)}}).path
    with pytest.raises(CheckpointError, match=r"config.json: its \"dragoman_trained_with\" cannot"):
        read_trained_with(path)


def test_each_rank_has_a_folder_of_its_own_but_the_first(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, CheckpointConfig(), layout_with({"vocabulary": "0123"}))
    assert store.of_rank(0) is store
    saved = store.of_rank(12).save(START, {"replica": {"weight": torch.ones(3)}})
    assert saved.path == tmp_path / "rank-0012" / "step-0000000"
    assert 0 < saved.seconds_s < 60
    files = {file.name for file in saved.path.iterdir()}
    assert files == {"replica.safetensors", "state.json", "digests.json"}


def test_translation_takes_the_averaged_weights_if_there_are_any(tmp_path: Path) -> None:
    model = nn.Linear(2, 1, bias=False)
    store = make_store(tmp_path)
    updated, average = ({"weight": torch.full((1, 2), value)} for value in (1.0, 2.0))
    load_weights(store.save(START, {"model": updated}).path, model)
    assert model.weight.tolist() == [[1.0, 1.0]]
    path = store.save(START, {"model": average, "updated": updated}).path
    load_weights(path, model)
    assert model.weight.tolist() == [[2.0, 2.0]]
    (path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="has 4 bytes instead of"):
        load_weights(path, model)
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read: No such file"):
        load_weights(path, model)


def test_a_checkpoint_is_chosen_by_its_metric_its_age_or_its_step(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep_last=9)
    save_step(store, 1, dev_loss=1.0)
    assert store.choose("best").name == "step-0000001"
    save_step(store, 2, dev_loss=2.0, bleu=30.0)
    save_step(store, 3, dev_loss=3.0, bleu=20.0)
    chosen = {which: store.choose(which).name[-1] for which in ("best", "best-loss", "last", "2")}
    assert chosen == {"best": "2", "best-loss": "1", "last": "3", "2": "2"}
    assert store.choose("best-bleu") == store.choose("best")
    with pytest.raises(CheckpointError, match=r"no checkpoint '7'.*there are: 1, 2, 3") as refused:
        store.choose("7")
    assert refused.value.place == str(store.directory)


def test_a_run_without_a_validation_has_no_best_and_says_what_it_has(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save_step(store, 4, dev_loss=None)
    with pytest.raises(CheckpointError) as refused:
        store.choose("best")
    assert refused.value.remedy.startswith("choose last or a step")


def test_a_model_of_another_vocabulary_loads_no_weights(tmp_path: Path) -> None:
    model = nn.Linear(2, 1, bias=False)
    layout = layout_with({"vocabulary": "0123456789abcdef"})
    store = CheckpointStore(tmp_path, CheckpointConfig(), layout)
    path = store.save(START, {"model": {"weight": torch.ones(1, 2)}}).path
    before = model.weight.tolist()
    with pytest.raises(CheckpointError, match="was trained with another vocabulary: 0123456789ab"):
        load_weights(path, model, layout_with({"vocabulary": "another"}))
    assert model.weight.tolist() == before
    load_weights(path, model, layout)
    assert model.weight.tolist() == [[1.0, 1.0]]


def test_a_state_of_another_version_is_named_with_a_remedy(tmp_path: Path) -> None:
    path = save_step(make_store(tmp_path), 1)
    replace_state(path, b'{"version": 1}')
    with pytest.raises(CheckpointError) as refused:
        read_state(path)
    assert refused.value.problem == "is of format 1, and this version of dragoman reads format 2"
    assert refused.value.place == str(path)
    with pytest.raises(CheckpointError, match="is of format 1"):
        make_store(tmp_path).choose("best")


def replace_state(path: Path, content: bytes) -> None:
    (path / "state.json").write_bytes(content)
    digests = json.loads((path / "digests.json").read_bytes())
    digests["state.json"] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
    }
    (path / "digests.json").write_text(json.dumps(digests))


def test_a_state_that_cannot_be_read_is_named_with_a_remedy(tmp_path: Path) -> None:
    path = save_step(make_store(tmp_path), 1)
    replace_state(path, b'{"version": 2, "step": "one"}')
    with pytest.raises(CheckpointError) as refused:
        read_state(path)
    assert refused.value.problem == "the state cannot be read"
    assert refused.value.place == str(path / "state.json")
    assert refused.value.remedy.startswith("use another checkpoint, or the version of dragoman")


@pytest.mark.parametrize("word", ["last", "best", "best-loss", "best-bleu", "0", "1200"])
def test_words_and_steps_choose_a_checkpoint(word: str) -> None:
    assert is_choice(word)


@pytest.mark.parametrize("path", ["./best", "runs/demo", "step-0000100", "-1", "BEST", ""])
def test_other_words_are_paths(path: str) -> None:
    assert not is_choice(path)
