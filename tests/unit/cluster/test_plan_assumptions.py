"""Everything that enters a planned figure is printed with the plan, and says where it is from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from dragoman.cluster import interruptions, plan, plan_request, rates, step_time, strategies
from dragoman.cluster.plan import Plan
from dragoman.cluster.plan_assumptions import assumptions
from dragoman.cluster.plan_request import PlanRequest, plan_recipe
from dragoman.cluster.plan_view import plan_as_json, print_plan
from dragoman.distributed import wire
from dragoman.recipe import estimate
from dragoman.recipe import recipe as recipe_module
from dragoman.recipe.recipe import load_recipe

PLAN_MD = Path(__file__).resolve().parents[3] / "docs/how-to/plan.md"
PRINTED = {
    "NOMINAL_SHARE": "94.5% of it is payload (measured: Gloo between two hosts",
    "LATENCY_S": "300 µs, and twice around all hosts for each part: a ring, no tree (assumed: one",
    "LAYER_S": "no shorter than 24.9 ms: kernels have to be started (assumed: 2.1 ms a layer",
    "INSIDES": "inside a host: nvlink4, 370 GB/s each way in an all-reduce (published: NCCL's",
    "GPU_INSIDES": "assumed: usual between h200",
    "DEVICES": "a rank: h200 at 255 TFLOP/s (assumed: as an H100",
    "BACKWARD_SHARE": "overlap: backward is 67% of the compute",
    "OVERLAP_SHARE": "90% of the last micro-batch's hides gradients on their way",
    "BUCKET_BYTES": "the last of the 26.21 MB parts excepted (assumed)",
    "FP32_BYTES": "bytes a weight: 4 plain and inside hosts",
    "BF16_BYTES": "2 in bf16",
    "FP4_BYTES": "0.52 in four bits",
    "POWERSGD_COMPUTE": "work of powersgd: 8% of the compute",
    "POWERSGD_RANK": "8% of the compute; rank 4",
    "POWERSGD_LEAST_GAIN": "by more than 2 x (measured: one processor (Zen 5); assumed for others",
    "DILOCO_WEIGHT_S": "work of diloco: 0.5 ns a weight from one all-reduce to the next (assumed",
    "GPU_SPREAD": "differ by 12.7% (standard deviation), and all wait for the slowest: 1.07 x",
    "MOST_FRAGMENTS": "F=16",
    "MOST_STEP_RATIO": "steps 1.08 x longer",
    "SYNC_EVERY": "diloco H=100",
    "MOST_SYNC_EVERY": "H=500",
    "DELAY_MARGIN": "links may be 1.15 x slower",
    "MOST_TARGET_TOKENS": "up to 402,000 target tokens",
    "LEAST_UPDATES": "at least 10,000 updates (published: Ott et al. 2018",
    "MOST_ACCUMULATION": "K=16",
    "NEARLY_FREE": "no more than 1.15 x is left alone",
    "TYPICAL_LENGTH": "25 in a sentence",
}
"""The words of a plan about each constant that enters its figures."""
ELSEWHERE = {
    "PCIE_INSIDES": "run/auto.py alone knows names of drivers",
    "FLOP_PER_BIG_TOKEN": "turns a published rate into FLOP/s; the plan names the rate",
    "FLOP_PER_BASE_TOKEN": "the same",
    "_FP32_SHARE": "in a device's source",
    "_A100_SHARE": "in a device's source",
    "_H100": "in a device's source",
    "_HALF": "DEVICES",
    "_FP32": "DEVICES",
    "WITHOUT_BF16": "in a device's source",
    "SHARED_MEMORY": "an inside like the others",
    "FIRST_BUCKET_BYTES": "shifts the borders of the parts; PyTorch's, held by test_step_time.py",
    "DILOCO_SOURCES": "a source",
    "MOST_RANKS": "ends the what-ifs",
    "_WHAT_IF_PORTS": "in the names of the what-ifs",
    "_FEW_NAMES": "shortens a list",
    "_RANGE_BYTES_PER_S": "refuses slips",
    "_RANGE_STEP_S": "refuses slips",
    "_LONGEST_S": "above it a run is said not to end: test_interruptions.py",
    "UNKNOWN": "no figure",
    "SAVE_BYTES_PER_S": "enters if hosts may be taken away: test_interruptions.py",
    "RESTART_S": "the same",
    "SAVED_BYTES": "the same",
    "ONE_WAY": "names the hosts of which one direction is slower; the rates are printed",
}
"""Constants that are no figure of their own, and why."""
MARKS = ("measured", "published", "calculated", "given", "assumed")


def planned(**asked: str) -> Plan:
    return plan_recipe(load_recipe("wmt16-ende-base"), PlanRequest(**asked))


def printed(made: Plan) -> str:
    console = Console(width=1000, force_terminal=False)
    with console.capture() as capture:
        print_plan(made, console)
    return capture.get()


def constants(module: ModuleType) -> set[str]:
    """Names of a module's constants that are no text."""
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    names = re.findall(r"^(_?[A-Z][A-Z0-9_]+)(?::[^=\n]*)? = ", source, re.MULTILINE)
    return {name for name in names if not isinstance(getattr(module, name), str)}


def test_every_constant_that_enters_a_plan_is_accounted_for() -> None:
    modules = (rates, step_time, wire, strategies, plan, plan_request, interruptions)
    found = set().union(*map(constants, modules)) | {"TYPICAL_LENGTH"}
    assert estimate.TYPICAL_LENGTH == 25
    assert found == PRINTED.keys() | ELSEWHERE.keys()


def test_every_constant_that_enters_a_figure_is_printed_with_its_source() -> None:
    text = printed(planned(ranks="2+2", link="1Gbit", gpu="h200"))
    for name, words in PRINTED.items():
        assert words in text, name


@pytest.mark.parametrize(
    "asked",
    [
        {"ranks": "1", "gpu": "4090"},
        {"ranks": "1x8", "gpu": "a100"},
        {"ranks": "4+2", "gpu": "p100", "link": "10Gbit"},
        {"ranks": "2+2", "gpu": "cpu", "link": "12MB/s"},
        {"ranks": "2", "compute": "0.3s", "link": "1Gbit"},
        {"hosts": "a:2,b:2", "gpu": "h100", "link": "100Gbit", "gpu_link": "300GB/s"},
    ],
)
def test_every_source_names_its_kind(asked: dict[str, str]) -> None:
    made = planned(**asked)
    for one in assumptions(made):
        assert one.source.startswith(MARKS), one
        assert f"  {one.what}: {one.value} ({one.source})" in printed(made)
    said = json.loads(plan_as_json(made))["assumptions"]
    assert said == [one._asdict() for one in assumptions(made)]


@pytest.mark.parametrize("precision", ["fp32", "half"])
def test_every_device_names_the_kind_of_its_rate(precision: str) -> None:
    for one in rates.DEVICES[precision].values():
        assert one.source.startswith(MARKS), one
    assert rates.DEVICES["half"]["h200"].source.startswith("assumed")


def test_the_shortest_step_is_not_printed_as_measured() -> None:
    """Eight H100: it was "20 ms/step", of a measured rate, with a wait that was not in it."""
    text = printed(planned(ranks="1x8", gpu="h100"))
    assert "compute: no shorter than 24.90 ms/step (assumed" in text
    assert "wait for the slowest" not in text
    assert "decides for: these hosts, two more hosts, 32 ranks" in text
    far_from_it = printed(planned(ranks="1x8", gpu="a100"))
    assert "1.18 x the mean with 8" in printed(
        plan_recipe(load_recipe("wmt16-ende-big"), PlanRequest(ranks="1x8", gpu="a100"))
    )
    assert "compute: no shorter" not in printed(planned(ranks="1x2", gpu="a100"))
    assert "a step of a GPU: no shorter than 24.9 ms" in far_from_it


@pytest.mark.parametrize("name", ["wmt16-ende-base", "wmt16-ende-big"])
def test_hours_in_a_recipe_are_those_that_the_plan_says(name: str) -> None:
    """They said 70 minutes and nine hours, which nobody had measured."""
    text = (Path(recipe_module.__file__).parent / f"shipped/{name}.toml").read_text(
        encoding="utf-8"
    )
    (said,) = re.findall(r"computes ([\d.]+) h of training on one H200: a plan", text)
    made = plan_recipe(load_recipe(name), PlanRequest(ranks="1", gpu="h200", link="1Gbit"))
    assert f"{made.strategies[0].run_s / 3600:.1f}" == said


def test_micro_batches_each_start_their_kernels() -> None:
    recipe = load_recipe("wmt16-ende-base", ["data.accumulate=4"])
    made = plan_recipe(recipe, PlanRequest(ranks="1x8", gpu="h100", link="100Gbit"))
    assert made.cluster.least_s == pytest.approx(4 * 12 * rates.LAYER_S)


def test_the_page_about_plans_names_each_value_and_kind_of_gpu() -> None:
    page = PLAN_MD.read_text(encoding="utf-8").lower()
    for words in (
        "94.5%",
        "0.3 ms",
        "2.1 ms",
        "12.7%",
        "2/3",
        "90%",
        "8%",
        "18 ns",
        "0.5 ns",
        "25",
    ):
        assert words in page, words
    for words in ("402,000", "10,000", "1.15", "1.08", "k=16", "f=16", "h=500"):
        assert words in page, words
    for name in rates.DEVICES["half"]:
        assert name in page, name
    for inside in rates.INSIDES.values():
        assert f"{inside.bytes_per_s / 1e9:g}" in page, inside
