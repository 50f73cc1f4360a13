"""Energy beside the money: the sum of measured power, and what it does not hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.reporting.checks import BY_KEY
from dragoman.reporting.comparison import compare, totals
from dragoman.reporting.facts import Facts
from dragoman.reporting.reading import read_facts
from dragoman.reporting.render import Report
from dragoman.reporting.verdict import Evidence, Verdict
from dragoman.telemetry.events import event_file
from dragoman.telemetry.host import HourlyPrice
from example_events import HOST_SAMPLED, changed
from golden_gpu import gpu_sampled
from recorded_runs import Recorded
from well_said import assert_well_said

GPUS = "energy of GPUs"
PROCESSORS = "energy of processors, all programs"


def facts_of(folder: Path, *samples: tuple[int, object]) -> Facts:
    """A run of two hosts with these samples of ten seconds, each of a rank's host."""
    run = Recorded(extra=list(samples)).write(folder / "run")  # type: ignore[arg-type]
    return read_facts(run, price=HourlyPrice(amount=3.0, currency="USD"))


def cost(facts: Facts) -> tuple[Verdict, dict[str, Evidence]]:
    verdict = BY_KEY["cost"].of(facts)
    assert_well_said(verdict)
    return verdict, {row.name: row for row in verdict.evidence}


def test_the_energy_of_gpus_and_processors_is_power_times_time(tmp_path: Path) -> None:
    loud = changed(HOST_SAMPLED, processor_power_w=150.0)
    gpu = gpu_sampled(240.0)
    facts = facts_of(tmp_path, (0, gpu), (1, gpu), (0, loud), (1, loud))
    verdict, rows = cost(facts)
    seconds_s = facts.machines[0].seconds_s
    assert rows[GPUS].value == pytest.approx(2 * seconds_s * 240.0)
    assert rows[PROCESSORS].value == pytest.approx(2 * seconds_s * 150.0)
    whole = f"{2 * seconds_s * 390.0 / 3.6e6:.3f} kWh by GPUs and processors"
    assert verdict.answer == "measured"
    assert verdict.says.endswith(f" USD. It took {whole}.")
    report = Report.of(facts)
    for path in report.write(tmp_path / "report")[:2]:
        assert path.read_text().replace("\u00a0", " ").count(whole) >= 2, path
    comparison = compare([facts, replace(facts, name="other")])
    for compared in comparison.compared:
        assert dict(totals(compared, comparison.budgets))["energy"] == whole


def test_what_was_not_measured_is_not_guessed(tmp_path: Path) -> None:
    verdict, rows = cost(facts_of(tmp_path, (0, HOST_SAMPLED)))
    assert "kWh" not in verdict.says
    assert GPUS not in rows
    assert (rows[PROCESSORS].value, rows[PROCESSORS].text) == (None, "not measured")


def test_a_part_of_the_machines_is_said_to_be_one(tmp_path: Path) -> None:
    loud = changed(HOST_SAMPLED, processor_power_w=360.0)
    samples = [(0, gpu_sampled(180.0)), (1, gpu_sampled(None)), (0, loud), (1, HOST_SAMPLED)]
    facts = facts_of(tmp_path, *samples)
    verdict, rows = cost(facts)
    hours = facts.machines[0].seconds_s / 3600
    assert rows[GPUS].text == f"{hours * 0.18:.3f} kWh"
    assert rows[PROCESSORS].text == f"{hours * 0.36:.3f} kWh"
    assert (
        f"It took {hours * 0.54:.3f} kWh by 1 of 2 GPUs and the processors of 1 of 2 hosts."
        in verdict.says
    )


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (gpu_sampled(360.0), " kWh by GPUs; that of processors was not measured"),
        (changed(HOST_SAMPLED, processor_power_w=360.0), " kWh by processors"),
    ],
)
def test_energy_names_what_used_it(sample: object, text: str, tmp_path: Path) -> None:
    verdict, _ = cost(facts_of(tmp_path, (0, sample), (1, sample)))
    assert f"{text}." in verdict.says


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (gpu_sampled(360.0), "GPUs of 1 of 2 hosts; that of processors was not measured"),
        (changed(HOST_SAMPLED, processor_power_w=360.0), "the processors of 1 of 2 hosts"),
    ],
)
def test_a_host_without_any_sample_is_not_counted_as_measured(
    sample: object, text: str, tmp_path: Path
) -> None:
    verdict, _ = cost(facts_of(tmp_path, (0, sample)))
    assert verdict.says.endswith(f" kWh by {text}.")


def test_energy_of_a_part_of_the_run_is_not_that_of_the_whole(tmp_path: Path) -> None:
    run = Recorded(extra=[(rank, gpu_sampled(360.0)) for rank in (0, 1)]).write(tmp_path / "run")
    log = event_file(run / "events")
    lines = log.read_text().splitlines(keepends=True)
    kept = [line for line in lines if "gpu_sampled" not in line or json.loads(line)["step"] <= 4000]
    log.write_text("".join(kept))
    verdict, _ = cost(read_facts(run))
    assert "kWh by GPUs, in the part of the run that was sampled;" in verdict.says
