"""What a training on hosts sends of the prepared text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from dragoman.cluster.training import _copies
from dragoman.recipe.run_directory import RunDirectory
from small_run import small_run


def test_only_the_files_of_the_corpus_are_sent_and_no_link_out_of_it(tmp_path: Path) -> None:
    run, prepared = RunDirectory(tmp_path / "run"), tmp_path / "prepared"
    shutil.copytree(small_run().path, run.path)
    shutil.copytree(small_run().prepared(), prepared)
    record = json.loads((run.path / "corpus.json").read_text())
    (run.path / "corpus.json").write_text(json.dumps(record | {"prepared": str(prepared)}))
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    (prepared / "key").symlink_to(tmp_path / "private" / "key")
    (prepared / "private").symlink_to(tmp_path / "private")
    (prepared / "downloads").mkdir()
    (prepared / "downloads" / "text.en").write_text("A man.\n")
    data = next(files for place, files in _copies(run, "runs/r", None).items() if "data" in place)
    assert {"manifest.json", "source.model", "target.model"} <= data.keys()
    assert {Path(name).parts[0] for name in data if "/" in name} <= {"train", "valid", "test"}
    assert not data.keys() & {"key", "private/key", "downloads/text.en"}
