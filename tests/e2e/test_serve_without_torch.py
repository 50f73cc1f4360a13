"""An export is translated and served with the packages alone that the guide names for an Arm board.

Every other installed package, PyTorch among them, is absent for these processes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from served import served_bundle, serving

GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/serve.md"
COMMAND = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.argv[1:1] = words
from dragoman.__main__ import main
sys.exit(main())
"""


def installed_by_the_guide() -> set[str]:
    """The distributions of the guide's `pip install`, with those that they need."""
    (line,) = re.findall(r"^pip install (ctranslate2 .*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    waiting = [Requirement(name.strip("'")) for name in line.split()]
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        found.add(canonicalize_name(wanted.name))
        for extra in ("", *wanted.extras):
            if (wanted.name, extra) in seen:
                continue
            seen.add((wanted.name, extra))
            needed = map(Requirement, requires(wanted.name) or [])
            waiting += [
                one for one in needed if not one.marker or one.marker.evaluate({"extra": extra})
            ]
    return found


def command(*words: str) -> tuple[str, str]:
    """What Python is to run: a command of dragoman, without the packages that are absent."""
    present = installed_by_the_guide() | {"dragoman"}
    absent = {
        module
        for module, distributions in packages_distributions().items()
        if not present & set(map(canonicalize_name, distributions))
    }
    assert {"torch", "sacrebleu", "tensorboard", "transformers"} <= absent
    return "-c", f"{absent = }\n{words = }\n{COMMAND}"


@pytest.mark.system
@pytest.mark.smoke
def test_an_export_is_served_without_torch() -> None:
    bundle = served_bundle()
    with serving(bundle, "--threads", "1", command=command("serve")) as server:
        for body in (
            {"text": "A man."},
            {"text": "A man sleeps in the sun.", "source": "auto", "target": "de"},
            {"text": "<p>A man.</p>", "format": "html"},
            {"text": "# A man\n\nTwo dogs.", "format": "markdown"},
        ):
            answer = server.ask("/translate", body)
            assert answer.status == 200, answer.body
            assert answer.json["translations"][0]["text"]
        assert server.ask("/detect", {"text": "A man sleeps in the sun."}).status == 200
    relabelled = ("--threads", "1", "--languages", "en-fr")
    with serving(bundle, *relabelled, command=command("serve")) as server:
        (pair,) = server.ask("/pairs").json["pairs"]
        assert pair["target"] == "fr"


def test_an_export_translates_without_torch(tmp_path: Path) -> None:
    bundle = served_bundle()
    text = tmp_path / "in.txt"
    text.write_text("A man.\nTwo dogs run.\n", encoding="utf-8")
    translations = []
    for words in (("-m", "dragoman", "translate"), command("translate")):
        done = subprocess.run(
            [sys.executable, *words, bundle, "--format", "document", "--input", text],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        translations.append(done.stdout)
    assert translations[0] == translations[1]
    assert translations[0].count("\n") == 2
