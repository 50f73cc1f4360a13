"""The log of OpenSeq2Seq: a short one written here, and the real one if it is available."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import openseq2seq
from dragoman.base.errors import ConfigError
from dragoman.cli import main
from dragoman.reporting.checks import examine, judge
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.reporting.verdict import Verdict
from dragoman.telemetry.host import HourlyPrice
from openseq2seq import import_log, read_log
from well_said import assert_well_said

HEAD = """\
[alpha:00292] WARNING: local probe returned unhandled shell:unknown assuming bash
*** Using horovod
*** Starting training from scratch
*** Training config:
{'batch_size_per_gpu': 64,
 'data_layer': <class 'open_seq2seq.data.text2text.text2text.ParallelTextDataLayer'>,
 'data_layer_params': {'delimiter': ' ',
                       'max_length': 10,
                       'source_file': '/data/train.en.tok',
                       'target_file': '/data/train.de.tok'},
 'dtype': 'mixed',
 'eval_steps': 201,
 'lr_policy': <function transformer_policy at 0x7f1c92c71ae8>,
 'lr_policy_params': {'d_model': 512,
                      'learning_rate': 2.0,
                      'warmup_steps': 400},
 'max_steps': 1000,
 'save_checkpoint_steps': 998}
*** Evaluation config:
{'batch_size_per_gpu': 16,
 'data_layer_params': {'max_length': 256, 'source_file': '/data/dev.en.tok'}}
*** Total trainable parameters: 1000000
name: Tesla V100-PCIE-16GB major: 7 minor: 0 memoryClockRate(GHz): 1.38
2020-06-26 15:36:42.835076: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1432] Found device 0
alpha:298:374 [0] NCCL INFO NET : Using interface eth0:10.0.0.1<0>
alpha:298:374 [0] NCCL INFO rank 0 nranks 2
beta:279:352 [0] NCCL INFO rank 1 nranks 2
*** Running evaluation on a validation set:
***     *****EVAL Source[0]:     <s> ▁A ▁small ▁test . </s>
***     Validation loss: 9.4000 
***     Eval BLUE score: 0.9000
"""


def _line(step: int, loss: float, step_s: str, sides: tuple[int, int]) -> str:
    source, target = (" ".join(["▁x"] * count) for count in sides)
    return (
        f"*** Global step {step}: ***     Train loss: {loss:.4f} \n"
        f"time per step = 0:00:{step_s}\n"
        f"***     Train Source[0]:     {source}\n"
        f"***     Train Target[0]:     {target}\n"
        f"***     Train Prediction[0]: {target}\n"
    )


def _log() -> str:
    text = HEAD + _line(0, 9.4, "0.500", (4, 6))
    for step in range(100, 1001, 100):
        validated = step in (300, 500, 700, 900)
        text += _line(step, 5 - step / 500, "1.300" if validated else "1.000", (10, 6))
        if step in (200, 400, 600, 800):
            text += (
                "*** Running evaluation on a validation set:\n"
                f"***     Validation loss: {4 - step / 400:.4f} \n"
                f"***     Eval BLUE score: {step / 4000:.4f}\n"
            )
    return text


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "nohup.log.gz"
    path.write_bytes(gzip.compress(_log().encode()))
    return path


def _answers(directory: Path) -> dict[str, Verdict]:
    found = {one.key: one for one in judge(read_facts(directory))}
    for verdict in found.values():
        assert_well_said(verdict)
    return found


def _row(verdict: Verdict, name: str) -> str:
    return next(row.text for row in verdict.evidence if row.name == name)


def test_the_log_becomes_events_that_become_facts(log: Path, tmp_path: Path) -> None:
    facts = read_facts(import_log(log, tmp_path / "run"))
    assert facts.problems == ()
    assert facts.num_parameters == 1_000_000
    assert (facts.world_size, facts.hosts) == (2, ("alpha", "beta"))
    assert (facts.max_steps, facts.last_step) == (1000, 1000)
    assert facts.intervals["steps"].tolist() == [100] * 10
    assert facts.intervals["pairs"].tolist() == [2 * 64 * 100] * 10
    assert [(one.step, one.dev_loss) for one in facts.validations] == [
        (0, 9.4),
        (201, 3.5),
        (402, 3.0),
        (603, 2.5),
        (804, 2.0),
    ]


def test_validations_are_taken_out_of_the_time_of_a_step(log: Path, tmp_path: Path) -> None:
    facts = read_facts(import_log(log, tmp_path / "run"))
    assert facts.train_s == pytest.approx(1000)
    assert facts.wall_s == pytest.approx(1000 + 4 * 30)
    assert [one.loss_s for one in facts.validations[1:]] == pytest.approx([30] * 4)


def test_a_log_answers_some_questions_and_cannot_tell_others(log: Path, tmp_path: Path) -> None:
    answers = _answers(import_log(log, tmp_path / "run"))
    assert {key: one.answer for key, one in answers.items()} == {
        "duration": "measured",
        "trained": "no",
        "overfitting": "cannot tell",
        "processors": "cannot tell",
        "network": "cannot tell",
        "learning_rate": "measured",
        "corpus": "cannot tell",
        "checkpoint_files": "cannot tell",
        "checkpoint_size": "cannot tell",
        "step_time": "measured",
        "network_fit": "cannot tell",
        "cost": "cannot tell",
    }
    assert "teacher-forced" in _row(answers["trained"], "what OpenSeq2Seq calls Eval BLEU")
    assert "0.9000 at step 0" in _row(answers["trained"], "what OpenSeq2Seq calls Eval BLEU")
    # a ring over two ranks sends the 4 MB of fp32 gradients once in each direction
    assert "4 MB" in answers["network"].says
    assert "4 MB/s" in answers["network"].says
    assert _row(answers["step_time"], "pairs a step") == "128 = 2 ranks x 64"
    # of the sides 10 of 22 are as long as max_length, the mean lengths are 104/11 and 6
    assert _row(answers["step_time"], "share of padding in all cells").startswith("22.7%")
    assert not any(one.remedy for one in answers.values())


def test_a_log_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = _log()
    for cut in range(len(HEAD) + 80, len(text), 211):
        path = tmp_path / "nohup.out"
        path.write_text(text[:cut])
        assert read_log(path)[0].kind == "run_started"


def test_a_log_with_damaged_bytes_is_read_or_refused(tmp_path: Path) -> None:
    chance, whole, path = random.Random(5), _log().encode(), tmp_path / "nohup.out"
    for damage in range(40):
        changed = bytearray(whole)
        for _ in range(1 + 10 * damage):
            at = chance.randrange(len(changed))
            is_digit = 48 <= changed[at] <= 57
            changed[at] = chance.choice(b"0123456789.") if is_digit else chance.randrange(256)
        path.write_bytes(changed.replace(b"2020-06-26 15", b"2020-13-26 99"))
        try:
            run = import_log(path, tmp_path / str(damage))
        except ConfigError:
            continue
        assert Report.of(read_facts(run)).write(run / "report")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"nothing of it\n", "not a log of OpenSeq2Seq"), (b"\x1f\x8b\x08 torn", "cannot be read")],
)
def test_files_that_are_no_log_are_an_error(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / ("log.gz" if content[:1] == b"\x1f" else "log")
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_log(path)


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_log(tmp_path / "none.log")


def test_the_real_log(shared_data: Path, tmp_path: Path) -> None:
    log = shared_data / "reference-run" / "openseq2seq-nohup.log.gz"
    command = [sys.executable, openseq2seq.__file__, str(log), str(tmp_path / "run")]
    subprocess.run(command, check=True)
    assert main(["report", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report" / "report.html").is_file()
    answers = _answers(tmp_path / "run")
    assert "1.686 s/step" in answers["step_time"].says
    assert "8 h 51 min (8.85 h)" in answers["duration"].says  # its write-up said 7 h
    assert "2 * d_model^-0.5 * min(" in answers["learning_rate"].says
    assert "9.882e-4 at step 8,000" in answers["learning_rate"].says
    tool = _row(answers["trained"], "what OpenSeq2Seq calls Eval BLEU")
    assert tool.startswith("0.9565 at step 0")
    assert "teacher-forced" in tool
    assert answers["trained"].answer == "no"
    assert _row(answers["step_time"], "pairs a step") == "1,024 = 4 ranks x 256"
    padding = _row(answers["step_time"], "share of padding in all cells")
    assert padding.startswith("45.4%, estimated")
    assert _row(answers["step_time"], "source + target tokens a step").startswith("62,5")
    assert answers["processors"].answer == answers["network"].answer == "cannot tell"
    assert "365.3 MB" in answers["network"].says
    assert "216.7 MB/s" in answers["network"].says
    facts = read_facts(tmp_path / "run")
    assert facts.num_parameters == 60_880_896
    assert facts.hosts == ("v100x", "v100y")


def _import(text: str, tmp_path: Path) -> Path:
    log = tmp_path / "nohup.log"
    log.write_text(text)
    return import_log(log, tmp_path / "run")


@pytest.mark.parametrize("lost", ["NCCL INFO rank", "rank 1 nranks"])
def test_hosts_that_the_log_does_not_name_are_not_counted(lost: str, tmp_path: Path) -> None:
    text = "".join(line for line in _log().splitlines(keepends=True) if lost not in line)
    price = HourlyPrice(amount=2.0, currency="USD")
    facts = read_facts(_import(text, tmp_path), price=price)
    cost = {one.key: one for one in judge(facts)}["cost"]
    assert (facts.hosts, cost.answer) == ((), "cannot tell")
    assert _row(cost, "machines") == "not measured"


def test_a_log_that_was_started_again_goes_on_from_its_first_line(tmp_path: Path) -> None:
    text = _log() + HEAD
    for step in range(800, 1301, 100):
        text += _line(step, 5 - step / 500, "1.000", (10, 6))
    facts = read_facts(_import(text, tmp_path))
    assert facts.intervals["step"].tolist() == list(range(100, 1301, 100))
    assert (facts.intervals["steps"] == 100).all()
    assert (facts.intervals["interval_s"] > 0).all()
    assert (facts.repeated_steps, len(facts.lives)) == (200, 2)
    assert facts.train_s == pytest.approx(1500)


def test_a_log_that_goes_on_elsewhere_has_the_machines_of_each_start(tmp_path: Path) -> None:
    """Two hosts for 1,000 s and four validations of 30 s, then a third alone for 500 s, with
    twice the pairs of a rank."""
    third = HEAD.replace("alpha", "gamma").replace("nranks 2", "nranks 1")
    third = third.replace("'batch_size_per_gpu': 64", "'batch_size_per_gpu': 128")
    third = "".join(
        line for line in third.splitlines(keepends=True) if "NCCL INFO rank 1" not in line
    )
    text = _log() + third + _line(1000, 3, "1.000", (10, 6))
    for step in range(1100, 1501, 100):
        text += _line(step, 5 - step / 500, "1.000", (10, 6))
    facts = read_facts(_import(text, tmp_path), price=HourlyPrice(amount=3.6, currency="USD"))
    assert facts.hosts == ("alpha", "beta", "gamma")
    assert [life.machines for life in facts.lives] == [2, 1]
    assert facts.intervals["pairs"][-6:].tolist() == [2 * 64 * 100] + [128 * 100] * 5
    answers = {one.key: one for one in judge(facts)}
    assert f", {(2 * 1120 + 500) / 1000:.2f} USD." in answers["cost"].says
    pairs = [row.text for row in answers["step_time"].evidence if "pairs a step" in row.name]
    assert pairs == ["128 = 1 ranks x 128", "128 = 2 ranks x 64"]


def test_a_start_that_names_no_hosts_is_not_on_those_before(tmp_path: Path) -> None:
    third = "".join(line for line in HEAD.splitlines(keepends=True) if "NCCL INFO rank" not in line)
    text = _log() + third + _line(1000, 3, "1.000", (10, 6)) + _line(1100, 3, "1.000", (10, 6))
    facts = read_facts(_import(text, tmp_path), price=HourlyPrice(amount=3.6, currency="USD"))
    assert {one.key: one for one in judge(facts)}["cost"].answer == "cannot tell"


def test_losses_that_are_no_numbers_are_there_and_not_known(tmp_path: Path) -> None:
    text = _log() + "".join(_line(step, float("nan"), "1.000", (10, 6)) for step in (1100, 1200))
    facts = read_facts(_import(f"{text}***     Validation loss: nan\n", tmp_path))
    assert facts.last_step == 1200
    assert np.isnan(facts.intervals["train_loss"][-2:]).all()
    assert facts.validations[-1].dev_loss is None
    diverged = {one.key: one for one in examine(facts)}["diverged"]
    assert diverged.answer == "cannot tell"
