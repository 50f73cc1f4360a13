"""`dragoman worth` with its own trainings on a quarter and a half of the text."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman
from dragoman.cli.command_line import main
from dragoman.reporting.reading import read_facts
from real_text import write_real_text
from small_run import RECIPE, small_run

SEVERAL = (
    RECIPE.replace("max_steps = 180", "max_steps = 50")
    .replace("log_every_steps = 60", "log_every_steps = 10")
    .replace("validate_every_steps = 180", "validate_every_steps = 10")
)


def begin(folder: Path, monkeypatch: pytest.MonkeyPatch, *, pairs: int, steps: int = 50) -> None:
    """Write text and recipe into the folder, and work there."""
    monkeypatch.chdir(folder)
    write_real_text(folder, "train", pairs)
    write_real_text(folder, "valid", 60)
    Path("small.toml").write_text(SEVERAL.replace("max_steps = 50", f"max_steps = {steps}"))


def test_a_half_and_a_quarter_of_the_text_tell_what_more_is_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(tmp_path, monkeypatch, pairs=800)
    run = dragoman.train("small.toml", ranks=1, workers=1)
    hour, some, _ = dragoman.worth(run, hours=0.001, pairs=100)
    assert hour.more.startswith("3.60 s more, ")
    assert isinstance(some.gain, str)
    assert "(train)" in some.gain

    told = dragoman.worth(run, pairs=100, train=True, ranks=1)
    assert not any(isinstance(one.gain, str) for one in told[1:]), told
    names = sorted(path.name.rsplit("-", 2)[0] for path in Path("runs").iterdir())
    assert names == ["small", "small-half", "small-quarter"]
    pairs = []
    for path in sorted(Path("runs").iterdir(), key=lambda path: path.name.rsplit("-", 2)[0]):
        intervals = read_facts(path).intervals
        pairs.append(float(intervals["pairs"].sum() / (intervals["epoch"][-1] + 1)))
        assert read_facts(path).last_step == 50
    assert pairs[0] > pairs[1] > pairs[2]

    before = {*Path("runs").iterdir()}
    assert main(["worth", str(run.path), "--pairs", "100"]) == 0
    assert {*Path("runs").iterdir()} == before
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("100 pairs more: dev loss ")
    assert ", twice the text: dev loss " in lines[-1]


def test_text_that_has_changed_since_is_not_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, monkeypatch, pairs=300, steps=10)
    run = dragoman.train("small.toml", ranks=1, workers=1)
    for side in ("en", "de"):
        with Path(f"train.{side}").open("a") as file:
            file.write("Eins.\n")
    told = dragoman.worth(run, pairs=100, train=True, ranks=1)
    assert not any(isinstance(one.gain, str) for one in told[1:])
    assert run.prepared().is_dir()


def test_a_run_that_was_stopped_tells_nothing_about_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, monkeypatch, pairs=300)

    def stop(event: dragoman.Event) -> None:
        if event.step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dragoman.train("small.toml", ranks=1, workers=1, on_event=stop)
    (run,) = Path("runs").iterdir()
    told = dragoman.worth(run, pairs=100, train=True, ranks=1)
    assert [one.gain for one in told[1:]] == [
        "It did not come to the end of its schedule, so parts cannot tell."
    ] * 2
    assert len([*Path("runs").iterdir()]) == 1


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(dragoman.CheckpointError):
        dragoman.worth(tmp_path)
    with pytest.raises(dragoman.ConfigError, match="pairs"):
        dragoman.worth(small_run(), pairs=0)
    for hours in (0.0, -100.0, float("inf"), float("nan")):
        with pytest.raises(dragoman.ConfigError, match="hours"):
            dragoman.worth(small_run(), hours=hours)
