"""`dragoman report` in the terminal: scores, samples, judgements, a line of each fact, paths."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from dragoman.cli import main
from dragoman.cli.report_view import print_answers
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.telemetry.events import event_file
from dragoman.telemetry.session import Session
from dragoman.watch.live import open_run
from small_run import small_run

RECORDED = Path(__file__).resolve().parents[1] / "golden/recorded"


def test_the_terminal_shows_samples_answers_findings_and_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report"
    assert main(["report", str(RECORDED / "overfitting"), "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert "test BLEU" in " ".join(shown.split())
    assert shown.count("\ntranslation ") == 3
    order = [shown.index(f"{number}. ") for number in (1, 2, 3, 4, 5, 12, 6, 7, 8, 9, 10, 11)]
    assert order == sorted(order), "facts come last"
    assert "Is it overfitting? YES" in shown
    assert "-> Raise train.validate_every_steps" in shown
    assert shown.splitlines()[-3:] == [
        str(output / f"report.{ending}") for ending in ("html", "md", "json")
    ]


def test_the_terminal_shows_alerts_with_remedies_and_faults_of_the_evidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(RECORDED / "two_hosts_cable_out", tmp_path / "run")
    with event_file(run / "events").open("a") as log:
        log.write('{"v": 2, "kind": "train_inter')
    facts = read_facts(run)
    told = [alert for alert in facts.alerts if alert.severity != "info"]
    assert main(["report", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert len(told) == 2
    assert all(alert.cause in shown and alert.remedy in shown for alert in told)
    assert "damaged lines of events were skipped" in shown
    assert "nothing needs to be done" not in shown


def test_what_ended_a_run_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is an alert of the run, and the error of its command."""
    run = shutil.copytree(RECORDED / "diverged", tmp_path / "run")
    (alert,) = read_facts(run).alerts
    ended = Session(pid=1, machine="vm", started=0, state="failed", problem=alert.text)
    (run / "session.json").write_text(ended.model_dump_json())
    with closing(open_run(run)) as live:
        live.look()
        assert live.now().alerts.count(alert.text) == 1
    assert main(["report", str(run)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(alert.cause) == 1
    assert "Start again, with a lower peak rate." in shown, "there is no checkpoint"


@pytest.mark.parametrize("width", [80, 120])
def test_answers_fit_a_terminal_and_are_indented(
    width: int,
) -> None:
    file = io.StringIO()
    terminal = Console(file=file, width=width, force_terminal=True, color_system=None)
    facts = read_facts(RECORDED / "overfitting")
    print_answers(Report.of(facts), terminal)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert len(lines) <= 62
    answers = lines[next(n for n, line in enumerate(lines) if " 1. " in line) :]
    starts = re.compile(r" *(\d+\.|->|-) | {3,}\S|Findings$|Alerts |Facts, |$")
    assert all(starts.match(line) for line in answers), answers


def test_the_page_shows_judgements_before_facts_and_folds_limits(tmp_path: Path) -> None:
    run = RECORDED / "overfitting"
    assert main(["report", str(run), "--output", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    headings = ["Translations", "Answers", "Facts", "Health"]
    places = [page.index(f"<h2>{heading}</h2>") for heading in headings]
    assert places == sorted(places)
    assert page.index("12. What did it cost?") < page.index("6. What does the learning rate do?")
    assert "checks found nothing" in page


def test_json_alone_is_printed_without_the_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(small_run().path), "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")


def test_the_page_says_what_to_do_beside_each_answer_and_folds_alerts(tmp_path: Path) -> None:
    facts = read_facts(RECORDED / "overfitting")
    report = Report.of(facts)
    report.write(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    answers = page[page.index("<h2>Answers</h2>") : page.index("<h2>Facts</h2>")]
    remedies = [one.remedy for _, one in report.judgements if one.remedy]
    assert len(remedies) >= 3
    assert answers.count("class='remedy'") == len(remedies)
    (evidence,) = re.findall("<h2>About the evidence</h2>(.*?)</section>", page)
    assert evidence.startswith("<details>")
    assert evidence.count("<li>") == len(facts.alerts) > 0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(RECORDED / "two_hosts_link_falls", tmp_path / "run")


def test_inspect_knows_the_files_of_a_report(run: Path) -> None:
    commands = (["report", str(run)], ["inspect", str(run)])
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "dragoman", *command],
            capture_output=True,
            text=True,
            check=True,
        )
    assert "report.json" in done.stdout
    assert "not written by dragoman" not in done.stdout


@pytest.mark.system
def test_json_on_standard_output_is_the_report(run: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "dragoman", "report", "--json", str(run)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert not (run / "report").exists(), "nothing is written if nobody asked for files"
    printed = json.loads(done.stdout)
    report = Report.of(read_facts(run))
    page = report.write(tmp_path / "report")[0].read_text(encoding="utf-8")
    assert [one["key"] for one in printed["answers"]] == [one.key for one in report.answers]
    assert {one["key"]: one["says"] for one in printed["ailments"]} == {
        one.key: one.says for one in report.ailments
    }
    assert printed["alerts"]
    assert all(f"id='{one['key']}'" in page for one in printed["answers"])
    call += ["--output", str(tmp_path / "files")]
    subprocess.run(call, capture_output=True, check=True)
    assert (tmp_path / "files" / "report.html").is_file()
    both = subprocess.run(
        [*call[:4], str(run), str(run), "--json"], capture_output=True, check=True
    )
    assert len(json.loads(both.stdout)["runs"]) == 2
