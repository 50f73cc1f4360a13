"""The console at several widths, and TensorBoard read back by itself."""

from __future__ import annotations

import io
import re
import resource
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dragoman.base.errors import MachineError
from dragoman.telemetry import sinks
from dragoman.telemetry.console import ConsoleSink
from dragoman.telemetry.events import (
    Alert,
    CheckpointWritten,
    CorpusStage,
    Event,
    MetricScored,
    MixturePlanned,
)
from dragoman.telemetry.sinks import TensorBoardSink
from example_events import (
    RUN_FINISHED,
    RUN_STARTED,
    SAMPLE,
    TEST_SCORED,
    TRAIN_INTERVAL,
    VALIDATED,
    event,
)

RUN = [
    event(CorpusStage(split="train", stage="filter", pairs_in=9, pairs_out=8, seconds_s=3.2)),
    event(RUN_STARTED, step=0),
    event(VALIDATED, step=0, bleu=0.0, dev_loss=9.4),
    event(TRAIN_INTERVAL, step=100, time=1.7e9 + 40),
    event(VALIDATED, step=100, time=1.7e9 + 44),
    event(SAMPLE, step=100),
    event(SAMPLE, step=100, source="The second sample."),
    event(
        CheckpointWritten(path="/x/step-0000100", reason="x", size_bytes=89 * 10**6, seconds_s=1)
    ),
    event(Alert(severity="info", cause="all is well", remedy="nothing to do")),
    event(Alert(severity="warning", cause="one GPU is slow", remedy="look at its clock")),
    event(TEST_SCORED, step=8000),
    event(RUN_FINISHED, step=8000),
]


def _shown(events: list[Event], *, terminal: bool, width: int = 80, quiet: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, no_color=True, height=24)
    sink = ConsoleSink(console, quiet=quiet)
    for one in events:
        sink(one)
    sink.close()
    return file.getvalue()


def test_the_mixture_of_each_stage_is_a_line_for_each_entry() -> None:
    part = MixturePlanned(
        first_step=2000, entry="web\x1b[2J", pairs=24_000, share=0.25, draws_per_pair=0.3021
    )
    (line,) = _shown([event(part, step=0)], terminal=False).splitlines()
    assert line.startswith("from step 2,000  web\ufffd[2J  25.0% of the pairs: ")
    assert line.endswith("each of 24,000 0.302 times an epoch")


def test_without_a_terminal_each_event_is_one_plain_line() -> None:
    lines = _shown(RUN, terminal=False).splitlines()
    assert "\x1b" not in "".join(lines)
    assert lines[1] == "demo  7,420,000 parameters, 29,000 pairs, 2 ranks on cpu, fp32"
    assert lines[2].startswith("step     0   dev loss 9.4000   BLEU 0.0")
    left = "step 100 of 8,000, loss 3.2145, learning rate 9.882e-4, gradient norm 0.512, "
    assert lines[3].startswith(
        left + "source + target 10,250 tokens/s, padding 3.1%, data wait 0.2%"
    )
    assert "52 min 40 s left, done at " in lines[3]
    assert lines[4].startswith("step   100   dev loss 2.1034   BLEU 23.4 (22.1 to 24.6)")
    assert lines[5].split() == ["source", *SAMPLE.source.split()]
    assert lines[6].split() == ["translation", *SAMPLE.hypothesis.split()]
    assert lines[8] == "warning: one GPU is slow; look at its clock"
    assert lines[-1].startswith("trained to its end (step 100, 23 h 46 min); best dev loss")


def _fast_run(seconds: int) -> list[Event]:
    """A run with an interval and a validation each second, and slow steps that come and go."""
    found: list[Event] = [event(RUN_STARTED, step=0)]
    for second in range(1, seconds + 1):
        moment = 1.7e9 + second
        found.append(event(TRAIN_INTERVAL, step=second, time=moment))
        found.append(event(VALIDATED, step=second, time=moment))
        found.append(event(SAMPLE, step=second, time=moment))
        for severity in ("warning", "info"):
            alert = Alert(
                severity=severity, cause=f"slow {second}", remedy="wait", about="slow steps"
            )
            found.append(event(alert, step=second, time=moment))
    return found


def test_progress_and_validations_are_a_message_every_ten_seconds() -> None:
    lines = _shown(_fast_run(60), terminal=False).splitlines()
    validated = [line for line in lines if "dev loss" in line]
    assert len(validated) == 6
    assert len([line for line in lines if line.startswith("  source")]) == len(validated)
    assert len([line for line in lines if "learning rate" in line]) <= 6
    intervals = [one for one in _fast_run(60) if one.kind == "train_interval"]
    assert len(_shown(intervals, terminal=False).splitlines()) == 6


def test_a_state_that_comes_and_goes_is_a_line_every_ten_minutes() -> None:
    lines = _shown(_fast_run(1500), terminal=False).splitlines()
    told = [line for line in lines if ": slow " in line]
    assert [line.split(";")[0] for line in told] == [
        "warning: slow 1",
        "info: slow 600",
        "info: slow 1200",
        "info: slow 1500",
    ]


def test_on_a_terminal_a_state_stands_beside_the_progress() -> None:
    run = [one for one in _fast_run(3) if one.payload.get("severity") != "info"]
    shown = _shown(run, terminal=True)
    for second in (1, 2):
        assert f"slow {second};" in shown
    end = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()[-1]
    assert end == "warning: slow 3; wait", "it stands at the end"
    over = _shown(_fast_run(3), terminal=True)
    assert "slow 3" not in over.splitlines()[-1]


def test_saves_are_no_news_beside_the_progress() -> None:
    saved = CheckpointWritten(path="/x/step-1", reason="x", size_bytes=10**6, seconds_s=1)
    run: list[Event] = [event(RUN_STARTED, step=0)]
    for number in range(1, 41):
        moment = 1.7e9 + 15 * number
        run.append(event(TRAIN_INTERVAL, step=number, time=moment))
        run.append(event(saved, step=number, time=moment + 11))
    assert _shown(run, terminal=False).count("saved step-1") == 40
    assert _shown(run, terminal=True).count("saved step-1") <= 2


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_on_a_terminal_nothing_is_wider_than_it(width: int) -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _shown(RUN, terminal=True, width=width))
    lines = [line for part in text.split("\n") for line in part.split("\r")]
    assert max(map(len, lines)) <= width
    for what in ("demo", "100 of 8,000 steps", "left, done at", "BLEU", "version:2.6.0"):
        assert what in text


def test_a_metric_of_your_own_is_shown(tmp_path: Path) -> None:
    metric = MetricScored(
        text="valid", metric="ter", value=41.25, low=40.0, high=42.5, signature="TER|version:2.6.0"
    )
    (line,) = _shown([event(metric, step=100)], terminal=False).splitlines()
    assert line == "valid   ter 41.2 (40.0 to 42.5)   TER|version:2.6.0"
    sink = TensorBoardSink(tmp_path)
    sink(event(metric, step=100))
    sink.close()
    curves = EventAccumulator(str(tmp_path)).Reload()
    assert [(point.step, point.value) for point in curves.Scalars("eval_ter")] == [(100, 41.25)]


def test_quiet_tells_a_metric_of_your_own_for_test_sets_alone() -> None:
    scores = [
        MetricScored(text=text, metric="ter", value=4.0, low=None, high=None, signature="TER")
        for text in ("valid", "test2016")
    ]
    (line,) = _shown([event(one) for one in scores], terminal=False, quiet=True).splitlines()
    assert line == "test2016   ter 4.0   TER"


def _write_on(sink: TensorBoardSink, event: Event) -> None:
    """A thread writes, and a later call raises its error."""
    for _ in range(1000):
        sink(event)
        time.sleep(0.01)


def test_a_full_disk_is_named_once_and_where_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("threading.excepthook", threading.__excepthook__)
    sinks._tell_errors_of_the_writer_once.cache_clear()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    sink = TensorBoardSink(tmp_path)
    event_of_run = next(one for one in RUN if one.kind == "train_interval")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        with pytest.raises(MachineError, match="disk is full"):
            _write_on(sink, event_of_run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        sinks._tell_errors_of_the_writer_once.cache_clear()
    assert capsys.readouterr().err == "", "the thread that writes prints nothing"


def test_validations_line_up_below_each_other() -> None:
    lines = _shown(RUN, terminal=False).splitlines()
    first, second = (line for line in lines if "dev loss" in line and line.startswith("step "))
    assert first.index("dev loss") == second.index("dev loss")


def test_quiet_tells_only_warnings_scores_and_the_end() -> None:
    lines = _shown(RUN, terminal=False, quiet=True).splitlines()
    words = [re.split(r"\W", line)[0] for line in lines]
    assert words == ["warning", "test2016", "BLEU", "chrF2", "trained"]


def test_missing_values_are_shown_as_not_measured() -> None:
    poor = [
        event(RUN_STARTED),
        event(TRAIN_INTERVAL, step=100, train_loss=float("nan"), interval_s=0.0),
        event(VALIDATED, step=100, dev_loss=float("nan"), bleu=None, chrf=None, bleu_low=None),
    ]
    text = _shown(poor, terminal=False)
    assert "loss not measured" in text
    assert "source + target not measured" in text
    assert "dev loss not measured" in text
    assert "BLEU" not in text


def test_a_resumed_run_says_so() -> None:
    assert "going on from step 1,200" in _shown(
        [event(RUN_STARTED, resumed_from_step=1200)], terminal=False
    )


def _read_back(directory: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_back_exactly_the_scalars(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for one in RUN:
        sink(one)
    sink.close()
    found = _read_back(tmp_path)
    values = {
        tag: [(s.step, s.value) for s in found.Scalars(tag)] for tag in found.Tags()["scalars"]
    }
    shares = {"data_wait", "forward", "backward", "sync", "optimizer"}
    assert {f"{phase}_share" for phase in shares} <= set(values)
    expected = {
        "train_loss": [(100, pytest.approx(3.2145))],
        "learning_rate": [(100, pytest.approx(9.882e-4))],
        "global_step_per_s": [(100, pytest.approx(2.5))],
        "global_gradient_norm": [(100, pytest.approx(0.512))],
        "tokens_per_s": [(100, pytest.approx(10_250))],
        "padding_share": [(100, pytest.approx(0.031))],
        "eval_loss": [(0, pytest.approx(9.4)), (100, pytest.approx(2.1034))],
        "eval_bleu": [(0, 0.0), (100, pytest.approx(23.41))],
        "eval_chrf": [(step, pytest.approx(VALIDATED.chrf)) for step in (0, 100)],
        "test2016_bleu": [(8000, pytest.approx(TEST_SCORED.bleu))],
        "test2016_chrf": [(8000, pytest.approx(TEST_SCORED.chrf))],
    }
    assert {tag: values[tag] for tag in expected} == expected
    assert found.Scalars("train_loss")[0].wall_time == pytest.approx(1.7e9 + 40)
    tags = [f"sample_translation/{number}/text_summary" for number in (0, 1)]
    assert found.Tags()["tensors"] == tags
    (text,) = found.Tensors(tags[0])[0].tensor_proto.string_val
    assert text.decode().split("\n\n")[1] == f"**hypothesis** {SAMPLE.hypothesis}"
    assert found.SummaryMetadata(tags[0]).plugin_data.plugin_name == "text"


def test_after_a_resume_tensorboard_forgets_the_steps_that_were_lost(tmp_path: Path) -> None:
    for resumed, steps in ((None, (100, 200, 300)), (100, (200, 300, 400))):
        sink = TensorBoardSink(tmp_path)
        sink(event(RUN_STARTED, resumed_from_step=resumed))
        for step in steps:
            sink(event(TRAIN_INTERVAL, step=step, train_loss=float(step + (resumed or 0))))
        sink.close()
        # Two files of one second differ by name only; TensorBoard reads them in order.
        for number, path in enumerate(sorted(tmp_path.glob("events.out.tfevents.*"))):
            path.rename(path.with_name(f"{path.name[:20]}{number:010d}{path.name[30:]}"))
    scalars = _read_back(tmp_path).Scalars("train_loss")
    assert [(s.step, s.value) for s in scalars] == [(100, 100), (200, 300), (300, 400), (400, 500)]
