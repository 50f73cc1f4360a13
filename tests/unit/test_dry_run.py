"""`--dry-run`: what a run takes, on one screen, before it starts."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.base.errors import CorpusError
from dragoman.cli.command_line import command_parser, main
from dragoman.cli.forecast import print_dry_run
from dragoman.recipe.recipe import Recipe, load_recipe
from dragoman.recipe.text_size import training_text

PAIRS = 300
SMALL = [
    "model.d_model=32",
    "model.num_heads=2",
    "model.d_ffn=64",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "corpus.subword.vocab_size=500",
    "data.batch_tokens=256",
]


def recipe(folder: Path, *settings: str) -> Recipe:
    (folder / "a.en").write_text("A man rides a horse.\n" * PAIRS)
    (folder / "a.de").write_text("Ein Mann reitet ein Pferd.\n" * PAIRS)
    path = folder / "mine.toml"
    path.write_text(
        "[corpus]\nsource_language = 'en'\ntarget_language = 'de'\n"
        "train = [{source = 'a.en', target = 'a.de'}]\nvalid_pairs = 10\n"
    )
    return load_recipe(path, [*SMALL, *settings])


def facts(shown: str) -> dict[str, str]:
    rows = (re.split(r"  +", line, maxsplit=1) for line in shown.splitlines() if "  " in line)
    return {name: value for name, value in (row for row in rows if len(row) == 2) if name}


def test_it_fits_one_screen_and_says_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = recipe(tmp_path, "train.max_steps=100")
    print_dry_run(mine, name="mine.toml")
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 24
    found = facts(shown)
    assert found["pairs"].startswith("300,")
    assert found["steps"].startswith("100 of at most 257 target tokens")
    assert "on this machine" in found["time"]
    text = training_text(mine)
    assert text is not None
    assert f"{100 * 257 / text.target_pieces:,.1f}" in found["epochs"]


@pytest.mark.system
def test_many_epochs_lead_to_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_dry_run(recipe(tmp_path, "train.max_steps=100"), name="mine.toml")
    assert "--budget" not in capsys.readouterr().out
    print_dry_run(recipe(tmp_path, "train.max_steps=10000"), name="mine.toml")
    shown = capsys.readouterr().out
    assert "dragoman run mine.toml --budget 6h" in shown
    assert "." not in facts(shown)["epochs"], "so many epochs are known about, not to a tenth"


@pytest.mark.system
def test_the_whole_recipe_is_printed_if_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe(tmp_path)
    words = ["run", str(tmp_path / "mine.toml"), "--dry-run"]
    for setting in SMALL:
        words += ["--set", setting]
    assert main(words) == 0
    assert "d_ffn = 64" not in capsys.readouterr().out
    assert main([*words, "--recipe"]) == 0
    assert "d_ffn = 64" in capsys.readouterr().out


FAULTS: dict[str, Callable[[Path], object]] = {
    "is missing": lambda file: file.unlink(),
    "is empty": lambda file: file.write_text(""),
    "is shorter": lambda file: file.write_text("Ein Mann reitet ein Pferd.\n" * (PAIRS - 1)),
    "is damaged": lambda file: file.write_bytes(gzip.compress(b"Ein Pferd.\n" * PAIRS)[:-20]),
    "is UTF-16": lambda file: file.write_text("Ein Pferd.\n" * PAIRS, encoding="utf-16"),
}


@pytest.mark.parametrize("more", [[], ["--budget", "9h"]])
def test_the_whole_recipe_is_printed_first_if_asked_for(
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    sizes = [word for setting in SMALL for word in ("--set", setting)]
    assert main(["run", "mine.toml", "--dry-run", "--recipe", *more, *sizes]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith('name = "mine"')
    assert "d_model = 32\n" in printed
    # A budget has chosen what the recipe leaves out.
    assert ('kind = "linear"' in printed) == bool(more)


@pytest.mark.parametrize("command", [["run"], ["train"], ["run", "--budget", "9h"]])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_ends_it_as_it_ends_the_run(
    fault: str,
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe(tmp_path)
    FAULTS[fault](tmp_path / "a.de")
    monkeypatch.chdir(tmp_path)
    words = [command[0], "mine.toml", *command[1:]]
    real = main([*words, "--workers", "1"]), capsys.readouterr().err
    assert real[0] != 0
    assert "a.de" in real[1]
    monkeypatch.setattr("dragoman.run.speed.step_cost", None)  # nothing is timed before the error
    assert (main([*words, "--dry-run"]), capsys.readouterr().err) == real


@pytest.mark.parametrize("command", [["run"], ["train"], ["run", "--budget", "9h"]])
def test_a_hook_that_is_not_there_ends_it_and_the_run_before_text_is_prepared(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = [command[0], "mine.toml", *command[1:], "--set", "sinks.hook=json:nothing"]
    assert main([*words, "--dry-run"]) != 0
    said = capsys.readouterr().err
    assert said.startswith("dragoman: sinks.hook json:nothing: there is no such function")
    assert main(words) != 0
    assert capsys.readouterr().err == said
    assert not (tmp_path / "prepared").exists()


def test_a_missing_file_ends_a_plan_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe(tmp_path)
    (tmp_path / "a.de").unlink()
    words = ["plan", str(tmp_path / "mine.toml"), "--gpu", "v100"]
    assert main(words) != 0
    assert f"{tmp_path / 'a.de'}: does not exist; check the name in corpus.train" in (
        capsys.readouterr().err
    )
    assert main(["plan", "multi30k-tiny", "--gpu", "v100"]) == 0  # the user has yet to add its text


@pytest.mark.parametrize(
    "options",
    [
        ["run", "--extend", "nowhere"],
        ["train", "--from", "nowhere"],
        ["train", "--from", "a", "--extend", "b"],
        ["run", "--extend", "a", "--budget", "9h"],
        ["run", "--ranks", "2", "--hosts", "10.0.0.1:1,10.0.0.2:1"],
    ],
)
def test_what_the_run_refuses_ends_it_with_the_same_words(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = [options[0], "mine.toml", *options[1:]]
    real = main(words), capsys.readouterr().err
    assert real[0] != 0
    monkeypatch.setattr("dragoman.run.speed.step_cost", None)
    assert (main([*words, "--dry-run"]), capsys.readouterr().err) == real


@pytest.mark.parametrize("command", ["run", "train"])
def test_it_takes_the_options_of_its_command_and_no_other(command: str) -> None:
    own = {one.name for one in command_parser(command)[1]}
    dry = {one.name for one in command_parser(command, "--dry-run")[1]}
    assert dry - own == {"with_recipe"}
    assert own <= dry


def test_text_that_is_fetched_later_has_no_size_yet() -> None:
    assert training_text(load_recipe("wmt16-ende-reference")) is None


def test_packed_text_is_counted_as_plain_text_is(tmp_path: Path) -> None:
    mine = recipe(tmp_path)
    packed = gzip.compress((tmp_path / "a.en").read_bytes())
    (tmp_path / "a.en").write_bytes(packed)  # known by its first bytes, not by its name
    text = training_text(mine)
    assert text is not None
    assert (text.pairs, text.is_exact) == (PAIRS, True)
    (tmp_path / "a.en").write_bytes(packed[:-20])
    with pytest.raises(CorpusError, match="cannot be unpacked"):
        training_text(mine)


def test_units_of_a_translation_memory_are_its_pairs(tmp_path: Path) -> None:
    mine = recipe(tmp_path)
    unit = "<tu><tuv xml:lang='en'><seg>A</seg></tuv><tuv xml:lang='de'><seg>B</seg></tuv></tu>\n"
    (tmp_path / "a.tmx").write_text(f"<tmx><header/><body>{unit * 20}</body></tmx>")
    entry = {"tmx": "a.tmx"}
    corpus = mine.corpus.model_validate({**mine.corpus.model_dump(), "train": [entry]})
    text = training_text(mine.model_copy(update={"corpus": corpus}))
    assert text is not None
    assert text.pairs == 20


@pytest.mark.parametrize("command", ["run", "train"])
def test_without_torch_all_but_the_hours_is_told(command: str, tmp_path: Path) -> None:
    recipe(tmp_path)
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from dragoman.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, command, "mine.toml", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "not known: PyTorch is not installed" in done.stdout
