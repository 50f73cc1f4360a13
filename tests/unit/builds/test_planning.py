"""The files that a plan of a build reads and writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import ConfigError
from dragoman.builds.corpora import Corpus, save_corpora
from dragoman.builds.planning import Wanted, index_file, planned
from dragoman.corpus.catalogue import Listing
from dragoman.recipe.budget import parse_budget
from dragoman.recipe.recipe import Recipe
from dragoman.run.speed import TrainingMachine
from mirror import corpus_mirror


def test_each_address_of_an_index_has_its_own_file(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        mirror.files |= {"/one": b"one", "/two": b"two"}
        for _ in range(2):
            files = [index_file(mirror.url(path), tmp_path) for path in ("/one", "/two")]
            assert [file.read_bytes() for file in files if file] == [b"one", b"two"]
        assert mirror.gets == {"/one": 1, "/two": 1}
    assert index_file("", tmp_path) is None
    assert index_file("my.jsonl", tmp_path) == Path("my.jsonl")


def test_a_table_of_corpora_cannot_steer_a_terminal(tmp_path: Path) -> None:
    url = "https://example.org/\x1b[31mred"
    listing = Listing(did="A-b-1-eng-deu", url=(url,), ext="txt", meta={"licence": "CC\x070"})
    save_corpora([Corpus(listing, 5, 1, why="small\tand\nnew")], tmp_path)
    line = (tmp_path / "corpora.tsv").read_text().splitlines()[1]
    row = ("A-b-1-eng-deu", "", "5", "1", "CC�0", "https://example.org/�[31mred", "small and new")
    assert line == "\t".join(row)


def edited(directory: Path, **changes: str) -> list[str]:
    """The lines of a plan in which these values have been typed."""
    directory.mkdir()
    stages = "".join(
        f'[[stage]]\nname = "{name}"\nshare = {share}\n'
        for name, share in (("fetch", 1), ("clean", 1), ("train", 8))
    )
    head = {"pair": '"en-de"', "budget": '"1h"', **changes}
    lines = [f"{key} = {value}" for key, value in head.items() if key != "own"]
    corpus = '[[corpus]]\nid = "Local-a-1-eng-deu"\nuse = "train"\n'
    text = "\n".join([*lines, corpus]) + stages + changes.get("own", "")
    (directory / "build.toml").write_text(text)
    return text.splitlines()


def refused(directory: Path, *, dry_run: bool = False, **wishes: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        planned(Wanted("en-de", directory, **wishes), dry_run=dry_run)
    return caught.value


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ("6 ells", "'6 ells' is not a budget"),
        ("0min", "leaves no time at all"),
        ("900d", "more than a year"),
        ("5 USD", "no price"),
        ("0 USD", "leaves no time at all"),
    ],
)
def test_a_bad_budget_in_the_plan_is_blamed_on_its_line(
    budget: str, problem: str, tmp_path: Path
) -> None:
    edited(tmp_path / "it", budget=f'"{budget}"')
    error = refused(tmp_path / "it")
    assert error.place == f"{tmp_path / 'it' / 'build.toml'}:2"
    assert problem in error.problem


@pytest.mark.parametrize("of_stage", [False, True])
def test_a_mistyped_override_in_the_plan_is_blamed_on_its_line(
    of_stage: bool, tmp_path: Path
) -> None:
    typed = '[\n  "model.d_model=64",\n  "model.d_modl=64",\n]'
    changes = {"own": f"set = {typed}\n"} if of_stage else {"set": typed}
    lines = edited(tmp_path / "it", **changes)
    error = refused(tmp_path / "it")
    line = lines.index('  "model.d_modl=64",') + 1
    assert error.place == f"{tmp_path / 'it' / 'build.toml'}:{line}"
    assert error.problem.startswith("model.d_modl=64: unknown key")


@pytest.mark.system
def test_a_dry_run_of_an_edited_plan_checks_the_least_budget(tmp_path: Path) -> None:
    edited(tmp_path / "it", budget='"20s"')
    error = refused(tmp_path / "it", dry_run=True)
    assert error.place == f"{tmp_path / 'it' / 'build.toml'}:2"
    assert "too little time" in error.problem
    needed = re.search(r'budget = "(.+?)"', error.remedy)
    assert needed is not None
    assert parse_budget(needed[1]) > 20
    edited(tmp_path / "enough", budget='"10h"')
    plan, _ = planned(Wanted("en-de", tmp_path / "enough"), dry_run=True)
    assert plan.budget == "10h"


def test_the_least_budget_is_that_of_a_model_with_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 pairs have 2,500 pieces, and not the 25,000 of text that nobody knows."""
    pieces: list[int] = []

    def speed(recipe: Recipe) -> float:
        pieces.append(recipe.corpus.subword.vocab_size)
        return 9000.0

    machine = TrainingMachine(False, False, 10**12, speed)
    monkeypatch.setattr("dragoman.run.budget_plan.machine_of", lambda *_, **__: machine)
    edited(tmp_path / "it", budget='"20s"')
    refused(tmp_path / "it", dry_run=True)
    edited(tmp_path / "set", budget='"20s"', set='["corpus.subword.vocab_size=700"]')
    refused(tmp_path / "set", dry_run=True)
    assert set(pieces) == {2500, 700}


def test_options_are_checked_before_anything_is_fetched(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        mirror.add("Local-a-1-eng-deu", "/a.tsv", b"One.\tEins.\n", ext="tsv", in_ext="tsv")
        new: dict[str, Any] = {"budget": "1h", "index": mirror.index_url}
        error = refused(tmp_path / "set", **new, overrides=["model.d_modl=64"])
        assert error.place == "model.d_modl=64"
        assert not mirror.gets
        error = refused(tmp_path / "choose", **new, choose=["Local-b-1-eng-deu"])
        assert error.place == "choose Local-b-1-eng-deu"
        assert mirror.gets == {"/mtdata.jsonl": 1}
