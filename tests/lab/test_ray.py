"""Several machines through Ray: the result is that of one machine, whoever is killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.corpus.runs import numbered
from lab.conftest import OpenLab
from lab.laboratory import Lab
from lab.ray_cluster import (
    address_of,
    environment,
    has_task,
    kill_node,
    start_node,
    why_no_ray,
)
from parallel_text import sentences, write_pairs
from processes import wait_until
from real_text import real_lines
from small_run import small_run

pytestmark = [
    pytest.mark.skipif(bool(why_no_ray()), reason=why_no_ray()),
    pytest.mark.timeout(600),
]
_DRAGOMAN = (sys.executable, "-m", "dragoman")


@pytest.fixture
def lab(make_lab: OpenLab) -> Lab:
    """Two hosts, each a node with one core; alpha is the head."""
    lab = make_lab(["alpha", "beta"])
    for host in lab.hosts:
        start_node(host, lab.host("alpha"))
    return lab


def synthesis(folder: Path, lines: int) -> list[str | Path]:
    """The command without its output."""
    text, known = folder / "text", real_lines("train", "en")
    text.write_text("".join(f"{known[n % len(known)]}\n" for n in range(lines)), "utf-8")
    search = ["--set", "search.beam_size=1", "--set", "search.max_length_extra=2"]
    return [*_DRAGOMAN, "synthesize", small_run().path, "--input", text, "--threads", "1", *search]


def on_nodes(lab: Lab) -> list[str]:
    return ["--ray", address_of(lab.host("alpha"))]


def run(lab: Lab, words: list[str | Path], output: Path) -> str:
    done = lab.host("alpha").run(
        [*words, "--output", output], env=environment(), timeout_s=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(output), "")


def start(lab: Lab, words: list[str | Path], output: Path) -> subprocess.Popen[str]:
    return lab.host("alpha").start(
        [*words, "--output", output],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def kill(lab: Lab, command: str) -> None:
    """Kill the command on the first host; what Ray runs there lives on."""
    alpha = lab.host("alpha")
    found = [str(number) for number, words in alpha.processes().items() if command in words[:4]]
    alpha.run(["kill", "-9", *found])


def refusal(lab: Lab, words: list[str | Path], folder: Path) -> str:
    """The one line with which it refuses."""
    done = lab.host("alpha").run(
        [*words, "--output", folder / "refused"], env=environment(), timeout_s=300, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert not (folder / "refused").exists()
    return line


def test_two_nodes_write_the_output_of_one_machine(lab: Lab, tmp_path: Path) -> None:
    pairs = [*zip(real_lines("train", "en"), real_lines("train", "de"), strict=True)] * 2
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
    scoring: list[str | Path] = [*_DRAGOMAN, "score", small_run().path, tsv]
    for words in (synthesis(tmp_path, 5000), scoring):
        alone, together = tmp_path / f"{words[3]}-alone", tmp_path / f"{words[3]}-together"
        said = run(lab, words, alone)
        assert run(lab, [*words, *on_nodes(lab)], together) == said
        assert together.read_bytes() == alone.read_bytes()


def test_a_node_that_is_killed_costs_no_line(lab: Lab, tmp_path: Path) -> None:
    words = synthesis(tmp_path, 16_000)
    alone, together = tmp_path / "alone.tsv", tmp_path / "together.tsv"
    draft = tmp_path / ".together.tsv.partial"
    process = start(lab, [*words, *on_nodes(lab)], together)
    beta = lab.host("beta")
    wait_until(lambda: draft.exists() and draft.stat().st_size > 0 and has_task(beta))
    kill_node(beta)
    assert process.poll() is None
    said = run(lab, words, alone)
    printed, _ = process.communicate(timeout=240)
    assert (process.returncode, printed.replace(str(together), "")) == (0, said)
    assert together.read_bytes() == alone.read_bytes()


def preparation(folder: Path, pairs: int) -> list[str | Path]:
    """The command without its folder. Each 32,768 pairs are a block."""
    text = write_pairs(folder, "train", sentences(pairs))
    recipe = folder / "recipe.toml"
    recipe.write_text(
        'name = "nodes"\n[corpus]\n'
        f'train = [{{source = "{text.source}", target = "{text.target}"}}]\n'
        "valid_pairs = 50\ntest_pairs = 50\nsubword.vocab_size = 120\n",
        encoding="utf-8",
    )
    return [*_DRAGOMAN, "prepare", recipe]


def start_preparing(lab: Lab, words: list[str | Path], directory: Path) -> subprocess.Popen[str]:
    return lab.host("alpha").start(
        [*words, "--prepared", directory], env=environment(), stdout=subprocess.DEVNULL
    )


def files_of(directory: Path) -> dict[str, bytes]:
    """All that a preparation made, but its events."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.parent.name != "events"
    }


def test_text_is_prepared_by_nodes_of_which_one_is_killed(lab: Lab, tmp_path: Path) -> None:
    words = preparation(tmp_path, 200_000)
    alone, together = tmp_path / "alone", tmp_path / "together"
    process = start_preparing(lab, [*words, *on_nodes(lab)], together)
    beta = lab.host("beta")
    cleaned = together / ".unfinished" / "runs"
    wait_until(lambda: len([*numbered(cleaned, ".json")]) > 1 and has_task(beta))
    kill_node(beta)
    assert process.poll() is None
    assert start_preparing(lab, [*words, "--workers", "1"], alone).wait(timeout=240) == 0
    assert process.wait(timeout=240) == 0
    assert files_of(together) == files_of(alone)


@pytest.mark.slow
def test_a_preparation_that_is_killed_goes_on_with_ray_and_without(
    lab: Lab, tmp_path: Path
) -> None:
    words = preparation(tmp_path, 200_000)
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert start_preparing(lab, words, alone).wait(timeout=240) == 0
    place = together / ".unfinished"
    reached = ["runs/000001.json", "runs/000004.json", "clean.json", "result/source.model"]
    for number, name in enumerate([*reached, "parts/000001.json"]):
        more = [] if number == 1 else on_nodes(lab)
        process = start_preparing(lab, [*words, *more], together)
        wait_until(lambda name=name: (place / name).exists())  # type: ignore[misc]
        kill(lab, "prepare")
        assert process.wait() != 0
    process = start_preparing(lab, [*words, *on_nodes(lab)], together)
    assert process.wait(timeout=240) == 0
    assert files_of(together) == files_of(alone)


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_with_ray_and_without(lab: Lab, tmp_path: Path) -> None:
    words = synthesis(tmp_path, 12_000)
    alone, together = tmp_path / "alone.tsv", tmp_path / "together.tsv"
    said = run(lab, words, alone)
    draft = tmp_path / ".together.tsv.partial"
    for more in (on_nodes(lab), on_nodes(lab), []):
        before = draft.stat().st_size if draft.exists() else 0
        process = start(lab, [*words, *more], together)
        wait_until(
            lambda before=before: draft.exists() and draft.stat().st_size > before  # type: ignore[misc]
        )
        kill(lab, "synthesize")
        process.wait()
    went_on = run(lab, [*words, *on_nodes(lab)], together)
    assert ", went on after line " in went_on
    assert went_on.splitlines()[0].startswith(said.splitlines()[0])
    assert went_on.splitlines()[1:] == said.splitlines()[1:]
    assert together.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_unusable_clusters_and_nodes_are_refused_in_one_line(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    lab = make_lab(["alpha", "beta"])
    alpha, beta = lab.hosts
    words = synthesis(tmp_path, 3000)
    silent = [*words, "--ray", "10.77.0.99:6379"]
    assert "10.77.0.99:6379: does not answer" in refusal(lab, silent, tmp_path)
    assert "cannot be joined" in refusal(lab, [*words, "--ray", "auto"], tmp_path)
    sshd = [*words, "--ray", f"{alpha.address}:22"]
    assert "no answer as a Ray cluster in 30 s" in refusal(lab, sshd, tmp_path)
    start_node(alpha, alpha, cores=0)  # it takes part, and does no work
    assert "no node of the cluster has 1 cores" in refusal(lab, [*words, "--ray", "auto"], tmp_path)
    other = tmp_path / "other"
    (other / "dragoman").mkdir(parents=True)
    (other / "dragoman" / "__init__.py").touch()
    start_node(beta, alpha, PYTHONPATH=str(other))
    line = refusal(lab, [*words, "--ray", "auto"], tmp_path)
    assert f"node {beta.address}: cannot import dragoman: No module named 'dragoman." in line
    for host in lab.hosts:  # the cluster would tell of the node that is gone
        kill_node(host)
    shutil.copytree(Path(dragoman.__file__).parent, other / "dragoman", dirs_exist_ok=True)
    (other / "dragoman" / "base" / "version.py").write_text('VERSION = "0.0.0"\n', "utf-8")
    start_node(alpha, alpha, cores=0)
    start_node(beta, alpha, PYTHONPATH=str(other))
    line = refusal(lab, [*words, "--ray", "auto"], tmp_path)
    assert f"node {beta.address}: has dragoman 0.0.0, not {dragoman.__version__}; install" in line


def test_a_node_without_the_folder_is_refused_in_one_line(
    make_lab: OpenLab, tmp_path: Path
) -> None:
    lab = make_lab(["alpha", "beta"])
    alpha, beta = lab.hosts
    words = preparation(tmp_path, 2000)
    (tmp_path / "prepared").mkdir()
    beta.run(["mount", "-t", "tmpfs", "none", tmp_path / "prepared"])
    start_node(alpha, alpha, cores=0)
    start_node(beta, alpha)
    words += ["--prepared", tmp_path / "prepared" / "small", "--ray", "auto"]
    done = alpha.run(words, env=environment(), timeout_s=300, check=False)
    (line,) = done.stderr.splitlines()
    place = tmp_path / "prepared" / "small" / ".unfinished"
    assert f"node {beta.address}, {place}: is not the folder that the command sees; let" in line
