"""A run on the console: its events in words, and its progress in place at the bottom."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dragoman.base import units
from dragoman.base.printable import printable_line
from dragoman.base.terminal import Terminal
from dragoman.telemetry import events
from dragoman.telemetry.events import Event, EventListener, MetricScored, StrategyChosen, TestScored
from dragoman.telemetry.progress import Progress

_LOUD_KINDS = {TestScored.kind, events.RunFinished.kind}
_SCORES_OF_TEXTS = {MetricScored.kind, events.DirectionScored.kind}
_WITH_VALIDATION = {events.EndForecast.kind, events.SampleTranslation.kind, *_SCORES_OF_TEXTS}
_ROUTINE_EVERY_S: Final = 10.0
"""Progress, and validations, get a message each at most this often."""
_STATE_EVERY_S: Final = 600.0
"""What is known of a state, such as slow steps, is printed at most this often."""
_SEVERITY_STYLES = {"info": "cyan", "warning": "yellow", "error": "bold red"}
_METRICS = {"bleu": "BLEU", "chrf": "chrF"}
_ENDINGS = {
    "max_steps": "trained to its end",  # the last step, or the end of a budget
    "early_stop": "stopped early, no new best",
    "signal": "stopped by a signal, all is saved",
    "diverged": "diverged",
}

Values = Mapping[str, Any]


def clock_time(moment: float) -> str:
    """A moment as the time of day here, with the date if it is not today."""
    there, today = time.localtime(moment), time.localtime()
    same_day = (there.tm_year, there.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if same_day else "%H:%M on %a %d %b", there)


def time_left(progress: Progress) -> str:
    """The time that is left, and when the run will end."""
    left_s, finish_time = progress.left_s, progress.finish_time
    if left_s is None or finish_time is None:
        return "time left not known yet"
    return f"{units.DURATION.text(round(left_s))} left, done at {clock_time(finish_time)}"


def learning(interval: Values) -> list[tuple[str, str]]:
    """How well an interval went, as (name, value)."""
    return [
        ("loss", units.LOSS.optional_text(interval.get("train_loss"))),
        ("learning rate", units.LEARNING_RATE.optional_text(interval.get("learning_rate"))),
        ("gradient norm", units.NORM.optional_text(interval.get("gradient_norm"))),
    ]


def speed(progress: Progress) -> list[tuple[str, str]]:
    """The speed of an interval, as (name, value)."""
    return [
        ("source + target", units.TOKEN_RATE.optional_text(progress.tokens_per_s)),
        ("padding", units.SHARE.optional_text(progress.interval.get("padding_share"))),
        ("data wait", units.SHARE.optional_text(progress.data_wait_share)),
    ]


def progress_line(progress: Progress) -> Text:
    """The progress of a run as one line."""
    line = Text(f"step {how_far(progress)}")
    for label, value in learning(progress.interval) + speed(progress):
        line.append(f", {label} {value}")
    return line.append(f", {time_left(progress)}")


def how_far(progress: Progress) -> str:
    """The steps of a run, of all; with a budget, which the clock ends, the share of its time."""
    made = units.COUNT.text(progress.step)
    if progress.is_by_clock:
        return f"{made}, {units.SHARE.text(progress.share)} of the time for training"
    return f"{made} of {units.COUNT.text(progress.max_steps or progress.step)}"


def event_lines(event: Event, progress: Progress, *, width: int) -> list[Text]:
    """An event in words; no line for most kinds.

    progress: with this event already included.
    """
    if event.kind == events.Validated.kind:
        return [_validated(event, progress, width)]
    if event.kind == events.RunFinished.kind:
        return [_run_finished(event.payload, progress)]
    words = _WORDS.get(event.kind)
    return words(event.payload) if words else []


def _run_started(run: Values) -> list[Text]:
    resumed = run["resumed_from_step"]
    ranks = "1 rank" if run["world_size"] == 1 else f"{run['world_size']} ranks"
    numbers = [
        f"{units.COUNT.text(run['num_parameters'])} parameters",
        f"{units.COUNT.text(run['train_pairs'])} pairs",
        f"{ranks} on {run['device']}",
        str(run["precision"]),
    ]
    lines = [Text.assemble((str(run["run_name"]), "bold"), ("  " + ", ".join(numbers), ""))]
    if resumed is not None:
        lines.append(Text(f"going on from step {units.COUNT.text(resumed)}", style="cyan"))
    return lines


def _strategy_chosen(plan: Values) -> list[Text]:
    figures = [
        f"compute {units.STEP_TIME.text(plan['compute_s'])}",
        f"link {units.BYTE_RATE.text(plan['link_bytes_per_s'])} each way",
        f"planned {units.STEP_TIME.text(plan['planned_step_s'])}",
        f"{units.DURATION.text(round(plan['planned_run_s']))} in all",
    ]
    return [
        Text.assemble(("strategy ", "dim"), (str(plan["label"]), "bold"), f"  {plan['why']}"),
        Text("  " + ", ".join(figures), style="dim"),
    ]


def _mixture_planned(part: Values) -> list[Text]:
    pairs = units.COUNT.text(part["pairs"])
    drawn = f" of the pairs: each of {pairs} {part['draws_per_pair']:.3g} times an epoch"
    return [
        Text.assemble(
            (f"from step {units.COUNT.text(part['first_step'])}  ", "dim"),
            (printable_line(str(part["entry"])), "bold"),
            f"  {units.SHARE.text(part['share'])}",
            (drawn, "dim"),
        )
    ]


def _validated(event: Event, progress: Progress, width: int) -> Text:
    validation, step = event.payload, event.step or 0
    last = units.COUNT.text(progress.max_steps or step)
    line = Text(f"step {units.COUNT.text(step):>{len(last)}}   ")
    _measured(line, "dev loss", units.LOSS.optional_text(validation["dev_loss"]))
    if width >= 100:
        _measured(line, "perplexity", units.SCORE.optional_text(validation["dev_perplexity"]))
    _scored(line, validation, "bleu")
    if validation["chrf"] is not None:
        _measured(line, "chrF", units.SCORE.text(validation["chrf"]))
    best = progress.bleu if validation["bleu"] is not None else progress.dev_loss
    if step and best is not None and best.step == step:
        line.append("best", style="green")
    return line


def _measured(line: Text, label: str, value: str, doubt: str = "") -> None:
    line.append(f"{label} ", style="dim")
    line.append(value, style="bold")
    line.append(f"{doubt}   ", style="dim")


def _scored(line: Text, scores: Values, metric: str) -> None:
    """A score with its interval, if it was measured."""
    if (value := scores[metric]) is not None:
        doubt = units.SCORE.interval(scores[f"{metric}_low"], scores[f"{metric}_high"])
        _measured(line, _METRICS[metric], units.SCORE.text(value), doubt)


def _test_scored(scores: Values) -> list[Text]:
    line = Text(f"{scores['name']}   ")
    for metric in _METRICS:
        _scored(line, scores, metric)
    line.append(f"{units.COUNT.text(scores['pairs'])} pairs", style="dim")
    signatures = (scores["bleu_signature"], scores["chrf_signature"])
    return [line, *(Text(text, style="dim") for text in signatures)]


def _metric_scored(score: Values) -> list[Text]:
    line, doubt = Text(f"{score['text']}   "), units.SCORE.interval(score["low"], score["high"])
    _measured(line, score["metric"], units.SCORE.text(score["value"]), doubt)
    return [line.append(score["signature"], style="dim")]


def _direction_scored(scores: Values) -> list[Text]:
    direction = printable_line(f"{scores['source']} to {scores['target']}")
    line = Text(f"  {direction}   ")
    if scores["loss"] is not None:
        _measured(line, "dev loss", units.LOSS.text(scores["loss"]))
    for metric in _METRICS:
        _scored(line, scores, metric)
    line.append(f"{units.COUNT.text(scores['pairs'])} pairs", style="dim")
    if scores["zero_shot"]:
        line.append("  zero-shot: no training text, not in the mean", style="dim")
    return [line]


def _checkpoint(written: Values) -> list[Text]:
    name = str(written["path"]).rstrip("/").rsplit("/", 1)[-1]
    size, seconds = (
        units.SIZE.text(written["size_bytes"]),
        units.DURATION.text(written["seconds_s"]),
    )
    return [Text(f"saved {name}, {size} in {seconds}", style="dim")]


def _alert(alert: Values) -> list[Text]:
    style = _SEVERITY_STYLES.get(alert["severity"], "")
    return [
        Text.assemble((f"{alert['severity']}: ", style), f"{alert['cause']}; {alert['remedy']}")
    ]


def _corpus_stage(stage: Values) -> list[Text]:
    kept = f"{units.COUNT.text(stage['pairs_out'])} of {units.COUNT.text(stage['pairs_in'])} pairs"
    took = units.DURATION.text(stage["seconds_s"])
    return [Text(f"{stage['split']:<6} {stage['stage']:<12} {kept:>28}  {took:>12}", style="dim")]


def _end_forecast(forecast: Values) -> list[Text]:
    doubt = units.LOSS.interval(forecast["low"], forecast["high"])
    line = Text("forecast of the end: dev loss ", style="dim")
    return [line.append(units.LOSS.text(forecast["expected"]), style="bold").append(doubt)]


def _run_finished(end: Values, progress: Progress) -> Text:
    how = str(_ENDINGS.get(end["reason"], end["reason"]))
    where = f" (step {units.COUNT.text(progress.step)}, {units.DURATION.text(end['wall_s'])})"
    line = Text.assemble((how, "bold"), where)
    for name, key, quantity in (
        ("dev loss", "best_dev_loss", units.LOSS),
        ("BLEU", "best_bleu", units.SCORE),
    ):
        if end[key]:  # a BLEU of 0 is never the best
            at = units.COUNT.text(end[f"{key}_step"])
            line.append(f"; best {name} {quantity.text(end[key])} at step {at}")
    return line


_WORDS: dict[str, Callable[[Values], list[Text]]] = {
    events.RunStarted.kind: _run_started,
    StrategyChosen.kind: _strategy_chosen,
    events.MixturePlanned.kind: _mixture_planned,
    TestScored.kind: _test_scored,
    MetricScored.kind: _metric_scored,
    events.DirectionScored.kind: _direction_scored,
    events.CheckpointWritten.kind: _checkpoint,
    events.EndForecast.kind: _end_forecast,
    events.Alert.kind: _alert,
    events.CorpusStage.kind: _corpus_stage,
}


class StandingAlerts:
    """The last alert about each state of a run: it replaces those before."""

    def __init__(self) -> None:
        self._last: dict[str, Event] = {}

    def see(self, event: Event) -> bool:
        """Read an event; returns whether it is an alert about a state."""
        about = event.payload.get("about") if event.kind == events.Alert.kind else None
        if not about:
            return False
        self._last[about] = event
        return True

    def lines(self) -> list[Text]:
        """The warnings and errors that stand now."""
        return [
            line
            for event in self._last.values()
            if event.payload["severity"] != "info"
            for line in _alert(event.payload)
        ]


class ConsoleSink(EventListener):
    """Shows a run: its progress in place at the bottom, events as lines above.

    If the console is not a terminal, progress is a line every ten seconds. Validations that come
    more often than that are left out. A state that lasts or comes again, such as slow steps, is
    shown beside the progress; elsewhere it is a line every ten minutes. quiet: only warnings,
    errors, BLEU and chrF of test sets, and the end.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self._console = console or Terminal(outlives_reader=True, highlight=False)
        self._quiet = quiet
        self._progress = Progress()
        self._live: Live | None = None
        self._standing = StandingAlerts()
        self._untold: dict[str, Event] = {}
        """The last alert about each state that was not printed yet."""
        self._told: dict[str, float] = {}
        """When each state was last printed."""
        self._routine_told = self._validation_told = -math.inf
        self._shows_validation = True
        self._sampled_step: int | None = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        self._progress.see(event)
        if self._standing.see(event):
            self._untold[event.payload["about"]] = event
        self._tell_states(event.time)
        loud = (
            event.kind in _LOUD_KINDS
            or (event.kind == events.Alert.kind and event.payload["severity"] != "info")
            or (event.kind in _SCORES_OF_TEXTS and event.payload["text"] != "valid")
        )
        if self._quiet and not loud:
            return
        if event.kind == events.RunFinished.kind:
            self.close()
        if event.kind == events.TrainInterval.kind and self._console.is_terminal:
            self._draw_progress()
        elif self._is_shown(event):
            self._show(event)

    def close(self) -> None:
        """Remove the progress; the lines stay, and states that were not printed yet are."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._tell_states(math.inf)

    def _is_shown(self, event: Event) -> bool:
        """Whether an event gets a message of its own: news do, routine does now and then."""
        if event.payload.get("about"):
            return False
        if event.kind == events.Validated.kind:
            self._shows_validation = event.time - self._validation_told >= _ROUTINE_EVERY_S
            if self._shows_validation:
                self._validation_told = self._routine_told = event.time
            return self._shows_validation
        if event.kind in _WITH_VALIDATION and event.payload.get("text", "valid") == "valid":
            return self._shows_validation
        if event.kind in (events.TrainInterval.kind, events.CheckpointWritten.kind):
            # Beside the progress in place, a save is no news.
            every_s = _STATE_EVERY_S if self._live is not None else _ROUTINE_EVERY_S
            is_due = event.time - self._routine_told >= every_s
            if is_due:
                self._routine_told = event.time
            return is_due
        return True

    def _show(self, event: Event) -> None:
        if event.kind == events.TrainInterval.kind:
            self._print(progress_line(self._progress))
        elif event.kind == events.SampleTranslation.kind:
            self._show_sample(event)
        for line in event_lines(event, self._progress, width=self._console.width):
            self._print(line)

    def _tell_states(self, now: float) -> None:
        """Print what is due of states that are not shown beside the progress."""
        if self._live is not None:
            return
        for about, event in list(self._untold.items()):
            is_good_news = event.payload["severity"] == "info"
            if is_good_news and (self._quiet or about not in self._told):
                del self._untold[about]
            elif now - self._told.get(about, -math.inf) >= _STATE_EVERY_S:
                self._told[about] = now
                del self._untold[about]
                for line in _alert(event.payload):
                    self._print(line)

    def _draw_progress(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        view = progress_view(self._progress, self._standing.lines())
        self._live.update(view, refresh=True)

    def _show_sample(self, event: Event) -> None:
        """Show the first sample of each validation; the run directory keeps the others."""
        if event.step != self._sampled_step:
            self._sampled_step = event.step
            for label, key in (("source", "source"), ("translation", "hypothesis")):
                text = " ".join(event.payload[key].split()) or "(empty)"
                self._print(Text(f"  {label:<11} {text}", style="dim"))

    def _print(self, line: Text) -> None:
        if not self._console.is_terminal:
            self._console.out(line.plain, highlight=False)
        elif line.plain.startswith("  "):
            self._console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(line)


def progress_view(progress: Progress, alerts: Sequence[Text] = ()) -> RenderableType:
    """The progress of a run in four lines: how far, how well, how fast, how long.

    alerts: lines that follow.
    """
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(no_wrap=True, max_width=24)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True)
    head.add_row(
        Text(str(progress.run.get("run_name", "")), style="bold"),
        ProgressBar(total=1.0, completed=progress.share, complete_style="cyan"),
        Text(steps_done(progress)),
    )
    rows = (learning(progress.interval), speed(progress))
    return Group("", head, *map(_joined, rows), Text(time_left(progress), style="dim"), *alerts)


def steps_done(progress: Progress) -> str:
    """How far a training is: by its budget, or by its steps if nothing else sets their number."""
    if progress.is_by_clock:
        return f"{units.SHARE.text(progress.share)} of the time, step {progress.step:,}"
    return f"{how_far(progress)} steps"


def _joined(parts: Iterable[tuple[str, str]]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for label, value in parts:
        text.append(f"{label} ", style="dim").append(f"{value}   ")
    return text
