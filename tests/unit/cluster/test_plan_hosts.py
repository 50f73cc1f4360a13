"""`plan --hosts` where the file says what computes, and the command line something else; `auto`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cluster.links import Layout, Link
from dragoman.cluster.plan import choose_for_all_ranks
from dragoman.cluster.plan_command import PlanRequest, plan_recipe
from dragoman.cluster.step_time import DILOCO_WEIGHT_S
from dragoman.cluster.strategies import Cluster, sync
from dragoman.cluster.workload import workload_of
from dragoman.errors import ConfigError
from dragoman.recipe import load_recipe


def test_hosts_of_processors_are_planned_with_the_gpus_that_are_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would GPUs in them be worth? Not with what diloco takes of a processor."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "hosts.toml"
    file.write_text("".join(f'[[host]]\naddress = "10.0.0.{n}"\nslots = 1\n' for n in (1, 2)))
    recipe = load_recipe("wmt16-ende-base")
    asked = {
        given: plan_recipe(recipe, PlanRequest(hosts=str(file), link="100Mbit", **{name: given}))
        for name, given in (("gpu", "v100"), ("gpu", "cpu"), ("compute", "0.25s"))
    }
    weight_s = {given: made.cluster.diloco_weight_s for given, made in asked.items()}
    on_cpu, on_gpu = DILOCO_WEIGHT_S["cpu"], DILOCO_WEIGHT_S["gpu"]
    assert weight_s == {"v100": on_gpu, "cpu": on_cpu, "0.25s": on_cpu}
    alike = plan_recipe(recipe, PlanRequest(ranks="2", link="100Mbit", gpu="v100"))
    assert asked["v100"].choice.prediction == alike.choice.prediction


@pytest.mark.parametrize("given", [{}, {"compute": "0.25s"}])
def test_hosts_that_cannot_train_together_are_not_planned(
    given: dict[str, str], tmp_path: Path
) -> None:
    """A GPU was called a CPU that is sixty times as fast as both together."""
    file = tmp_path / "hosts.toml"
    gpu, cpu = 'address = "10.0.0.1"\ngpus = 1\ngpu = "v100"', 'address = "10.0.0.2"\nslots = 2'
    file.write_text(f"[[host]]\n{gpu}\n[[host]]\n{cpu}\n")
    with pytest.raises(ConfigError, match="nothing sums between them") as error:
        plan_recipe(load_recipe("demo"), PlanRequest(hosts=str(file), link="1Gbit", **given))
    assert "10.0.0.1 and 10.0.0.2" in str(error.value)


@given(megabits=st.floats(10, 1e5), compute_s=st.floats(1e-3, 10), weight_ns=st.floats(0.1, 100))
def test_auto_takes_nothing_that_is_slower_than_sync(
    megabits: float, compute_s: float, weight_ns: float
) -> None:
    """Small batches on a processor: what diloco does with the weights was more than it saved."""
    workload = workload_of(load_recipe("demo", ["data.batch_tokens=512"]))
    link = Link.nominal(megabits * 1e6)
    cluster = Cluster(Layout((1, 1)), link, diloco_weight_s=weight_ns * 1e-9)
    choice = choose_for_all_ranks(cluster, workload, compute_s)
    assert choice.prediction.step_s <= sync(cluster, workload, compute_s).step_s
    assert choice.why
