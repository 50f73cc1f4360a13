"""The output of `train --hosts --dry-run`, read by a real shell."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from dragoman.base.errors import ConfigError
from dragoman.cli import main
from dragoman.cluster.dry_run import planned_commands
from dragoman.cluster.hosts import Host, Hosts, load_hosts
from dragoman.recipe.recipe import dump_toml, load_recipe
from dragoman.recipe.run_directory import RunDirectory

HOSTS = Hosts(
    host=(
        Host(
            address="10.0.0.1",
            name="alpha",
            gpus=2,
            folder="/shared/my folder",
            python="/opt/a b/bin/python",
        ),
        Host(address="10.0.0.2", name="beta", slots=1, user="ann", port=2222, login="b.example"),
    )
)


@pytest.mark.parametrize(
    "run", ["demo-TIME-DIGEST", "it's; touch pwned", "$(touch pwned)", "x\ntouch pwned", "`a` > b"]
)
def test_a_shell_runs_ssh_and_nothing_else(run: str, tmp_path: Path) -> None:
    lines = list(planned_commands(HOSTS, run=run))
    # Every line that a shell may run is ssh or rsync, whose words are the ones that were meant.
    script = tmp_path / "dry-run.sh"
    show = '() { for word; do printf "%s\\0" "$word"; done; printf "\\n"; }\n'
    script.write_text(f"ssh{show}rsync{show}" + "\n".join(lines) + "\n")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        ["bash", "-eu", script], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    assert not done.stderr
    assert sorted(tmp_path.rglob("*")) == before
    calls = [call.split("\0") for call in done.stdout.split("\0\n") if call]
    assert len(calls) == sum(1 for line in lines if not line.startswith("#"))
    for call in calls:
        if "--rsh" in call:
            assert call[-1].startswith(("10.0.0.1:", "b.example:"))
            assert call[-2].startswith("./")
            continue
        assert call[call.index("--") + 1] in ("10.0.0.1", "b.example")
        assert len(call) == call.index("--") + 3  # one word for the one shell on the host


@pytest.mark.parametrize(("place", "named"), [("", "."), ("events", "..")])
def test_a_run_that_is_named_from_inside_has_its_name_on_hosts(
    place: str,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`.` would be `runs/` there, which doctor then says to delete, all runs in it."""
    run = tmp_path / "demo-TIME-DIGEST"
    (run / "events").mkdir(parents=True)
    (run / "recipe.toml").write_text(dump_toml(load_recipe("demo")))
    monkeypatch.chdir(run / place)
    assert main(["train", named, "--hosts", "10.0.0.1:1", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "dragoman.run.worker train runs/demo-TIME-DIGEST\n" in printed
    assert "10.0.0.1:PORT" in printed
    assert RunDirectory.open(Path(named)).path == run


@pytest.mark.parametrize("words", [["--hosts", ""], ["--hosts", " "], ["--hosts="]], ids=str)
def test_hosts_of_an_empty_variable_do_not_mean_this_machine(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """If `$HOSTS` is not set, `--hosts "$HOSTS"` would begin training here, on one rank."""
    with pytest.raises(SystemExit) as ended:
        main(["train", "demo", *words, "--dry-run"])
    assert ended.value.code == 2
    assert "is empty; if a variable of the shell stands there" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="'' is not a host"):
        load_hosts("")


@pytest.mark.parametrize("option", ["--link=1Gb", "--compute=5", "--price=3"])
def test_an_option_that_lacks_its_unit_is_named(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = ["plan", "demo", "--hosts=2", "--gpu=cpu", "--link=1Gbit", "--compute=1s"]
    assert main([*sound, option]) == ConfigError.exit_code
    name, _, said = option.partition("=")
    assert capsys.readouterr().err.startswith(f"dragoman: {name[2:]}: '{said}' is not a")


def test_uneven_hosts_and_all_that_is_started_there() -> None:
    there = [
        shlex.split(line.partition("there: ")[2])
        for line in planned_commands(HOSTS, run="demo")
        if line.startswith("#   there: ")
    ]
    programs = [
        [word for word in words if word.startswith("dragoman.")][-1].removeprefix("dragoman.")
        for words in there
    ]
    assert programs == [
        "distributed.store",
        "distributed.devices",
        "training.measuring",
        "run.worker",
        "training.measuring",
        "run.worker",
    ]
    torchruns = [words for words in there if "dragoman.distributed.launch" in words]
    assert ["--nproc-per-node=2" in words for words in torchruns] == [True, False]
    assert ["--nproc-per-node=1" in words for words in torchruns] == [False, True]


def test_the_link_between_gpus_is_taken_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "wmt16-ende-base", "--hosts", "2", "--link", "100Gbit", "--gpu", "a100:8"]
    planned = []
    for more in ((), ("--gpu-link", "10GB/s")):
        assert main([*words, "--json", *more]) == 0
        planned.append(json.loads(capsys.readouterr().out))
    rates = [made["hosts"][0]["inside"]["bytes_per_s"] for made in planned]
    assert rates == [230e9, 10e9]
