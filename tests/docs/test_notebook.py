"""docs/notebook.ipynb runs from its first to its last cell, and shows what it should."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


@pytest.mark.smoke
def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), cell["id"]
        assert cell.get("execution_count") is None, cell["id"]


@pytest.mark.timeout(900)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    shown = {
        cell["source"].split("(")[0].strip(): cell["outputs"]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }

    def html(of: str) -> str:
        return "".join(
            output["data"].get("text/html", "") for output in shown[of] if "data" in output
        )

    training = html("run = dragoman.train")
    assert "step 40" in training  # the last event of the training, in one place
    assert len(shown["run = dragoman.train"]) == 1, "the progress was shown more than once"
    assert html("dragoman.report").startswith("<iframe srcdoc=")
    assert shown["faster = dragoman.train"] == [], "nobody asked for progress there"
    for outputs in shown.values():
        assert not [one for one in outputs if one.get("name") == "stderr"]
