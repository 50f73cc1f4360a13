"""Bad input of every kind: one line names place and remedy, exit code not 0, nothing half done."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bad_input import complaint, replace, write_good_folder
from dragoman.base.errors import DragomanError
from dragoman.cli import main


@dataclass
class Case:
    """A change to a good folder, the command, and words that its one line must hold."""

    name: str
    words: list[str]
    command: list[str] = field(default_factory=lambda: ["prepare", "small.toml"])
    spoil: Callable[[], object] = lambda: None


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
    Case("an override without a value", ["train: "], ["prepare", "small.toml", "--set", "train"]),
    Case(
        "an override of no such key",
        ["schedule.warmup_stesp", "warmup_steps"],
        ["prepare", "small.toml", "--set", "schedule.warmup_stesp=4"],
    ),
    Case(
        "a server of a folder that is not an export",
        ["neither a run nor an export", "its export to ctranslate2"],
        ["serve", "."],
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
        ["train.en", "line 2", "UTF-8"],
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
                "small.toml",
                '{source = "train.en", target = "train.de"}',
                '{tsv = "train.tsv", source_language = "en", target_language = "de"}',
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


def test_a_model_larger_than_the_memory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # No machine has addresses for an embedding of this width.
    width = ["--set", f"model.d_model={10**12}"]
    assert main(["train", "small.toml", "--workers", "1", *width]) != 0
    line = complaint(capsys)
    assert "memory ran out" in line
    assert "data.batch_tokens" in line


@pytest.mark.slow
def test_compiling_without_a_compiler(folder: Path) -> None:
    environment = os.environ | {"PATH": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    environment.pop("CXX", None)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dragoman",
            "train",
            "small.toml",
            "--set",
            "train.compile=true",
        ],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "g++" in done.stderr
    assert "train.compile = false" in done.stderr


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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "demo", "--ranks", "0"], ["--ranks", "'0' is not a whole number above 0"]),
        (["train", "demo", "--ranks", "two"], ["--ranks", "'two' is not a whole number above 0"]),
        (["translate", "run", "--n-best", "0"], ["--n-best"]),
        (["trian", "demo"], ["trian"]),
        (["plan", "demo", "--compute", "-1s"], ["--compute", "begins with a dash", "OPTION=VALUE"]),
        (["run", ""], ["word 2 after dragoman, '', is empty; if a variable of the shell"]),
        (["train", ""], ["word 2 after dragoman, '', is empty"]),
        (["export", "run", "--to", ""], ["word 4 after dragoman, '', is empty"]),
        (["doctor", "--hosts="], ["word 2 after dragoman, '--hosts=', is empty"]),
        ([], ["COMMAND"]),
    ],
    ids=str,
)
def test_a_command_line_that_cannot_be_read_is_one_line(
    words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("dragoman: ")
    assert all(word in line for word in [*expected, "--help"])


def test_a_file_in_the_place_of_a_directory_is_called_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["inspect", str(tmp_path / "file")]) != 0
    assert "file: is a file, not a directory; name a run" in complaint(capsys)
    assert main(["inspect", str(tmp_path / "nothing")]) != 0
    assert "nothing: no such directory; name a run" in complaint(capsys)


def test_more_hosts_or_gpus_than_anybody_has_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "demo", "--link", "1Gbit", "--gpu", "v100", "--hosts", "999999999"]) != 0
    assert "999999999 is not a number of hosts; write a number from 1 to 9999" in complaint(capsys)
    for gpu in ("v100:999999999", "v100:2+99999"):
        assert main(["plan", "demo", "--link", "1Gbit", "--gpu", gpu]) != 0
        assert "is not a kind of GPU and a number" in complaint(capsys)


def test_a_reader_that_has_gone_is_no_failure() -> None:
    """As in `dragoman run --recipes | head -1`, if the shell has run `set -o pipefail`."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "dragoman", "run", "--recipes"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["translate", "export", "serve", "train", "report"])
def test_a_path_that_cannot_even_be_asked_for_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a" * 300  # as with a folder that only others may enter, which root may always
    assert main([*command.split(), name]) != 0
    assert name in complaint(capsys)
