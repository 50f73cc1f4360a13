"""dragoman translate over a file: killed again and again, it goes on and loses nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import docx
import polib
import pytest

from dragoman.cli import main
from dragoman.distributed.world import join_world
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.inference.translator import open_translator
from processes import wait_until
from real_text import real_lines
from small_run import small_run

GREEDY = ["--set", "search.beam_size=1"]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    with join_world() as world:
        request = Request(to="ctranslate2", output=tmp_path / "bundle")
        return export(small_run(), request, world).path


def some_lines(path: Path, count: int) -> list[str]:
    """Numbered, so that each is another; some are blank."""
    lines = real_lines("train", "en")
    texts = ["" if n % 97 == 0 else f"{lines[n % len(lines)][:40]} {n}" for n in range(count)]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return texts


def start(bundle: Path, source: Path, output: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle), *GREEDY, *options]
    return subprocess.Popen(
        [*command, "--input", str(source), "--output", str(output)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_of_an_output_that_is_not_complete(
    number: signal.Signals, bundle: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out" / "out.txt"
    output.parent.mkdir()
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle), "--output", str(output)]
    with subprocess.Popen(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: any(output.parent.iterdir()), limit_s=60)
        process.send_signal(number)
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None
        assert process.stderr.read() == "dragoman: interrupted\n"
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--n-best", "2", "--set", "search.beam_size=2"], marks=pytest.mark.slow),
    ],
)
def test_killed_it_goes_on_without_repeating_or_losing_a_line(
    bundle: Path, tmp_path: Path, options: list[str]
) -> None:
    source, whole, broken = tmp_path / "in", tmp_path / "whole", tmp_path / "broken"
    count = 6000
    some_lines(source, count)
    assert start(bundle, source, whole, *options).wait() == 0
    draft = tmp_path / ".broken.partial"
    rng = random.Random(1)
    resumed = 0
    for _ in range(3):
        process = start(bundle, source, broken, *options)
        before = draft.stat().st_size if draft.exists() else 0
        more = rng.randrange(500, 15_000)
        wait_until(
            lambda before=before, more=more, process=process: (
                process.poll() is not None  # type: ignore[misc]
                or (draft.exists() and draft.stat().st_size > before + more)
            )
        )
        resumed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert resumed
    process = start(bundle, source, broken, *options)
    assert "went on after line" in process.communicate()[1] or not draft.exists()
    pairs = zip(broken.read_text().split("\n"), whole.read_text().split("\n"), strict=True)
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
    assert not list(tmp_path.glob(".broken*"))
    if not options:
        assert broken.read_bytes().count(b"\n") == count


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_million_lines_in_constant_memory(bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    some_lines(source, 1_000_000)
    largest_kb = 0
    for part in range(1, 6):
        process = start(bundle, source, output)
        while process.poll() is None and (
            part == 5 or size_of(tmp_path / ".out.partial") < part * 6_000_000
        ):
            status = Path(f"/proc/{process.pid}/status").read_text()
            if "VmHWM:" in status:
                largest_kb = max(largest_kb, int(status.split("VmHWM:")[1].split()[0]))
            time.sleep(0.5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert output.read_bytes().count(b"\n") == 1_000_000
    assert largest_kb < 500_000


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def seconds_by_thread(pid: int) -> list[float]:
    """The processor time of each thread of a process."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            stats.append((task / "stat").read_text())
    return [sum(map(int, stat.rpartition(")")[2].split()[11:13])) / ticks for stat in stats]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_paragraph_of_many_sentences(
    number: signal.Signals, bundle: Path, tmp_path: Path
) -> None:
    """It waits for the batches under way alone; all of them would take some minutes."""
    source, output = tmp_path / "in.md", tmp_path / "out.md"
    sentences = [line for line in real_lines("train", "en") if line.endswith(".")][:1000]
    source.write_text(" ".join(50 * sentences), encoding="utf-8")
    process = start(bundle, source, output, "--set", "search.beam_size=40", "--batch-cells", "1")
    with process:
        try:
            wait_until(lambda: sum(spent > 1 for spent in seconds_by_thread(process.pid)) > 1)
            process.send_signal(number)
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == "dragoman: interrupted\n"
    assert list(tmp_path.glob("*out*")) == []


def test_other_options_start_anew(bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    some_lines(source, 40)
    (tmp_path / ".out.partial").write_text("of another model\n")
    (tmp_path / ".out.partial.json").write_text('{"fingerprint": "another"}')
    assert start(bundle, source, output).wait() == 0
    assert "of another model" not in output.read_text("utf-8")
    assert output.read_text("utf-8").count("\n") == 40


def test_refused_options_keep_the_partial_output(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output, draft = (tmp_path / name for name in ("in", "out", ".out.partial"))
    source.write_text("A man sings.\n")
    draft.write_text("the work of hours\n")
    places = ["--input", str(source), "--output", str(output)]
    assert main(["translate", str(bundle), *GREEDY, "--n-best", "2", *places]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dragoman: search.beam_size: a beam of")
    assert said.count("\n") == 1, said
    assert draft.read_text() == "the work of hours\n"
    assert not output.exists()


def test_lines_documents_tags_and_scores(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    source.write_text("A man. A dog.\n\n<b>A man.</b>\r\n", encoding="utf-8")

    def translated(*options: str) -> list[str]:
        assert main(["translate", str(bundle), "--input", str(source), *options]) == 0
        return capfd.readouterr().out.split("\n")[:-1]

    assert translated()[1] == ""
    assert len(translated("--format", "document")) == 3
    tagged = translated("--format", "markup")[2]
    assert tagged.startswith("<b>")
    assert tagged.endswith("</b>")
    assert [line.count("\t") for line in translated("--scores")] == [1, 1, 1]
    assert [line.split("\t")[0] for line in translated("--n-best", "2")] == [
        "1",
        "1",
        "2",
        "3",
        "3",
    ]


def test_at_a_terminal_each_line_is_answered_and_explained_when_asked(bundle: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle)]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb"},
    )
    os.close(theirs)
    seen = b""

    def until(wanted: bytes, start: int) -> None:
        nonlocal seen
        while not re.search(wanted, seen[start:]):
            seen += os.read(ours, 4096)

    until(b"Ctrl-D ends", 0)
    os.write(ours, b"A man.\n")
    until(rb"\d m?s\r\n", 0)
    asked = len(seen)
    assert b"%" not in seen
    os.write(ours, b"?\n")
    until(b"source: ", asked)
    until(b"%", asked)
    os.write(ours, b"\x04")
    assert process.wait(timeout=60) == 0
    os.close(ours)


def test_typed_lines_are_translated_into_the_named_output(bundle: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle)]
    process = subprocess.Popen(
        [*command, "--output", str(tmp_path / "out")],
        stdin=theirs,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    os.close(theirs)
    os.write(ours, b"A man.\n?\n\x04")
    assert process.communicate(timeout=60)[0] == b""
    os.close(ours)
    assert process.returncode == 0
    assert (tmp_path / "out").read_bytes().count(b"\n") == 2


def test_each_line_of_a_pipe_is_explained(bundle: Path) -> None:
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle), "-i"]
    done = subprocess.run(command, input=b"A man.\n\n", capture_output=True, check=True)
    first, source, *pieces = done.stdout.decode().rstrip().split("\n")
    assert first.strip()
    assert source.split()[0] == "source:"
    assert source.split()[-1] == "</s>"
    for line in pieces:
        shares = [int(word.rstrip("%")) for word in line.split() if word.endswith("%")]
        assert 1 <= len(shares) <= 3
        assert sum(shares) <= 102
    scored = [*command, "--scores"]
    done = subprocess.run(scored, input=b"A man.\n", capture_output=True, check=True)
    score, text = done.stdout.decode().split("\n")[0].split(maxsplit=1)
    assert float(score) < 0
    assert text == first
    assert main(["translate", str(bundle), "-i", "--input", "in"]) == 2


def test_a_line_that_is_no_text_is_named(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"A man.\nA m\xfcn.\n")
    assert main(["translate", str(bundle), "--input", str(source)]) == 1
    assert "in, line 2" in capfd.readouterr().err
    assert main(["translate", str(bundle), "--input", str(tmp_path / "none")]) == 1


def test_a_line_of_ten_megabytes_takes_bounded_memory(bundle: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("!" * 10_000_000 + "\nA man.\n", encoding="utf-8")
    # Not ru_maxrss: that remembers the process which started this one, too.
    program = "import sys; from dragoman.cli import main; code = main(sys.argv[1:]); "
    program += "status = open('/proc/self/status').read(); "
    program += "print(status.split('VmHWM:')[1].split()[0]); sys.exit(code)"
    command = [sys.executable, "-c", program, "translate", str(bundle), "--input", str(source)]
    command += ["--output", str(output), "--format", "document"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 600_000, "kilobytes"
    assert output.read_bytes().count(b"\n") == 2


def test_unusable_inputs_and_outputs_are_named_in_one_line(bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_text("A man.\n" * 3, encoding="utf-8")
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle), *GREEDY]
    missing = tmp_path / "none"
    wrong_call, failed = 2, 1
    for arguments, place, code in (
        (["--input", str(tmp_path)], str(tmp_path), failed),
        (["--input", str(tmp_path), "--output", str(tmp_path / "out")], str(tmp_path), failed),
        (["--input", str(source), "--output", str(missing / "out")], str(missing), wrong_call),
        (["--output", str(missing / "out")], str(missing), wrong_call),
        (["--input", str(source)], "standard output", failed),
    ):
        with source.open("rb") as lines, Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*command, *arguments], stdin=lines, stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith(f"dragoman: {place}: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"in", "bundle"}


def test_other_weights_start_anew(bundle: Path) -> None:
    def identity() -> object:
        with open_translator(
            bundle, checkpoints=["best"], overrides=[], engine="auto", threads=1
        ) as opened:
            return opened.identity

    before = identity()
    assert identity() == before
    card = bundle / "README.md"  # stands for any file of an export that took the place of this one
    card.write_text(card.read_text("utf-8") + "Another.\n", encoding="utf-8")
    digests = json.loads((bundle / "digests.json").read_bytes())
    whole = card.read_bytes()
    digests[card.name] = {"sha256": hashlib.sha256(whole).hexdigest(), "bytes": len(whole)}
    (bundle / "digests.json").write_text(json.dumps(digests), encoding="utf-8")
    assert identity() != before


def test_a_run_translates_in_int8_as_its_int8_export_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run().path
    source = tmp_path / "in"
    some_lines(source, 50)
    exported = tmp_path / "int8"
    to_int8 = ["--to", "ctranslate2", "--quantization", "int8", "--output", str(exported)]
    assert main(["export", str(run), *to_int8]) == 0
    capsys.readouterr()

    def translated(path: Path, *options: str) -> str:
        assert main(["translate", str(path), "--input", str(source), "--scores", *options]) == 0
        return capsys.readouterr().out

    assert translated(run, "--quantization", "int8") == translated(exported)
    assert translated(run, "--quantization", "int8") != translated(run)


def test_a_folder_called_best_is_not_the_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("A man sings.\n")
    translate = ["translate", str(small_run().path), "--input", "in", "--checkpoint"]
    for which in ("best", "last", "180"):
        Path(which).mkdir()
        assert main([*translate, which]) == 0, capsys.readouterr().err
        assert main([*translate, f"./{which}"]) == 1
        assert capsys.readouterr().err.startswith(f"dragoman: {which}")


@pytest.mark.parametrize("which", ["last", "best,last", "best,best", "100", "nowhere"])
def test_an_export_has_no_other_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "bundle.json").touch()  # the error comes before anything of it is read
    assert main(["translate", str(exported), "--checkpoint", which]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dragoman: checkpoint {which}: an export has the weights of one")
    assert said.count("\n") == 1, said


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ["--engine", "torch", "--quantization", "int8"],
            "weights in int8 need CTranslate2, but the engine is torch",
        ),
        (
            ["--checkpoint", "best,last", "--quantization", "int8"],
            "weights in int8 need CTranslate2, but CTranslate2 has no ensembles",
        ),
        (["bundle", "--quantization", "int8"], "this export was written in float32"),
    ],
)
def test_int8_is_refused_if_the_model_cannot_have_it(
    bundle: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    problem: str,
) -> None:
    path = small_run().path
    if options[0] == "bundle":
        path, options = bundle, options[1:]
    assert main(["translate", str(path), *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"dragoman: quantization int8: {problem}"), said
    assert said.count("\n") == 1, said


def test_the_bar_is_for_terminals_alone(bundle: Path, tmp_path: Path) -> None:
    source, plain, beside = tmp_path / "in", tmp_path / "plain", tmp_path / "beside"
    some_lines(source, 600)
    without = start(bundle, source, plain)
    assert without.communicate()[1] == ""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dragoman", "translate", str(bundle), *GREEDY]
    process = subprocess.Popen(
        [*command, "--input", str(source), "--output", str(beside)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 4096):
            seen += part
    except OSError:  # Linux's way to say that nobody has the other end
        pass
    os.close(ours)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    assert b"600 lines" in seen
    assert beside.read_bytes() == plain.read_bytes()


def test_catalogues_and_documents_of_word_are_translated(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.po").write_text(
        'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
        'msgid "Open the file."\nmsgstr ""\n\n#, fuzzy\nmsgid "Close it."\nmsgstr "Zu."\n'
    )
    document = docx.Document()
    document.add_paragraph("Open the file.", style="List Bullet")
    document.add_paragraph("...")
    document.save(str(tmp_path / "a.docx"))
    command = ["translate", str(bundle), "--input"]
    assert main([*command, str(tmp_path / "a.po"), "--output", str(tmp_path / "b.po")]) == 0
    assert "1 fuzzy" in capfd.readouterr().err
    first, second = polib.pofile(str(tmp_path / "b.po"))
    assert first.msgstr not in ("", "Open the file.")
    assert (second.msgstr, second.fuzzy) == ("Zu.", True)
    assert main([*command, str(tmp_path / "a.docx"), "--output", str(tmp_path / "b.docx")]) == 0
    found = docx.Document(str(tmp_path / "b.docx")).paragraphs
    assert [one.text for one in found] == [first.msgstr, "..."]
    assert found[0].style is not None
    assert found[0].style.name == "List Bullet"


def test_documents_keep_all_but_their_text(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    srt = "1\r\n00:00:01,000 --> 00:00:02,000\r\n<i>Open the file.</i>\r\n\r\n♪\r\n"
    (tmp_path / "film.srt").write_bytes(srt.encode())
    markdown = "# Open the file\n\n* `code` and\n  [the page](https://example.org)\n\n---\n"
    (tmp_path / "page.md").write_text(markdown)
    page = '<p\nclass="a">Open the\nfile.</p>\n<script>\nlet a = "the file";\n</script>\n'
    (tmp_path / "page.html").write_text(page)

    def translated(name: str) -> str:
        arguments = ["--input", str(tmp_path / name), "--output", str(tmp_path / "out")]
        assert main(["translate", str(bundle), *arguments]) == 0
        assert main(["translate", str(bundle), *arguments[:2]]) == 0
        written = (tmp_path / "out").read_bytes().decode()
        assert capfd.readouterr().out == written
        return written

    kept = re.escape(srt).replace("Open\\ the\\ file\\.", "(.+)")
    (text,) = re.fullmatch(kept, translated("film.srt")).groups()  # type: ignore[union-attr]
    assert text not in ("", "Open the file.")
    kept = "# (.+)\n\n\\* `code` (.+)\\[(.+)\\]\\(https://example.org\\)\n\n---\n"
    assert re.fullmatch(kept, translated("page.md").replace("\n  ", " "))
    kept = re.escape(page).replace("Open\\ the\\\nfile\\.", "([^<]+)")
    assert re.fullmatch(kept, translated("page.html"))
    for name, options, code in (
        ("film.pdf", [], 2),
        ("film.srt", ["--scores"], 2),
        ("latin.md", [], 1),
    ):
        (tmp_path / "latin.md").write_bytes(b"# A\nM\xfcnchen\n")
        source = str(tmp_path / name)
        assert main(["translate", str(bundle), "--input", source, *options]) == code
        assert re.fullmatch(f"dragoman: {re.escape(source)}.*: .*\n", capfd.readouterr().err)
