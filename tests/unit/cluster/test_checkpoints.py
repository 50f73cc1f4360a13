"""Checkpoints from a host to here: the agent is the real one, a program stands for ssh."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import signal
import sys
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError, MachineError
from dragoman.cluster.agent.work import forget_newer
from dragoman.cluster.checkpoints import (
    CHECKPOINTS,
    CheckpointTransfer,
    RunOnHosts,
    newest_checkpoint,
)
from dragoman.cluster.copying import Parcel, code_digest, code_parcel, read_code
from dragoman.cluster.follow import Record, StopRequests
from dragoman.cluster.hosts import Host, Hosts
from dragoman.cluster.ssh import BEGIN
from dragoman.cluster.training import bring_back
from dragoman.distributed.launch import InterruptedRunError
from dragoman.telemetry.events import (
    Alert,
    CheckpointWritten,
    Event,
    EventListener,
    EventWriter,
    RunFinished,
)
from dragoman.training.durable import (
    DIGESTS_FILE,
    publish,
    step_directories,
    step_name,
    verify,
)
from processes import processes_in, wait_until

NAME = "step-0000180"
# Lines for a shell that are a string to Python: no path with a space can follow #!.
SSH = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import os, subprocess, sys, time
GONE = "10.0.0.9"
os.chdir({home!r})
if any(GONE in word for word in sys.argv):
    sys.exit("no route to host")
words = ["sh", "-c", "test ! -f greeting || cat greeting; " + sys.argv[-1]]
if not os.path.exists("slow") or " send " not in sys.argv[-1]:
    os.execvp("sh", words)
with subprocess.Popen(words, stdout=subprocess.PIPE) as there:
    sys.stdout.buffer.write(there.stdout.read(200_000))
    sys.stdout.buffer.flush()
    time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a host. While a file `slow` lies there, the host sends nothing."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    for folder in (home / ".dragoman" / "runs" / "demo" / "logs", programs):
        folder.mkdir(parents=True)
    (programs / "ssh").write_text(SSH.format(python=sys.executable, home=str(home)))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return home


@pytest.fixture
def remote(home: Path, tmp_path: Path) -> RunOnHosts:
    """A run without checkpoints here; the host has one."""
    host = Host(address="10.0.0.1", name="alpha", slots=1, python=sys.executable)
    code = read_code()
    code_parcel(code).send(host)
    publish(saved(home), lambda draft: write(draft / "model.safetensors", bytes(1 << 20)))
    (tmp_path / "demo" / CHECKPOINTS).mkdir(parents=True)
    return RunOnHosts(tmp_path / "demo", Hosts(host=(host,)), code_digest(code))


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def saved(home: Path) -> Path:
    return home / ".dragoman" / "runs" / "demo" / CHECKPOINTS / NAME


def test_missing_files_are_fetched_at_the_end(home: Path, remote: RunOnHosts) -> None:
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    publish(
        saved(home).parent / "rank-0000" / NAME, lambda draft: write(draft / "state.json", b"{}")
    )
    with StopRequests() as requests, CheckpointTransfer(remote) as transfer:
        transfer.want(NAME)
        bring_back(transfer, requests, print_line=lambda text: None)
    for name in (NAME, f"rank-0000/{NAME}"):
        verify(remote.path / CHECKPOINTS / name)
    assert (remote.path / "logs" / "alpha" / "launch-0.log").read_bytes() == b"all is well\n"


def other(home: Path, step: int) -> str:
    """The name of a further checkpoint on the host."""
    place = saved(home).with_name(step_name(step))
    publish(place, lambda draft: write(draft / "model.safetensors", bytes(1 << 20)))
    return place.name


def test_the_best_checkpoint_alone_can_be_brought(home: Path, remote: RunOnHosts) -> None:
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    publish(
        saved(home).parent / "rank-0000" / NAME, lambda draft: write(draft / "state.json", b"{}")
    )
    other(home, 200)
    with StopRequests() as requests, CheckpointTransfer(remote) as transfer:
        transfer.best = NAME
        bring_back(transfer, requests, best_alone=True, print_line=lambda text: None)
    verify(remote.path / CHECKPOINTS / NAME)
    assert [path.name for path in (remote.path / CHECKPOINTS).iterdir()] == [NAME]
    assert (remote.path / "logs" / "alpha" / "launch-0.log").is_file()


@pytest.mark.parametrize("best", ["", "step-0000999"], ids=["not named", "not there"])
def test_everything_is_brought_if_the_best_checkpoint_is_unknown(
    best: str, home: Path, remote: RunOnHosts
) -> None:
    names = [NAME, other(home, 200)]
    with StopRequests() as requests, CheckpointTransfer(remote) as transfer:
        transfer.best = best
        bring_back(transfer, requests, best_alone=True, print_line=lambda text: None)
    assert sorted(path.name for path in (remote.path / CHECKPOINTS).iterdir()) == names


def test_the_copy_of_another_checkpoint_does_not_delay_the_best_one(
    home: Path, remote: RunOnHosts
) -> None:
    newest = other(home, 200)
    draft = remote.path / CHECKPOINTS / f".{newest}.draft"
    (home / "slow").touch()
    with StopRequests() as requests, CheckpointTransfer(remote) as transfer:
        transfer.want(newest)
        wait_until((draft / "model.safetensors").is_file, limit_s=60)
        (home / "slow").unlink()  # for the next copy; this one stands still for ten minutes
        transfer.best = NAME
        bring_back(transfer, requests, best_alone=True, print_line=lambda text: None)
    assert [path.name for path in (remote.path / CHECKPOINTS).iterdir()] == [NAME]


def test_copies_pause_while_training_goes_on(
    home: Path, remote: RunOnHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cluster.checkpoints._REST", 1e6)
    here = remote.path / CHECKPOINTS
    with CheckpointTransfer(remote) as transfer:
        transfer.want(NAME)
        wait_until((here / NAME).is_dir, limit_s=60)
        later = other(home, 200)
        transfer.want(later)
        time.sleep(2.0)
        assert not (here / later).exists()
        transfer.finish()
    verify(here / later)


def test_a_full_disk_here_is_not_called_the_host_s(home: Path, remote: RunOnHosts) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    printed: list[str] = []
    try:
        with StopRequests() as requests, CheckpointTransfer(remote) as transfer:
            transfer.want(NAME)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
            bring_back(transfer, requests, print_line=printed.append)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert any("not everything came back: " in text for text in printed)
    assert any(f"{remote.path / CHECKPOINTS}: the disk is full" in text for text in printed)
    assert list((remote.path / CHECKPOINTS).iterdir()) == []


def test_a_host_that_is_gone_keeps_no_other_from_being_asked(
    home: Path, remote: RunOnHosts
) -> None:
    gone = Host(address="10.0.0.9", name="omega", slots=1, python=sys.executable)
    both = replace(remote, hosts=Hosts(host=(gone, *remote.hosts.host)))
    # The state of one rank: only the first host writes the shared state.
    own = f"rank-0001/{NAME}"
    publish(saved(home).parent / own, lambda draft: write(draft / "state.json", b"{}"))
    write(saved(home).parents[1] / "logs" / "launch-0.log", b"all is well\n")
    with pytest.raises(MachineError, match=r"^omega: .*no route to host"):
        both.collect(trained=True)
    verify(both.path / CHECKPOINTS / own)
    assert (both.path / "logs" / "alpha" / "launch-0.log").is_file()


@pytest.mark.parametrize("wanted", [True, False], ids=["while training goes on", "in the end"])
def test_a_signal_ends_the_bringing_and_says_where_the_rest_is(
    wanted: bool, home: Path, remote: RunOnHosts
) -> None:
    (home / "slow").touch()
    arrived = remote.path / CHECKPOINTS / f".{NAME}.draft" / "model.safetensors"

    def press() -> None:
        try:
            wait_until(arrived.is_file, limit_s=60)
            time.sleep(0.2)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with StopRequests() as requests, CheckpointTransfer(remote) as transfer:
        if wanted:
            transfer.want(NAME)
        user = threading.Thread(target=press)
        user.start()
        with pytest.raises(InterruptedRunError) as caught:
            bring_back(transfer, requests, print_line=lambda text: None)
        user.join()
    what = NAME if wanted else "the rest"
    where = f"is still on alpha, in .dragoman/runs/demo/{CHECKPOINTS}"
    assert f"{what} {where}; dragoman train {remote.path} fetches it" in str(caught.value)
    assert list((remote.path / CHECKPOINTS).iterdir()) == []
    verify(saved(home))
    wait_until(lambda: processes_in(home) + processes_in(home / ".dragoman") == [], limit_s=20)


def test_the_newest_checkpoint_is_so_by_number(home: Path, remote: RunOnHosts) -> None:
    here, there = remote.path / CHECKPOINTS, saved(home).parent
    steps = [180, 9_999_999, 10_000_000, 10_000_020]
    for step in steps:
        publish(here / step_name(step), lambda draft: write(draft / "state.json", b"{}"))
    names = [step_name(step) for step in steps]
    assert [path.name for path in step_directories(here)] == names
    assert newest_checkpoint(remote.path) == "step-10000020"
    remote.spread(remote.hosts.host[0])
    assert [path.name for path in step_directories(there)] == names
    # Checkpoints that the first host no longer keeps are removed here, too, but no newer one.
    for gone in (9_999_999, 10_000_020):
        (there / step_name(gone)).rename(home / step_name(gone))
    remote.collect(trained=True)
    left = ["step-0000180", "step-10000000", "step-10000020"]
    assert [path.name for path in step_directories(here)] == left
    forget_newer(here, "step-10000000")
    assert [path.name for path in step_directories(here)] == left[:2]
    forget_newer(here, "")
    assert step_directories(here) == []


def test_a_checkpoint_that_a_new_first_host_never_had_is_kept(
    home: Path, remote: RunOnHosts
) -> None:
    """A resume gave it the newest one alone; then the first host, which kept the best, died."""
    here = remote.path / CHECKPOINTS
    best = step_name(100)
    publish(here / best, lambda draft: write(draft / "state.json", b"{}"))
    remote.collect()
    assert [path.name for path in step_directories(here)] == [best, NAME]
    # Once it has all of them, what it keeps is what the run keeps.
    remote.spread(remote.hosts.host[0])
    (saved(home).parent / best).rename(home / best)
    remote.collect(trained=True)
    assert [path.name for path in step_directories(here)] == [NAME]


@pytest.mark.parametrize("greeting", ["Welcome to alpha!\nwant\nhave\n[]\n", "no line's end"])
def test_a_login_shell_that_greets_is_passed_over(
    greeting: str, home: Path, remote: RunOnHosts
) -> None:
    (home / "greeting").write_text(greeting)
    host = remote.hosts.host[0]
    assert remote.on_host(host) == [NAME]
    remote.fetch(host, NAME)
    verify(remote.path / CHECKPOINTS / NAME)
    parcel = Parcel("data/1", {"a": b"one"})
    assert parcel.send(host)
    assert (home / ".dragoman" / "data" / "1" / "a").read_bytes() == b"one"
    assert not parcel.send(host)


def test_a_login_shell_that_runs_something_else_is_named(home: Path, remote: RunOnHosts) -> None:
    (home / "greeting").write_text("this is for backups only\n")
    ssh = home.parent / "bin" / "ssh"
    ssh.write_text(f"#!/bin/sh\ncat {home}/greeting\n")
    host = remote.hosts.host[0]
    for act in (Parcel("data/2", {"a": b"one"}).send, remote.on_host):
        with pytest.raises(MachineError, match=r"alpha: its login shell does not run .*\.bashrc"):
            act(host)


def damage(checkpoint: Path, how: str) -> None:
    weights = checkpoint / "model.safetensors"
    match how:
        case "altered":
            write(weights, b"x" + weights.read_bytes()[1:])
        case "cut short":
            os.truncate(weights, 1000)
        case "lost":
            weights.unlink()
        case "torn digests":
            os.truncate(checkpoint / DIGESTS_FILE, 5)


DAMAGES = ["altered", "cut short", "lost", "torn digests"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_on_a_host_leaves_the_one_before(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    """The user's machine got none of them before it was cut off."""
    newest = other(home, 200)
    publish(
        saved(home).parent / "rank-0000" / NAME, lambda draft: write(draft / "state.json", b"{}")
    )
    damage(saved(home).with_name(newest), how)
    with pytest.raises(CheckpointError) as caught:
        remote.collect()
    assert caught.value.place.startswith(f"alpha: .dragoman/runs/demo/{CHECKPOINTS}/{newest}/")
    assert newest_checkpoint(remote.path) == NAME
    assert (remote.path / CHECKPOINTS / "rank-0000" / NAME).is_dir()
    assert [path.name for path in step_directories(remote.path / CHECKPOINTS)] == [NAME]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_on_a_host_is_replaced_by_the_one_here(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    """Otherwise its ranks would have to use the one before, which other hosts do not have."""
    host = remote.hosts.host[0]
    remote.collect()
    damage(saved(home), how)
    remote.spread(host)
    verify(saved(home))


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_here_is_not_given_to_a_host(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    newest = other(home, 200)
    remote.collect()
    damage(remote.path / CHECKPOINTS / NAME, how)
    remote.spread(remote.hosts.host[0])
    for name in (NAME, newest):
        verify(saved(home).with_name(name))


@pytest.mark.parametrize("how", DAMAGES)
def test_if_the_best_checkpoint_is_damaged_the_others_are_brought(
    how: str, home: Path, remote: RunOnHosts
) -> None:
    newest = other(home, 200)
    damage(saved(home), how)
    printed: list[str] = []
    with StopRequests() as requests, CheckpointTransfer(remote) as transfer:
        transfer.best = NAME
        bring_back(transfer, requests, best_alone=True, print_line=printed.append)
    assert [path.name for path in (remote.path / CHECKPOINTS).iterdir()] == [newest]
    assert f"{CHECKPOINTS}/{NAME}/" in printed[-1]


def archive(names: dict[str, bytes], *, link: str = "") -> bytes:
    """A tar stream as no agent of ours makes it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|") as made:
        if link:
            entry = tarfile.TarInfo("link")
            entry.type, entry.linkname = tarfile.SYMTYPE, link
            made.addfile(entry)
        for name, content in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def whole(**files: bytes) -> dict[str, bytes]:
    """A checkpoint's files with digests that fit them."""
    digests = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        for name, content in files.items()
    }
    return {**files, "digests.json": json.dumps(digests).encode()}


def lie(remote: RunOnHosts, *, listed: object, sent: bytes) -> None:
    """The host is another's from now on: it lists and sends what that one likes."""
    there = remote.path.parent / "lies"
    there.mkdir()
    (there / "list").write_text(json.dumps(listed))
    (there / "send").write_bytes(sent)
    (remote.path.parent / "bin" / "ssh").write_text(
        f"#!/bin/sh\necho {BEGIN}\n"
        f"case $* in *' list '*) cat {there}/list;; *' send '*) cat {there}/send;; esac\n"
    )


def everything_below(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


OUTSIDE = (
    "rank-0000/../../../../victim",
    "rank-0000/../../../victim",
    "rank-0000/step-0000180/../../../../victim",
    "step-0000180/../../../victim",
    "../../victim",
    "/tmp/victim",
    "..",
    ".",
    "",
    "step-../../victim",
    "step-0000180\n",
    "step-" + "9" * 5000,
    "step-\u0661\u0662\u0663\u0664\u0665\u0666\u0667",
    "rank-0000",
    "rank-0000/average",
    "average",
)


def test_no_name_that_a_host_lists_leads_out_of_the_run(home: Path, remote: RunOnHosts) -> None:
    victim = remote.path.parent / "victim"
    victim.mkdir()
    write(victim / "thesis.txt", b"years of work")
    write(remote.path / CHECKPOINTS / "average", b"the user's own")
    lie(remote, listed=[*OUTSIDE, NAME], sent=archive(whole(payload=b"mine now")))
    before = everything_below(remote.path.parent)
    assert remote.on_host(remote.hosts.host[0]) == [NAME]
    with contextlib.suppress(MachineError):
        remote.collect(trained=True)
    after = everything_below(remote.path.parent)
    assert {name: after.get(name) for name in before} == before
    arrived = f"demo/{CHECKPOINTS}/{NAME}/"
    assert all(name.startswith((arrived, "demo/logs/alpha/")) for name in after.keys() - before)


@pytest.mark.parametrize("listed", [{"a": 1}, "step-0000180", [1], None])
def test_a_malformed_list_of_checkpoints_is_refused(
    listed: object, home: Path, remote: RunOnHosts
) -> None:
    lie(remote, listed=listed, sent=b"")
    with pytest.raises(MachineError, match=r"^alpha: its list of checkpoints is not understood; "):
        remote.collect()


HOSTILE = {
    "out of it": archive({**whole(a=b"1"), "../../victim": b"x"}),
    "absolute": archive({**whole(a=b"1"), "/tmp/dragoman-victim": b"x"}),
    "a link": archive(whole(a=b"1"), link="/tmp"),
    "through a link": archive({"link/victim": b"x", **whole(a=b"1")}, link="/tmp"),
    "a folder": archive({**whole(a=b"1"), "more/a": b"x"}),
    "a file inside a file": archive({**whole(a=b"1"), "a/b": b"x"}),
    "a file without digest": archive({**whole(a=b"1"), ".bashrc": b"x"}),
    "a name that steers": archive({**whole(a=b"1"), "\x1b[2J": b"x"}),
}


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_is_refused_and_writes_nothing(
    sent: bytes, home: Path, remote: RunOnHosts
) -> None:
    lie(remote, listed=[NAME], sent=sent)
    before = everything_below(remote.path.parent)
    with pytest.raises(MachineError, match=r"^alpha: ") as caught:
        remote.fetch(remote.hosts.host[0], NAME)
    assert str(caught.value).isprintable()
    assert everything_below(remote.path.parent) == before
    assert list((remote.path / CHECKPOINTS).iterdir()) == []
    assert not Path("/tmp/dragoman-victim").exists()


def test_logs_are_files_of_one_folder(home: Path, remote: RunOnHosts) -> None:
    host = remote.hosts.host[0]
    lie(remote, listed=[], sent=archive({"launch-0.log": b"well", "alpha/launch.log": b"x"}))
    with pytest.raises(
        MachineError, match="alpha: logs holds 'alpha', which dragoman never writes"
    ):
        remote.fetch_logs(host)
    assert not (remote.path / "logs" / "alpha").exists()


STILL = {
    "nothing at all": "",
    "no checkpoint": f"echo {BEGIN}",
    "a part of one": f"echo {BEGIN}; head -c 300000 {{there}}/send",
    "a byte now and then": f"echo {BEGIN}; while echo; do sleep 0.2; done",
    "all of it, and no end": f"echo {BEGIN}; cat {{there}}/send",
    "all of it, and ever more": f"echo {BEGIN}; cat {{there}}/send; while echo; do :; done",
}


@pytest.mark.parametrize("script", STILL.values(), ids=STILL)
def test_a_host_that_sends_nothing_is_not_waited_for(
    script: str, home: Path, remote: RunOnHosts
) -> None:
    """It stays connected: nothing but the clock tells it from one that is slow."""
    lie(remote, listed=[NAME], sent=archive(whole(payload=bytes(1 << 20))))
    there = remote.path.parent / "lies"
    (remote.path.parent / "bin" / "ssh").write_text(
        f"#!/bin/sh\n{script.format(there=there)}\nexec sleep 600\n"
    )
    host = remote.hosts.host[0].model_copy(update={"silence_s": 1.0})
    before = everything_below(remote.path.parent)
    with pytest.raises(MachineError) as caught:
        remote.fetch(host, NAME)
    assert str(caught.value) in (
        "alpha: hardly a byte has passed for 1 s; see whether its disk, its network or a program "
        "there stands still; if it is only slow, raise silence_s in hosts.toml",
        "alpha: it sends more than dragoman ever does; see what its login shell prints, and "
        "whether the host can be trusted",
    )
    assert everything_below(remote.path.parent) == before


@pytest.mark.parametrize("answer", ["", f"echo {BEGIN}", f"echo {BEGIN}; echo want"])
def test_a_host_that_takes_nothing_is_not_waited_for(
    answer: str, home: Path, remote: RunOnHosts
) -> None:
    (remote.path.parent / "bin" / "ssh").write_text(f"#!/bin/sh\n{answer}\nexec sleep 600\n")
    host = remote.hosts.host[0].model_copy(update={"silence_s": 1.0})
    with pytest.raises(MachineError, match=r"^alpha: hardly a byte has passed for 1 s; "):
        Parcel("data/1", {"a": bytes(1 << 24)}).send(host)


def test_a_host_that_is_lost_while_it_sends_is_named_so(home: Path, remote: RunOnHosts) -> None:
    lie(remote, listed=[NAME], sent=archive(whole(payload=bytes(1 << 20))))
    there = remote.path.parent / "lies"
    (remote.path.parent / "bin" / "ssh").write_text(
        f"#!/bin/sh\necho {BEGIN}; head -c 300000 {there}/send; exit 255\n"
    )
    with pytest.raises(MachineError, match=r"^alpha: the connection was lost: no answer for 15 s"):
        remote.fetch(remote.hosts.host[0], NAME)


def test_a_slow_host_that_goes_on_is_waited_for(home: Path, remote: RunOnHosts) -> None:
    lie(remote, listed=[NAME], sent=archive(whole(payload=bytes(30_000))))
    there = remote.path.parent / "lies"
    (remote.path.parent / "bin" / "ssh").write_text(
        f"#!/bin/sh\necho {BEGIN}\n"
        f"for n in $(seq 0 19); do tail -c +$((n * 2048 + 1)) {there}/send | head -c 2048; "
        "sleep 0.2; done\n"
    )
    host = remote.hosts.host[0].model_copy(update={"silence_s": 2.0})
    remote.fetch(host, NAME)
    verify(remote.path / CHECKPOINTS / NAME)


@pytest.mark.parametrize("path", ["..", "x/..", "/", "", "checkpoints/average", "step-../x"])
def test_no_event_of_a_host_names_a_folder_to_replace(
    path: str, home: Path, remote: RunOnHosts
) -> None:
    transfer = CheckpointTransfer(remote)
    record = Record(remote.path / "events", [], transfer)
    saved_it = CheckpointWritten(path=path, reason="interval", size_bytes=1, seconds_s=1.0)
    with EventWriter(home / "events") as events:
        events.write(saved_it, step=1)
    record.append("alpha", events.path.read_text())
    assert transfer.newest == ""
    events.path.write_text(
        events.path.read_text().replace(f'"path": "{path}"', f'"path": "{NAME}"')
    )
    record.append("alpha", events.path.read_text())
    assert transfer.newest == NAME


@pytest.mark.parametrize(
    ("by_bleu", "by_loss", "best"),
    [(180, 90, NAME), (None, 180, NAME), (0, 180, "step-0000000"), (None, None, "")],
)
def test_the_first_host_names_its_best_checkpoint(
    by_bleu: int | None, by_loss: int | None, best: str, home: Path, remote: RunOnHosts
) -> None:
    transfer = CheckpointTransfer(remote)
    record = Record(remote.path / "events", [], transfer)
    finished = RunFinished(
        reason="max_steps",
        best_dev_loss=None if by_loss is None else 2.0,
        best_dev_loss_step=by_loss,
        best_bleu=None if by_bleu is None else 20.0,
        best_bleu_step=by_bleu,
        wall_s=1.0,
    )
    with EventWriter(home / "events") as events:
        events.write(finished, step=200)
    record.append("alpha", events.path.read_text())
    assert transfer.best == best


def test_only_the_host_of_rank_0_writes_events(home: Path, remote: RunOnHosts) -> None:
    beta = Host(address="10.0.0.2", name="beta", slots=1)
    both = replace(remote, hosts=Hosts(host=(*remote.hosts.host, beta)))
    record = Record(both.path / "events", [], CheckpointTransfer(both))
    with pytest.raises(MachineError, match=r"^beta: sends events, which only the host of rank 0"):
        record.append("beta", "{}\n")
    assert list((both.path / "events").iterdir()) == []


def test_an_event_that_lacks_something_is_kept_and_not_shown(
    home: Path, remote: RunOnHosts
) -> None:
    seen: list[Event] = []

    class Listener(EventListener):
        def __call__(self, event: Event) -> None:
            seen.append(event)

    beta = Host(address="10.0.0.2", name="beta", slots=1)
    both = replace(remote, hosts=Hosts(host=(*remote.hosts.host, beta)))
    record = Record(both.path / "events", [Listener()], CheckpointTransfer(both))
    with EventWriter(home / "events") as events:
        events.write(Alert(severity="error", cause="smoke", remedy="water"))
    whole_line = events.path.read_text()
    broken = [
        whole_line.replace('"cause": "smoke"', '"cause": [7]'),
        whole_line.replace(', "remedy": "water"', ""),
        whole_line.replace('"kind": "alert"', '"kind": "run_started"'),
        "[]\n",
        "\x00\n",
    ]
    assert whole_line not in broken
    record.append("alpha", "".join(broken))
    assert seen == []
    record.append("alpha", whole_line)
    assert [event.payload["cause"] for event in seen] == ["smoke"]
    assert (both.path / "events" / "log.jsonl").read_text() == "".join([*broken, whole_line])
