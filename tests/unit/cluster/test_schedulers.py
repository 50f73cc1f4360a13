"""Generated files, as their own schedulers read them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath

import pytest
import yaml

from dragoman.base.errors import ConfigError
from dragoman.cli import main
from dragoman.cluster.schedulers import ScheduledJob, kubernetes, skypilot, slurm
from dragoman.recipe.recipe import load_recipe
from dragoman.run.run import default_place

OTHER_TEXT = "corpus.max_pieces=30"
AWKWARD = 'corpus.folder=/text/it\'s "here" $HOME $(HOME) $$ --at AT '


def job(**changes: object) -> ScheduledJob:
    values: dict[str, object] = {
        "name": "demo",
        "recipe": "/shared/my recipes/it's $(date) é😀.toml",
        "folder": PurePosixPath("/shared"),
        "nodes": 3,
        "gpus": 2,
        "ranks": 2,
        "hours": 30,
        "image": "team/dragoman:1",
        "overrides": [AWKWARD],
    }
    return ScheduledJob(**(values | changes))  # type: ignore[arg-type]


def arguments_seen(script: str, stand_in: str, **environment: str) -> list[str]:
    """The arguments of a program in a script that bash runs; others are shell functions."""
    functions = f"""
{stand_in}() {{ while [[ $1 != dragoman ]]; do shift; done; printf '%s\\0' "$@"; }}
scontrol() {{ printf 'first\\nsecond\\n'; }}
"""
    done = subprocess.run(
        ["bash", "-c", functions + script],
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/wrong", **environment},
    )
    return done.stdout.decode().split("\0")[:-1]


def as_a_pod_gets(word: str) -> str:
    """A word of a command as Kubernetes changes it: $(NAME) is filled in, $$ is a dollar."""
    variables = {"PET_MASTER_ADDR": "first", "PET_MASTER_PORT": "23456", "HOME": "/wrong"}
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda found: "$" if found[1] is None else variables.get(found[1], found[0]),
        word,
    )


def test_a_machine_has_ranks_on_its_gpus_or_slots(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["jobs", "slurm", "demo", "--nodes", "2", "--folder", "/shared"]
    assert main([*command, "--gpus", "2", "--slots", "2"]) == ConfigError.exit_code
    assert "gpus 2, slots 2: a machine trains on its GPUs or" in capsys.readouterr().err
    assert main(command) == 0
    assert "--ranks 1" in capsys.readouterr().out


def test_a_slurm_script_gives_every_machine_the_command_as_it_is() -> None:
    script = slurm(job())
    options = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in script.splitlines()
        if line.startswith("#SBATCH")
    )
    assert options["nodes"] == "3"
    assert options["ntasks-per-node"] == "1"
    assert options["gpus-per-node"] == "2"
    assert options["cpus-per-task"] == "8"
    assert "export SRUN_CPUS_PER_TASK=8\n" in script
    assert options["time"] == "30:00:00"
    seen = arguments_seen(script, "srun", SLURM_JOB_ID="123456", SLURM_JOB_NODELIST="n[1-2]")
    assert seen == job().command(at="first:23456")
    assert AWKWARD in seen


def test_a_train_job_is_one_by_kubeflows_own_models() -> None:
    # 400 modules, two seconds of every process that collects tests
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

    manifest = yaml.safe_load(kubernetes(job()))
    parsed = TrainerV1alpha1TrainJob.from_json(json.dumps(manifest))
    assert parsed is not None
    # Nothing was dropped as unknown, nothing misplaced.
    assert parsed.to_dict() == manifest
    trainer = manifest["spec"]["trainer"]
    at = "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)"
    assert [as_a_pod_gets(word) for word in trainer["command"]] == job().command(at="first:23456")
    assert at in trainer["command"]
    assert trainer["numNodes"] == 3
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 2}
    assert yaml.safe_load(kubernetes(job(gpus=0)))["spec"]["trainer"]["resourcesPerNode"] == {}


def test_jobs_of_one_name_with_other_text_do_not_share_shards() -> None:
    """The second would have prepared its own in place of those that the first trains on."""
    assert "--prepared" not in job().command(at="first:1")
    assert len({str(default_place(load_recipe("demo", said))) for said in ([], [OTHER_TEXT])}) == 2


@pytest.mark.parametrize(("nodes", "most"), [(2, 48), (11, 47)])
def test_the_names_of_pods_are_not_too_long_for_kubernetes(nodes: int, most: int) -> None:
    """`NAME-node-0-1-abcde` has up to 63 characters, or there is a TrainJob without any pod."""
    assert kubernetes(job(name="a" * most, nodes=nodes))
    with pytest.raises(ConfigError, match=rf"^name: .*; use up to {most} characters"):
        kubernetes(job(name="a" * (most + 1), nodes=nodes))


def test_a_skypilot_task_gives_every_machine_the_command_as_it_is() -> None:
    text = skypilot(job())
    task = yaml.safe_load(text)
    assert task["resources"]["accelerators"] == "V100:2"
    assert task["num_nodes"] == 3
    seen = arguments_seen(task["run"], "timeout", SKYPILOT_NODE_IPS="10.0.0.7\n10.0.0.8")
    assert seen == job().command(at="10.0.0.7:29400")


def test_a_skypilot_task_brings_its_own_python(tmp_path: Path) -> None:
    """Images have 3.10, or one that is the system's and refuses packages."""
    bin_, environment = tmp_path / ".local/bin", tmp_path / "dragoman/bin"
    for folder in (bin_, environment):
        folder.mkdir(parents=True)
    (bin_ / "uv").write_text('#!/bin/sh\necho "$@" >> "$HOME/asked"\n')
    (environment / "timeout").write_text("#!/bin/sh\necho this one\n")
    for program in (bin_ / "uv", environment / "timeout"):
        program.chmod(0o755)
    task = yaml.safe_load(skypilot(job()))
    done = subprocess.run(
        ["bash", "-ec", task["setup"] + task["run"]],
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SKYPILOT_NODE_IPS": "10.0.0.1"},
    )
    made, filled = (tmp_path / "asked").read_text().splitlines()
    assert made.startswith("venv ")
    assert made.endswith(str(environment.parent))
    version = tuple(map(int, made.split("--python ")[1].split()[0].split(".")))
    assert version >= (3, 11)
    assert filled.startswith(f"pip install --python {environment.parent} -c constraints.txt")
    assert done.stdout == b"this one\n"


def test_a_skypilot_task_is_one_by_its_own_schema() -> None:
    schemas = pytest.importorskip("sky.utils.schemas", reason="skypilot is not installed")
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    task = yaml.safe_load(skypilot(job()))
    validator(schemas.get_task_schema()).validate(task)


@pytest.mark.parametrize("recipe", ["my.toml", "/home/me/my.toml", "/shared/../etc/my.toml"])
def test_a_recipe_that_no_pod_has_is_refused(recipe: str) -> None:
    with pytest.raises(ConfigError, match=r"my\.toml: .*copy the recipe .*/shared/my\.toml"):
        kubernetes(job(recipe=recipe))
    assert kubernetes(job(recipe="/shared/my.toml"))
    assert kubernetes(job(recipe="wmt16-ende-base"))
    assert slurm(job(recipe=recipe))


@pytest.mark.parametrize("kind", ["slurm", "kubernetes", "skypilot"])
def test_a_generated_file_carries_the_token_of_the_job_alone(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token that the server expects from its clients has another name."""
    assert main(["jobs", kind, "demo", "--folder", "/shared", "--image", "team/image:1"]) == 0
    written = capsys.readouterr().out
    assert "DRAGOMAN_JOB_TOKEN" in written
    assert "DRAGOMAN_TOKEN" not in written


def test_a_job_may_have_a_name_that_yaml_takes_for_something_else() -> None:
    manifest = yaml.safe_load(kubernetes(job(name="no")))
    assert manifest["metadata"]["name"] == "no"
    task = yaml.safe_load(skypilot(job(name="on")))
    assert (task["name"], task["volumes"]) == ("on", {"/shared": "on"})


@pytest.mark.parametrize("kind", ["V100\n  evil: 1", "V100}: {", "", "a b"])
def test_a_kind_of_gpu_is_one_word(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"^gpu: "):
        skypilot(job(gpu=kind))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"name": "my job; rm"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"folder": PurePosixPath("shared")}, "folder"),
        ({"hours": 100_000}, "hours"),
        ({"gpus": -1}, "gpus"),
        ({"folder": PurePosixPath("/shared\ndate")}, "jobs"),
        ({"overrides": ["train.seed=1\n"]}, "jobs"),
    ],
)
def test_jobs_that_no_scheduler_accepts_are_refused(changes: dict[str, object], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(**changes)
    assert caught.value.place == place


HOW_TO = Path(__file__).parents[3] / "docs/how-to/schedulers.md"


def test_no_password_of_an_address_gets_into_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    address = "https://user:hidden@mlflow.example/"
    command = ["jobs", "slurm", "demo", "--folder", "/shared"]
    assert main([*command, "--set", f"sinks.mlflow={address}"]) == 2
    written = capsys.readouterr()
    assert "hidden" not in written.out + written.err
    assert "sinks.mlflow: the password in this address" in written.err


GENERATE = re.compile(r"^dragoman (jobs .*) > (\S+)$", re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "file"), GENERATE.findall(re.sub(r"\\\n *", "", HOW_TO.read_text()))
)
def test_the_how_to_writes_the_file_that_its_first_lines_start(
    command: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    first_lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ")]
    assert any(line.endswith(f" {file}") for line in first_lines)
