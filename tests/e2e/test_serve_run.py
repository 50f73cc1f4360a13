"""dragoman serve over a run: the export is written once, and again if the run has changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dragoman.cli import main
from dragoman.training.durable import DIGESTS_FILE
from served import serving
from small_run import small_run


def served(run: Path) -> tuple[str, str, int, int]:
    """What a server of the run answers, and the checkpoint, beam and time of the one export."""
    with serving(run) as server:
        answer = server.ask("/translate", {"text": "Click the button."}).json
        (model,) = server.ask("/models").json
    (export,) = (run / "export").iterdir()
    checkpoint = json.loads((export / "bundle.json").read_bytes())["checkpoint"]
    written_ns = (export / DIGESTS_FILE).stat().st_mtime_ns
    return answer["translations"][0]["text"], checkpoint, model["beam_size"], written_ns


def test_a_run_is_exported_once_and_again_if_it_has_changed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run().path, run, ignore=shutil.ignore_patterns("export"))
    first = served(run)
    assert first[0]
    assert first[1:3] == ("step-0000180", 4)
    assert served(run) == first

    checkpoints = run / "checkpoints"
    (checkpoints / "step-0000180").rename(checkpoints / "step-0000360")
    second = served(run)
    assert second[:3] == (first[0], "step-0000360", 4)
    assert second[3] > first[3]

    recipe = run / "recipe.toml"
    assert "[search]" not in recipe.read_text() or "beam_size = 4" in recipe.read_text()
    text = recipe.read_text().replace("beam_size = 4", "beam_size = 2")
    recipe.write_text(text if "[search]" in text else f"{text}\n[search]\nbeam_size = 2\n")
    assert served(run)[1:3] == ("step-0000360", 2)


def test_an_export_of_the_checkpoint_that_exists_is_served(tmp_path: Path) -> None:
    """A budget ends with one in int8."""
    run = tmp_path / "run"
    shutil.copytree(small_run().path, run, ignore=shutil.ignore_patterns("export"))
    made = ["export", str(run), "--to", "ctranslate2", "--quantization", "int8"]
    assert main(made) == 0
    with serving(run) as server:
        (model,) = server.ask("/models").json
    assert model["quantization"] == "int8"
    assert [path.name for path in (run / "export").iterdir()] == ["ctranslate2-int8"]
