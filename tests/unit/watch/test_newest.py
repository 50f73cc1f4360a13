"""Watch without a name: it follows the run that begins, to its score and its translations."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.telemetry.events import SampleTranslation
from dragoman.watch.live import NewestRun
from dragoman.watch.screen import screen
from example_events import TEST_SCORED, changed
from recorded_runs import Recorded


def _write(run: Recorded, directory: Path, *, time: int) -> None:
    run.write(directory)
    (directory / "recipe.toml").write_text(dump_toml(load_recipe("demo")))
    os.utime(directory / "recipe.toml", (time, time))


def test_the_run_that_begins_is_followed(tmp_path: Path) -> None:
    with closing(NewestRun(tmp_path)) as watched:
        watched.look()
        (alert,) = watched.now().alerts
        assert "no run here yet" in alert
        for number, name in enumerate(("old", "new"), start=1):
            _write(Recorded(steps=1000 * number), tmp_path / name, time=number)
            assert watched.look()
            now = watched.now()
            assert now.progress.step == now.facts.last_step == 1000 * number
            assert not watched.look(), "nothing is new"


def test_the_end_of_a_run_shows_its_score_and_a_translation(tmp_path: Path) -> None:
    sample = SampleTranslation(source="A house.", reference="Ein Haus.", hypothesis="Das Haus.")
    scored = changed(TEST_SCORED, name="test2016", bleu=31.5)
    _write(Recorded(extra=[(0, sample), (0, scored)]), tmp_path / "run", time=1)
    with closing(NewestRun(tmp_path)) as watched:
        watched.look()
        now = watched.now()
    lines = [line.plain for line in screen(now, width=80, height=40)]
    for text in ("Das Haus.", "A house.", "test2016", "BLEU 31.5"):
        assert text in "\n".join(lines)
