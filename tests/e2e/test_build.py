"""`dragoman build` against a mirror on this machine: killed at random, it ends with a model."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.cli import main
from dragoman.telemetry.events import read_events
from mirror import CorpusMirror, add_three_corpora, corpus_mirror
from processes import wait_until
from real_text import real_lines
from served import serving

PAIRS = 2000
BUDGET = "150s"
TINY = [
    *("model.d_model=48", "model.num_heads=4", "model.d_ffn=128"),
    *("model.encoder_layers=1", "model.decoder_layers=1", "data.batch_tokens=256"),
]
KILLS = 3


@pytest.fixture
def mirror() -> Iterator[CorpusMirror]:
    with corpus_mirror(pause_s=0.02) as mirror:
        add_three_corpora(mirror, PAIRS)
        yield mirror


def stage_of(place: Path, name: str) -> dict[str, Any]:
    """The record of a stage of a build."""
    found: dict[str, Any] = json.loads((place / "build.json").read_bytes())["stages"][name]
    return found


def words(mirror: CorpusMirror, *more: str) -> list[str]:
    sets = [word for one in TINY for word in ("--set", one)]
    return ["build", "en-de", "--index", mirror.index_url, "--ranks", "1", *sets, *more]


def start(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_three_times_it_ends_with_a_served_model(
    tmp_path: Path, mirror: CorpusMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1000)
    print("seed", seed)
    moments = random.Random(seed)
    command = words(mirror, "--budget", BUDGET)
    began = time.time()
    for kill in range(KILLS):
        process = start(tmp_path, command)
        before = sum(mirror.sent.values())
        if kill == 0:  # in the middle of a download
            wait_until(lambda before=before: sum(mirror.sent.values()) > before + 100_000)  # type: ignore[misc]
            time.sleep(moments.uniform(0.0, 1.0))
        else:
            time.sleep(moments.uniform(4.0, 30.0))
        assert process.poll() is None, process.communicate()[0]
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    process = start(tmp_path, command)
    said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    assert time.time() - began < 1.5 * 150
    place = tmp_path / "builds" / "en-de"
    # Received parts of files are kept: only bytes on their way at a kill are sent again.
    for path, content in mirror.files.items():
        on_its_way = mirror.sent[path] - len(content)
        assert on_its_way == 0 if path == "/mtdata.jsonl" else on_its_way <= KILLS * (1 << 16)
    assert mirror.gets["/other.tsv"] == 0
    (run,) = (place / "runs").glob("en-de-*")
    kinds = [event.kind for event in read_events(run / "events" / "log.jsonl")]
    assert kinds.count("run_finished") == 1
    assert kinds.count("test_scored") == 1
    for stage in ("fetch", "clean", "train"):
        record = stage_of(place, stage)
        assert record["ended"] > record["started"]
        assert stage in said
        assert stage in (place / "build.html").read_text()
    with serving(place / "model") as server:
        answer = server.ask("/translate", {"text": ["Click the button.", "Open the file."]})
        assert answer.status == 200
        assert len(answer.json["translations"]) == 2
    # Finished stages are not repeated.
    sent, steps = dict(mirror.sent), len(kinds)
    monkeypatch.chdir(tmp_path)
    built = dragoman.build("en-de")
    assert built.model.resolve() == run / "export" / "ctranslate2-int8"
    assert built.student is None
    assert built.report.is_file()
    assert [stage.name for stage in built.stages] == ["fetch", "clean", "train"]
    with pytest.raises(dragoman.ConfigError, match=r"^budget: .*build\.toml has another value"):
        dragoman.build("en-de", "6h")
    assert mirror.sent == sent
    assert len(list(read_events(run / "events" / "log.jsonl"))) == steps
    # A text that was changed since is noticed.
    text = place / "downloads" / "Local-help_tsv-1-eng-deu" / "text.en"
    text.write_text("other\n" + text.read_text())
    changed = start(tmp_path, ["build", "en-de"])
    said, _ = changed.communicate(timeout=120)
    assert changed.returncode == 1
    assert "Local-help_tsv-1-eng-deu: has changed since it was fetched; restore it" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_student_that_diverges_is_left_out(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        add_three_corpora(mirror, 1000)
        options = ("--student", "--budget", "4min")
        process = start(tmp_path, words(mirror, *options, "--dry-run"))
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        file = tmp_path / "builds" / "en-de" / "build.toml"
        planned, _, _ = file.read_text().partition("[[stage]]")
        for name, share in {"fetch": 5, "clean": 5, "train": 40, "translate": 20}.items():
            planned += f'[[stage]]\nname = "{name}"\nshare = {share}\n'
        wild = '"model.d_model=16", "model.num_heads=2", "schedule.peak_learning_rate=100"'
        planned += f'[[stage]]\nname = "student"\nshare = 30\nset = [{wild}]\n'
        file.write_text(planned)
        process = start(tmp_path, words(mirror, *options))
        said, _ = process.communicate(timeout=500)
    assert process.returncode == 0, said
    record = stage_of(file.parent, "student")
    assert "training diverged" in record["skipped"]
    assert (file.parent / "model").is_symlink()
    assert not (file.parent / "model-student").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_text_and_a_student_are_stages_as_well(tmp_path: Path) -> None:
    (tmp_path / "mono.de").write_text("\n".join(real_lines("train", "de")[9000:12000]) + "\n")
    shares = {
        **{"fetch": 1, "clean": 5, "train": 20, "reverse": 20},
        **{"back-translate": 6, "train-more": 20, "translate": 8, "student": 20},
    }
    with corpus_mirror() as mirror:
        add_three_corpora(mirror, 1000)
        options = ("--mono", "mono.de", "--student", "--budget", "9min")
        process = start(tmp_path, words(mirror, *options, "--dry-run"))
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert "no back-translation: the pairs are seen" in said
        file = tmp_path / "builds" / "en-de" / "build.toml"
        assert not (file.parent / "downloads").exists()
        planned, _, _ = file.read_text().partition("[[stage]]")
        for name, share in shares.items():
            planned += f'[[stage]]\nname = "{name}"\nshare = {share}\n'
            if name == "student":
                # With 256 cells the losses of batches differ so much that it looks like divergence.
                small = '"model.d_model=16", "model.num_heads=2", "model.d_ffn=32"'
                planned += f'set = [{small}, "data.batch_tokens=1024"]\n'
        file.write_text(planned)
        process = start(tmp_path, words(mirror, *options))
        record = file.parent / "build.json"

        def translates() -> bool:
            return record.exists() and '"back-translate"' in record.read_text()

        wait_until(lambda: translates() or process.poll() is not None, limit_s=500)
        time.sleep(random.uniform(0.0, 10.0))
        assert process.poll() is None, process.communicate()[0]
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        process = start(tmp_path, words(mirror, *options))
        said, _ = process.communicate(timeout=800)
    assert process.returncode == 0, said
    records = json.loads(record.read_bytes())["stages"]
    assert set(records) == set(shares)
    assert not [one["skipped"] for one in records.values() if one["skipped"]]
    assert records["back-translate"]["facts"]["pairs"] > 100
    assert len(list((file.parent / "runs").glob("*-*"))) == 4
    page = (file.parent / "build.html").read_text()
    assert "against the pairs alone" in page
    assert "against its teacher" in page
    more, student = (
        tomllib.loads((Path(records[stage]["facts"]["run"]) / "recipe.toml").read_text())
        for stage in ("train-more", "student")
    )
    *pairs, back_translated = more["corpus"]["train"]
    assert back_translated["tag"] == "<bt>"
    assert student["corpus"]["train"][0]["translated"] == "target"
    assert student["corpus"]["train"][1:] == pairs
    for model in ("model", "model-student"):
        with dragoman.Translator(file.parent / model) as translator:
            assert list(translator.translate(["Click the button."]))


@pytest.mark.timeout(300)
def test_few_pairs_and_much_time_are_a_reason_to_translate_more_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "".join(f"{line}\n" for line in real_lines("train", "de")[9000:13000]).encode()
    with corpus_mirror() as mirror:
        add_three_corpora(mirror, 300)
        mirror.add("Local-news-2-deu", "/news.de.txt", text, ext="txt", in_ext="txt")
        mirror.add("Local-few-1-deu", "/few.de.txt", text[:5000], ext="txt", in_ext="txt")
        command = [*words(mirror, "--budget", "2d", "--dry-run")]
        assert main(command) == 0
        assert not set(mirror.gets) - {"/mtdata.jsonl"}
    said = capsys.readouterr().out
    plan = tomllib.loads((tmp_path / "builds" / "en-de" / "build.toml").read_text())
    assert [one["id"] for one in plan["corpus"] if one["use"] == "mono"] == ["Local-news-2-deu"]
    assert [one["name"] for one in plan["stage"]] == [
        *("fetch", "clean", "train", "reverse", "back-translate", "train-more")
    ]
    assert sum(one["share"] for one in plan["stage"]) == pytest.approx(1)
    assert re.search(r"the pairs alone would be seen [\de+.]+ times", said)
    assert "the smallest that has as many lines as there are pairs" in said


def refused(words: list[str], capsys: pytest.CaptureFixture[str], *, code: int = 2) -> str:
    """The one line that a command says."""
    capsys.readouterr()
    assert main(words) == code
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert said.err.startswith("dragoman: ")
    return said.err.removeprefix("dragoman: ").rstrip("\n")


@pytest.mark.timeout(300)
def test_impossible_builds_are_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mirror: CorpusMirror,
) -> None:
    monkeypatch.chdir(tmp_path)
    index = ["--index", mirror.index_url]

    def say(*more: str, code: int = 2) -> str:
        return refused(["build", *more], capsys, code=code)

    assert say("en-de").startswith("budget: a build needs a budget")
    assert say("english", "--budget", "6h").startswith("pair: 'english' is not a pair of languages")
    assert say("en-en", "--budget", "6h").startswith("pair: source and target of 'en-en'")
    assert "leaves no time at all" in say("en-de", "--budget", "0min")
    assert "'6 ells' is not a budget" in say("en-de", "--budget", "6 ells")
    assert "no price turns this money" in say("en-de", "--budget", "5 USD")
    assert not any(tmp_path.iterdir())
    nobody = say("en-is", "--budget", "6h", *index, "--directory", "is")
    assert nobody.startswith("en-is: the index has no corpus of these languages; check their codes")
    assert not Path("is/build.json").exists()
    assert "'zzzz' is not a language code" in say("zzzz-de", "--budget", "6h", *index)
    missing = say("en-de", "--budget", "6h", "--index", "none.jsonl", code=1)
    assert missing.endswith("none.jsonl: cannot be read: No such file or directory; check its name")
    Path("bad.jsonl").write_text('{"did": "Local-a-1-eng-deu", "url": "file:///etc/passwd"}\n')
    bad = say("en-de", "--budget", "6h", "--index", "bad.jsonl", code=1)
    assert "bad.jsonl:1: is not an entry of mtdata's index" in bad
    large = {"url": "http://127.0.0.1:1/a", "ext": "zip", "meta": {"bytes": 9 * 10**9}}
    Path("large.jsonl").write_text(json.dumps({"did": "Local-a-1-eng-deu"} | large) + "\n")
    fits = say("en-de", "--budget", "2min", "--index", "large.jsonl")
    assert fits.startswith("budget 2 min 00 s: no corpus fits: 24 MB can be fetched and ")
    assert "the smallest, Local-a-1-eng-deu, has 9 GB and " in fits
    least = re.search(r"; give at least ([0-9hmins ]+), or choose by hand", fits)
    assert least
    enough = ["--budget", least[1].replace(" ", ""), "--index", "large.jsonl", "--dry-run"]
    assert main(["build", "en-de", *enough, "--directory", "enough"]) == 0
    capsys.readouterr()
    unread = {"did": "Local-a-1-eng-deu"} | large | {"ext": "hfds"}
    Path("unread.jsonl").write_text(json.dumps(unread) + "\n")
    none = say("en-de", "--budget", "2min", "--index", "unread.jsonl")
    assert none.startswith("en-de: no corpus of this pair is training text that can be read here")
    Path("away.jsonl").write_text(json.dumps({"did": "Local-a-1-eng-deu"} | large | {"meta": {}}))
    away = say("en-de", "--budget", "2min", "--index", "away.jsonl", code=1)
    assert "no server of the 1 corpora says how large they are; check the network" in away
    ftp = say("en-de", "--budget", "2min", "--index", "ftp://127.0.0.1/a")
    assert ftp.startswith("index: ftp://127.0.0.1/a is not a web address")
    unknown = say("en-de", "--budget", "2min", *index, "--choose", "Local-b-1-eng-deu")
    assert unknown.startswith("choose Local-b-1-eng-deu: is not a corpus of these languages")
    for name, content, problem in (
        ("mono.de.gz", gzip.compress(b"Ein Satz.\n" * 99), ": is packed; unpack it: gzip -dc FILE"),
        ("mono.de", "Ein Satz.\nEin schöner Satz.\n".encode("latin1"), ", line 2: is not "),
    ):
        Path(name).write_bytes(content)
        said = say("en-de", "--budget", "2min", *index, "--mono", name, "--directory", "m", code=1)
        assert re.match(f"{name}{problem}", said), said
        assert not Path("m/build.toml").exists()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "mtdata.parser", None)
        assert 'pip install "dragoman[fetch]"' in say("en-de", "--budget", "6h", *index, code=1)
    process = start(tmp_path, words(mirror, "--budget", "10s", "--directory", "small"))
    said = process.communicate(timeout=200)[0].rstrip().splitlines()[-1]
    assert process.returncode == 2
    problem = "the budget leaves too little time to train a useful model"
    remedy = 'run it again with budget = "[0-9 mins]+" there, or more'
    line = Path("small/build.toml").read_text().splitlines().index('budget = "10s"') + 1
    assert re.fullmatch(rf"dragoman: small/build.toml:{line}: {problem}; {remedy}: .*", said)
    assert json.loads(Path("small/build.json").read_bytes())["started"] is None


@pytest.mark.timeout(300)
def test_a_plan_that_was_edited_wrongly_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mirror: CorpusMirror,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words(mirror, "--budget", "5min", "--dry-run")) == 0
    printed = capsys.readouterr().out
    assert "Local-help_tsv-1-eng-deu" in printed
    assert "MPL-2.0" in printed
    file = Path("builds/en-de/build.toml")
    written = file.read_text()
    line = written.splitlines().index('name = "train"') + 1

    def say(old: str, new: str) -> str:
        assert old in written
        file.write_text(written.replace(old, new))
        return refused(["build", "en-de"], capsys)

    said = say('name = "train"', 'name = "trian"')
    assert said.startswith(f"{file}:{line}: stage[2].name = 'trian'")
    assert said.endswith("did you mean train?")
    assert "unknown key stage[2].shore" in say("share = 0.85", "shore = 0.85")
    assert "greater than or equal to 0" in say("share = 0.85", "share = -1")
    assert "the stage train has no share" in say("share = 0.85", "share = 0")
    assert "no corpus has use" in say('use = "train"', 'use = "valid"')
    assert "not TOML" in say("share = 0.85", "share = ")
    said = say("share = 0.85", 'share = 0.85\nset = ["model.nonsense=1"]')
    assert said.startswith(f"{file}:{line + 2}: model.nonsense=1: unknown key")
    said = say('budget = "5min"', 'budget = "5 ells"')
    assert re.match(rf"{file}:\d+: '5 ells' is not a budget", said)
    file.write_text(written)
    said = refused(["build", "en-de", "--budget", "6h"], capsys)
    assert said.startswith(f"budget: {file} has another value; edit it there")
