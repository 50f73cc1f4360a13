"""The run on the same text whose curve is the forecast of a budget."""

from __future__ import annotations

import shutil
from pathlib import Path

from dragoman.corpus.manifest import Manifest
from dragoman.run.earlier import EarlierRun, earlier_run
from small_run import small_run


def test_a_finished_run_on_the_same_text_is_found(tmp_path: Path) -> None:
    run, manifest = small_run(), Manifest.load(small_run().path)
    assert earlier_run(manifest, tmp_path) is None
    found = earlier_run(manifest, run.path.parent)
    assert found is not None
    tokens, bleu = found.end
    assert tokens > 0
    assert found.after(tokens) == bleu
    assert found.after(0) is None
    other = manifest.model_copy(
        update={
            "sources": tuple(
                one.model_copy(update={"sha256": one.sha256[::-1]}) for one in manifest.sources
            )
        }
    )
    assert earlier_run(other, run.path.parent) is None


def test_a_run_that_did_not_end_or_cannot_be_read_is_no_forecast(tmp_path: Path) -> None:
    run = tmp_path / small_run().path.name
    shutil.copytree(small_run().path, run)
    manifest = Manifest.load(run)
    events = run / "events" / "log.jsonl"
    lines = [line for line in events.read_text().splitlines() if "run_finished" not in line]
    events.write_text("\n".join(lines) + "\n")
    assert earlier_run(manifest, tmp_path) is None
    (run / "manifest.json").write_text("{}")
    assert earlier_run(manifest, tmp_path) is None


def test_the_best_score_up_to_a_number_of_tokens_counts() -> None:
    run = EarlierRun(Path(), None, ((100, 5.0), (200, 9.0), (300, 8.0)))
    assert run.end == (300, 9.0)
    assert [run.after(tokens) for tokens in (99, 150, 250, 999)] == [None, 5.0, 9.0, 9.0]
