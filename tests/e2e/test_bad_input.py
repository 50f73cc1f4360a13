"""Bad input of every kind: one line names place and remedy, exit code not 0, nothing half done."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.errors import DragomanError

SENTENCES = [
    (f"The cell number {n} is empty.", f"Die Zelle Nummer {n} ist leer.") for n in range(60)
]
SMALL = """
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid_pairs = 5
test_pairs = 5
subword.vocab_size = 60
[model]
d_model = 16
num_heads = 2
d_ffn = 16
encoder_layers = 1
decoder_layers = 1
[train]
max_steps = 2
log_every_steps = 1
validate_every_steps = 1
[checkpoint]
every_steps = 1
keep_last = 2
[evaluate]
bootstrap_samples = 0
"""


@dataclass
class Case:
    """What is done to a good folder, the command, and words that its one line must hold."""

    name: str
    words: list[str]
    command: list[str] = field(default_factory=lambda: ["prepare", "small.toml"])
    spoil: Callable[[], object] = lambda: None


def write_good_folder() -> None:
    Path("small.toml").write_text(SMALL)
    Path("train.en").write_text("".join(f"{source}\n" for source, _ in SENTENCES))
    Path("train.de").write_text("".join(f"{target}\n" for _, target in SENTENCES))


def replace(name: str, old: str, new: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(Path(name).read_text().replace(old, new))


def write(name: str, content: bytes) -> Callable[[], object]:
    return lambda: Path(name).write_bytes(content)


CONFIG_CASES = [
    Case("a recipe of no such name", ["dmeo", "demo"], ["run", "dmeo"]),
    Case("a recipe file that is missing", ["gone.toml"], ["run", "gone.toml"]),
    Case("not TOML", ["small.toml", "TOML"], spoil=write("small.toml", b"[corpus\n")),
    Case("not UTF-8", ["small.toml:1", "UTF-8"], spoil=write("small.toml", b"# \xff\n")),
    Case(
        "an unknown key",
        ["small.toml", "d_modle", "d_model"],
        spoil=replace("small.toml", "d_model", "d_modle"),
    ),
    Case(
        "a value of the wrong type",
        ["small.toml", "max_steps"],
        spoil=replace("small.toml", "max_steps = 2", 'max_steps = "two"'),
    ),
    Case(
        "a value out of range",
        ["small.toml", "max_steps"],
        spoil=replace("small.toml", "max_steps = 2", "max_steps = 0"),
    ),
    Case(
        "sections that disagree",
        ["num_heads"],
        spoil=replace("small.toml", "num_heads = 2", "num_heads = 3"),
    ),
    Case("no text", ["corpus.train"], spoil=replace("small.toml", "train = [", "valid = [")),
    Case("an override without a value", ["--set"], ["prepare", "small.toml", "--set", "train"]),
    Case(
        "an override of no such key",
        ["--set", "warmup_steps"],
        ["prepare", "small.toml", "--set", "schedule.warmup_stesp=4"],
    ),
]
CORPUS_CASES = [
    Case("a text file that is missing", ["train.de"], spoil=lambda: Path("train.de").unlink()),
    Case(
        "files of different length",
        ["train.en", "train.de", "60", "59"],
        spoil=replace("train.de", "Die Zelle Nummer 7 ist leer.\n", ""),
    ),
    Case(
        "text that is not UTF-8",
        ["train.en", "line 60", "UTF-8"],
        spoil=write("train.en", b"a\n\xe4\n" * 30),
    ),
    Case(
        "a torn gzip file",
        ["train.en.gz"],
        spoil=lambda: (
            Path("train.en.gz").write_bytes(gzip.compress(b"A sentence.\n" * 60)[:-9]),
            replace("small.toml", '"train.en"', '"train.en.gz"')(),
        ),
    ),
    Case(
        "a TSV file with a column missing",
        ["train.tsv", "line 3", "column"],
        spoil=lambda: (
            Path("train.tsv").write_text("a cell\teine Zelle\n" * 2 + "no tab\n"),
            replace(
                "small.toml", '{source = "train.en", target = "train.de"}', '{tsv = "train.tsv"}'
            )(),
        ),
    ),
    Case(
        "a vocabulary too large for the text",
        ["vocab_size"],
        spoil=replace("small.toml", "vocab_size = 60", "vocab_size = 9000"),
    ),
    Case(
        "filters that leave nothing",
        ["corpus"],
        ["prepare", "small.toml", "--set", "corpus.filters.max_words=1"],
    ),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_good_folder()
    return tmp_path


@pytest.mark.parametrize("case", CONFIG_CASES + CORPUS_CASES, ids=lambda case: case.name)
def test_one_line_names_place_and_remedy(
    case: Case, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case.spoil()
    assert main(case.command) != 0
    line = complaint(capsys)
    assert all(word in line for word in case.words), line
    assert not list(folder.glob("prepared/*/manifest.json"))
    assert not list(folder.glob("runs/*"))


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr; its remedy follows a semicolon."""
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0, error
    assert error.startswith("dragoman: ")
    assert "; " in error, error
    return error


@contextmanager
def file_system(path: Path, options: str) -> Iterator[None]:
    """A small file system of its own, as only root can make it."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "dragoman-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs root and the right to mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize(
    ("options", "word"), [("ro", "ead-only"), ("size=64k", "space")], ids=["read-only", "full"]
)
@pytest.mark.parametrize("where", ["--prepared", "--runs"])
def test_a_disk_that_takes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], where: str, options: str, word: str
) -> None:
    with file_system(folder / "disk", options):
        place = folder / "disk" / "place"
        assert main(["train", "small.toml", where, str(place), "--workers", "1"]) != 0
        line = complaint(capsys)
        assert word in line
        assert str(folder / "disk") in line
        assert not list(place.glob("manifest.json" if where == "--prepared" else "*/*/step-*"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run; the tests work on copies of it."""
    folder = tmp_path_factory.mktemp("trained")
    before = Path.cwd()
    os.chdir(folder)
    try:
        write_good_folder()
        assert main(["run", "small.toml", "--ranks", "1"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def run_path(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a copy of the trained folder."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return next(Path("runs").glob("small-*"))


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


RUN_CASES: list[tuple[str, Callable[[Path], object], Callable[[Path], list[str]], list[str]]] = [
    (
        "not a run",
        lambda run: (run / "recipe.toml").unlink(),
        lambda run: ["translate", str(run)],
        ["recipe.toml"],
    ),
    (
        "no checkpoint",
        lambda run: shutil.rmtree(run / "checkpoints"),
        lambda run: ["evaluate", str(run)],
        ["checkpoint"],
    ),
    (
        "no checkpoint of this name",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--checkpoint", "lats"],
        ["lats", "last"],
    ),
    (
        "a flipped byte in the weights",
        lambda run: flip_a_byte(run / "checkpoints" / "step-0000002" / "model.safetensors"),
        lambda run: ["evaluate", str(run), "--checkpoint", "last"],
        ["model.safetensors"],
    ),
    (
        "weights of another model",
        lambda run: replace(str(run / "recipe.toml"), "d_ffn = 16", "d_ffn = 32")(),
        lambda run: ["evaluate", str(run), "--checkpoint", "last"],
        ["feed_forward", "(16"],
    ),
    (
        "a torn subword model",
        lambda run: (run / "source.model").write_bytes(b"no model"),
        lambda run: ["evaluate", str(run), "--checkpoint", "last"],
        ["source.model"],
    ),
    (
        "a corpus that is gone",
        lambda run: replace(str(run / "corpus.json"), "prepared/", "prepared/gone-")(),
        lambda run: ["train", str(run)],
        ["prepared/gone-", "dragoman prepare"],
    ),
    (
        "a source without its reference",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--source", "train.en"],
        ["--reference"],
    ),
    (
        "a run that does not say where its corpus is",
        lambda run: (run / "corpus.json").write_text('{"prepared"'),
        lambda run: ["train", str(run)],
        ["corpus.json", "--fresh"],
    ),
    (
        "a source that is missing",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--source", "gone.en", "--reference", "train.de"],
        ["gone.en"],
    ),
    (
        "a reference that is not UTF-8",
        lambda run: Path("latin1").write_bytes(b"fine\n\xe4\n"),
        lambda run: ["evaluate", str(run), "--source", "train.en", "--reference", "latin1"],
        ["latin1, line 2", "UTF-8"],
    ),
    (
        "a reference of another text",
        lambda run: Path("short").write_text("Eins.\n"),
        lambda run: ["evaluate", str(run), "--source", "train.en", "--reference", "short"],
        ["train.en", "60 lines against 1"],
    ),
    (
        "an override that would change nothing",
        lambda run: None,
        lambda run: ["evaluate", str(run), "--set", "model.num_heads=1"],
        ["--set model.num_heads=1", "search"],
    ),
    (
        "more checkpoints than were kept",
        lambda run: None,
        lambda run: ["average", str(run), "--last", "9"],
        ["only 2 of the 9", "checkpoint.keep_last"],
    ),
    (
        "an average in place of a run",
        lambda run: None,
        lambda run: ["average", str(run), "--output", str(run)],
        ["is no average", "--output"],
    ),
    (
        "overrides on a run",
        lambda run: None,
        lambda run: ["train", str(run), "--set", "train.max_steps=9"],
        ["--set"],
    ),
    (
        "input that is not UTF-8",
        lambda run: Path("latin1").write_bytes(b"fine\n\xe4\n"),
        lambda run: ["translate", str(run), "--input", "latin1", "--output", "out"],
        ["latin1", "UTF-8"],
    ),
    (
        "input that is missing",
        lambda run: None,
        lambda run: ["translate", str(run), "--input", "gone"],
        ["gone"],
    ),
    (
        "more translations than the beam holds",
        lambda run: None,
        lambda run: ["translate", str(run), "--input", "train.en", "--n-best", "9"],
        ["search.beam_size"],
    ),
]


@pytest.mark.parametrize(
    ("spoil", "command", "words"), [case[1:] for case in RUN_CASES], ids=[c[0] for c in RUN_CASES]
)
def test_a_run_that_is_damaged_or_asked_too_much(
    run_path: Path,
    capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], object],
    command: Callable[[Path], list[str]],
    words: list[str],
) -> None:
    spoil(run_path)
    capsys.readouterr()
    assert main(command(run_path)) != 0
    line = complaint(capsys)
    assert all(word in line for word in words), line
    assert not Path("out").exists()
    assert not any(path.name.startswith(".") for path in Path("runs").rglob("*"))


def test_errors_have_exit_codes_of_their_class() -> None:
    def classes(base: type[DragomanError]) -> set[type[DragomanError]]:
        return {base}.union(*(classes(sub) for sub in base.__subclasses__()))

    assert all(error.exit_code != 0 for error in classes(DragomanError))


def test_help_answers_without_torch() -> None:
    code = (
        "import sys; from dragoman import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'pydantic', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
