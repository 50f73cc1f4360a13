"""Which run a budget goes on with, and what its clock begins with; nothing is trained."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.base.errors import ConfigError, CorpusError
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.corpus.config import TextFiles
from dragoman.recipe.budget import parse_budget
from dragoman.recipe.recipe import Recipe, dump_toml, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.run import budget as budgets
from dragoman.run import budget_plan
from dragoman.run import run as steps
from dragoman.run.budget import run_in_budget
from dragoman.run.budget_plan import Place, TooSmallError, plan_budget, rounded_up
from dragoman.run.speed import TrainingMachine, last_copy_s
from dragoman.telemetry.host import HourlyPrice
from dragoman.training.clock import AIM, Budget, read_budget
from small_run import small_run

SECONDS = 60.0


class PreparedError(Exception):
    """A new run begins: its text is to be prepared."""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The recipe of the small run, with its text in a folder of its own."""
    folder = small_run().path.parents[1]
    for path in folder.iterdir():
        if path.is_file():
            shutil.copy2(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return load_recipe(tmp_path / "small.toml")


def go_on(
    recipe: Recipe,
    place: Place | None = None,
    *,
    seconds_s: float = SECONDS,
    money: tuple[float, str] | None = None,
    print_line: Callable[[str], None] = lambda _: None,
) -> RunDirectory:
    return run_in_budget(
        recipe,
        seconds_s,
        place or Place(ranks=1),
        money=money,
        runs=Path("runs"),
        workers=1,
        show_plan=lambda _: None,
        print_line=print_line,
    )


@pytest.fixture
def begun(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run of that recipe and budget whose record says that all is done."""
    asked: list[str] = []

    def started(_recipe: Recipe, digest: str, *_: object, **__: object) -> float:
        asked.append(digest)
        raise PreparedError

    with monkeypatch.context() as patch:
        patch.setattr(budgets, "_started", started)
        with pytest.raises(PreparedError):
            go_on(recipe)
    run = RunDirectory(Path("runs") / small_run().path.name)
    shutil.copytree(small_run().path, run.path)
    run.recipe_file.write_text(dump_toml(recipe))
    budget = Budget(
        asked=asked[0],
        started=1000.0,
        seconds_s=SECONDS,
        validation_s=1.0,
        search_s=0.5,
        after_s=4.0,
        after_searches=2.0,
        price_per_hour=3.0,
        currency="USD",
        finished=1058.0,
    )
    budget.save(run.path)
    return run


def test_a_prepared_corpus_is_kept_unless_its_text_has_changed(
    recipe: Recipe, begun: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: object, **__: object) -> Path:
        raise PreparedError

    monkeypatch.setattr(steps, "prepare", prepare)
    assert go_on(recipe).path == begun.path
    text = Path("train.en")
    content = text.read_bytes()
    text.write_bytes(content)  # only its time is another
    assert go_on(recipe).path == begun.path
    text.unlink()  # shards are enough
    assert go_on(recipe).path == begun.path
    text.write_bytes(content.replace(b"the", b"teh"))
    with pytest.raises(PreparedError):
        go_on(recipe)


def test_text_that_cannot_be_prepared_starts_no_clock(recipe: Recipe) -> None:
    text = Path("valid.de")
    content = text.read_bytes()
    text.unlink()
    with pytest.raises(CorpusError, match=r"valid\.de: does not exist"):
        go_on(recipe)
    assert not [*Path("runs").iterdir()]
    text.write_bytes(b"\xff\xfe\n" + content)
    with pytest.raises(CorpusError):
        go_on(recipe)
    assert not [*Path("runs").iterdir()]


def test_a_run_that_goes_on_at_another_price_costs_both(
    recipe: Recipe, begun: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = read_budget(begun.path)
    assert known is not None
    known.model_copy(update={"finished": None}).save(begun.path)

    def export(*_: object, **__: object) -> None:
        raise PreparedError

    # Its time is over, so it is exported: it has no test set.
    monkeypatch.setattr(budgets, "_export", export)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(time=lambda: 4600.0))
    with pytest.raises(ConfigError, match=r"two\.toml: its hosts are paid in EUR.*in USD; give"):
        go_on(recipe, Place(ranks=1, file="two.toml", price=HourlyPrice(5.0, "EUR")))
    for price in (3.0, 5.0, 5.0):
        with pytest.raises(PreparedError):
            go_on(recipe, Place(ranks=1, price=HourlyPrice(price, "USD")))
    kept = read_budget(begun.path)
    assert kept is not None
    assert kept.cost(until=8200.0) == pytest.approx(3.0 + 5.0)


def test_a_time_that_ran_out_while_the_run_was_stopped_is_told_first(
    recipe: Recipe, begun: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = begun.events / "log.jsonl"
    log.write_text(log.read_text().replace('"reason": "max_steps"', '"reason": "signal"'))
    known = read_budget(begun.path)
    assert known is not None
    ended = read_facts(begun.path).lives[-1].ended
    own = {"started": ended - 10.0, "price_per_hour": None, "finished": None}
    known.model_copy(update=own).save(begun.path)
    lines: list[str] = []

    def export(*_: object, **__: object) -> None:
        assert lines, "the warning comes before the work"
        raise PreparedError

    monkeypatch.setattr(budgets, "_export", export)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(time=lambda: ended + 100.0))
    with pytest.raises(PreparedError):
        go_on(recipe, print_line=lines.append)
    (line,) = lines
    steps = begun.recipe().train.max_steps
    assert line.startswith("warning: the time ran out: the training was stopped for 48.5 s of ")
    assert f"{steps} of about {steps} planned steps" in line


def test_the_rest_of_the_money_pays_for_the_time_that_is_left(
    recipe: Recipe, begun: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of 10 USD that was killed after an hour at 3 USD resumes at 7 USD an hour."""
    money = (10.0, "USD")
    known = read_budget(begun.path)
    assert known is not None
    own = {"asked": budgets._asked(recipe, money), "seconds_s": 12_000.0, "finished": None}
    known.model_copy(update=own).save(begun.path)

    def train(*_: object, **__: object) -> None:
        raise PreparedError

    monkeypatch.setattr(steps, "train", train)
    monkeypatch.setattr(budgets, "time", SimpleNamespace(time=lambda: 1000.0 + 3600))
    price = HourlyPrice(7.0, "USD")
    for _ in range(2):
        with pytest.raises(PreparedError):
            go_on(recipe, Place(ranks=1, price=price), seconds_s=36_000 / 7, money=money)
        kept = read_budget(begun.path)
        assert kept is not None
        assert kept.seconds_s == pytest.approx(7200)
        assert kept.aim == pytest.approx(1000 + AIM * 7200)
        assert kept.cost(until=1000.0 + 7200) == pytest.approx(10.0)
    assert len([*Path("runs").iterdir()]) == 1


def test_the_smallest_budget_of_two_ranks_has_their_starts(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two timings of a busy machine differ by more than the starts.
    alike = TrainingMachine(False, False, 10**12, lambda _: 5000.0)
    monkeypatch.setattr(budget_plan, "machine_of", lambda *_, **__: alike)
    needed_s = []
    for ranks in (1, 2):
        with pytest.raises(TooSmallError) as raised:
            plan_budget(recipe, 1.0, Place(ranks=ranks))
        needed_s.append(raised.value.needed_s)
    # A launcher and its ranks import PyTorch, which takes 4 s or more, to train and to score.
    assert needed_s[1] - needed_s[0] >= 10
    with pytest.raises(
        TooSmallError, match=r"1 s \(0\.01 USD\): .* at least .* s \(\d\.\d+ USD\)$"
    ):
        plan_budget(recipe, 1.0, Place(ranks=1, price=HourlyPrice(36.0, "USD")))


@pytest.mark.parametrize("needed_s", [1.0, 59.9, 601.0, 3599.0, 3600.1, 3620.0, 86_401.0])
def test_a_budget_that_an_error_asks_for_is_enough(needed_s: float) -> None:
    error = TooSmallError(1.0, needed_s=needed_s, price=None)
    asked = str(error).partition("at least ")[2]
    assert needed_s <= parse_budget(asked, None) <= needed_s + 60
    assert parse_budget(asked, None) == rounded_up(needed_s)


def test_a_budget_that_preparing_used_up_is_refused_with_that_reason() -> None:
    error = TooSmallError(600.0, needed_s=680.0, price=None, gone_s=339.0)
    assert "5 min 39 s of it went into preparing the text" in str(error)
    assert "went" not in str(TooSmallError(600.0, needed_s=680.0, price=None, gone_s=30.0))


def test_a_plan_needs_the_files_that_the_recipe_names(recipe: Recipe) -> None:
    files = TextFiles(tsv="misspelt.tsv")
    corpus = recipe.corpus.model_copy(update={"test": (files,)})
    with pytest.raises(
        CorpusError, match=r"misspelt\.tsv: does not exist; check the name in corpus"
    ):
        plan_budget(recipe.model_copy(update={"corpus": corpus}), 3600.0, Place(ranks=1))


def test_the_last_checkpoint_is_copied_over_a_link(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('[[host]]\naddress = "10.0.0.1"\ngpus = 1\ngpu = "v100"\n')
    recipe = load_recipe("demo")
    pieces = recipe.corpus.subword.vocab_size
    weights = recipe.model.num_parameters(source_vocab_size=pieces, target_vocab_size=pieces)
    found_s = last_copy_s(recipe, file=str(tmp_path / "one.toml"))
    # Weights, their average and two of Adam's, of four bytes, over an assumed gigabit.
    assert found_s == pytest.approx(16 * weights / (1e9 / 8 * 0.945), rel=0.01)


@pytest.mark.parametrize(
    ("link", "outer", "numbers"),
    [("20Mbit", "adam", 8), ("20Mbit", "sgd", 5), ("100Gbit", "adam", 4)],
)
def test_local_steps_make_the_last_checkpoint_larger(
    link: str, outer: str, numbers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "two.toml"
    one = '[[host]]\naddress = "10.0.0.{}"\ngpus = 1\ngpu = "v100"\n'
    hosts.write_text(one.format(1) + one.format(2))
    request = partial(PlanRequest, link=link, compute="300ms")
    monkeypatch.setattr("dragoman.run.speed.PlanRequest", request)
    recipe = load_recipe(
        "multi30k-tiny", ["distributed.strategy=auto", f"distributed.diloco.outer={outer}"]
    )
    plan = plan_recipe(recipe, request(hosts=str(hosts)))
    assert (plan.together.step.strategy == "diloco") == (numbers != 4)
    # Numbers have four bytes: a checkpoint of two ranks with local steps takes twice the room.
    size_bytes = 4 * numbers * plan.workload.num_parameters
    found_s = last_copy_s(recipe, file=str(hosts))
    assert found_s == pytest.approx(size_bytes / plan.cluster.link.bytes_per_s)


def test_the_copy_of_the_last_checkpoint_is_no_time_for_training(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "two.toml"
    one = '[[host]]\naddress = "10.0.0.{}"\ngpus = 1\ngpu = "v100"\n'
    hosts.write_text(one.format(1) + one.format(2))
    request = partial(PlanRequest, link="20Mbit", compute="300ms")
    monkeypatch.setattr("dragoman.run.speed.PlanRequest", request)
    recipe = load_recipe("small.toml", ["model.d_model=512"])
    plan = plan_budget(recipe, 600.0, Place.of(str(hosts)))
    copy_s = last_copy_s(plan.chosen.recipe, file=str(hosts))
    assert copy_s > 20
    assert plan.chosen.training_s <= 600.0 - copy_s


@pytest.mark.usefixtures("recipe")
def test_the_time_for_training_is_divided_into_validations_and_saves() -> None:
    recipe = load_recipe("small.toml", ["train.max_steps=", "schedule.warmup_steps="])
    plan = plan_budget(recipe, 3600.0, Place(ranks=1))
    chosen, budget = plan.settled(asked="", started=time.time() - 100)
    assert 5 <= budget.validations <= 20
    assert budget.validations * (budget.validation_s + budget.save_s) < 0.1 * 3600
    assert chosen.train.max_steps == pytest.approx(plan.chosen.steps, rel=0.2)
    assert chosen.checkpoint.every_minutes == pytest.approx(60 / 30, rel=0.2)
    warmup_steps = min(0.1 * chosen.train.max_steps, recipe.schedule.warmup_steps)
    assert chosen.schedule.warmup_steps == pytest.approx(warmup_steps, rel=0.1)
    # Nothing is left: every budget has five validations.
    _, late = plan.settled(asked="", started=time.time() - 3600)
    assert late.validations == 5


def test_the_work_after_the_training_of_a_large_model_takes_as_long_as_it_did() -> None:
    """19.4 s on an H100 with two busy cores, of which 3 s are those of the smallest model."""
    settings = ["d_model=1024", "num_heads=16", "d_ffn=4096", "encoder_layers=6"]
    settings = [f"model.{setting}" for setting in (*settings, "decoder_layers=6")]
    large = load_recipe("demo", [*settings, "corpus.subword.vocab_size=4000"])
    assert budget_plan._after_s(large, Place()) == pytest.approx(19.4 - 3.0, rel=0.2)
    assert budget_plan._after_s(load_recipe("demo"), Place()) < 1.0


def two_hosts(folder: Path, *, gpus: tuple[str, str] = ("v100", "v100"), more: str = "") -> Place:
    file = folder / "two.toml"
    file.write_text(
        "".join(
            f'[[host]]\naddress = "10.0.0.{number}"\ngpus = 1\ngpu = "{gpu}"\n{more}'
            for number, gpu in enumerate(gpus, 1)
        )
    )
    return Place.of(str(file))


def test_the_speed_of_hosts_is_that_of_all_and_a_slow_one_is_named(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.run.speed.PlanRequest", partial(PlanRequest, link="800Gbit"))
    sizes = ("d_model=1024", "d_ffn=4096", "num_heads=16", "encoder_layers=6", "decoder_layers=6")
    recipe = load_recipe("small.toml", [f"model.{one}" for one in sizes])
    alike, unlike = (
        plan_budget(recipe, 3600.0, two_hosts(tmp_path, gpus=gpus))
        for gpus in (("v100", "v100"), ("v100", "p100"))
    )
    assert unlike.chosen.tokens_per_s < alike.chosen.tokens_per_s / 2
    assert alike.warnings == ()
    (warning,) = unlike.warnings
    assert warning.startswith("all hosts train, but one GPU alone would be faster: ")


def test_a_plan_names_the_interruptions_of_hosts(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.run.speed.PlanRequest", partial(PlanRequest, link="10Gbit"))
    spot = "spot_price_per_hour = 1.0\ncurrency = 'USD'\ninterruption_hours = 1.0\n"
    warning = plan_budget(recipe, 3600.0, two_hosts(tmp_path, more=spot)).warnings[0]
    # Two hosts, each taken away once an hour, in some 55 minutes.
    assert re.match(
        r"1\.8 interruptions of hosts are expected; each costs about 5 min 37 s", warning
    )
