"""The stages of a build: each is done once, on one clock, and may be left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dragoman.corpus.download
from dragoman.base.errors import CheckpointError, ConfigError, CorpusError, DivergenceError
from dragoman.builds import build as builds
from dragoman.builds.build import _Build, carry_out
from dragoman.builds.plan import BuildPlan, PlannedCorpus, PlannedStage
from dragoman.builds.planning import Wanted
from dragoman.builds.record import RECORD, BuildRecord
from dragoman.run.budget_plan import TooSmallError
from mirror import CorpusMirror, corpus_mirror
from phrases import SENTENCES

PAIRS = b"".join(b"This is line %d.\tDas ist Zeile %d.\n" % (n, n) for n in range(20))
GOOD = "Local-f\u00f6rs\u00e4kringskassan-1-eng-deu"
NOT_TO_BE_HAD = {
    "Local-gone-1-eng-deu": "404",
    "Local-unreachable-1-eng-deu": "refused",
    "Local-unlisted_\u00e9-1-eng-deu": "knows no corpus",
    "Local-french-1-eng-fra": "is not a corpus of en and de",
    "Local-damaged-1-eng-deu": "cannot be read",
    "Local-mislabelled-1-eng-deu": "target like French",
}
STAGES = {"fetch": 1, "clean": 1, "train": 8}
MORE = {"reverse": 2, "back-translate": 2, "train-more": 6}


def plan(
    *ids: str, index: str = "", needed: bool = False, stages: dict[str, int] = STAGES, **more: Any
) -> BuildPlan:
    return BuildPlan(
        pair="en-de",
        budget="100s",
        index=index,
        corpus=tuple(PlannedCorpus(id=did, use="train", needed=needed) for did in ids or [GOOD]),
        stage=tuple(
            PlannedStage.model_validate({"name": name, "share": share})
            for name, share in stages.items()
        ),
        **more,
    )


def build_of(
    folder: Path, planned: BuildPlan, *, began: float | None = None, said: list[str] | None = None
) -> _Build:
    wanted = Wanted(planned.pair, folder)
    began = time.time() if began is None else began
    made = _Build(planned, wanted, 100.0, began, 1, False, None, lambda _: None)
    made.say = (said if said is not None else list[str]()).append
    return made


def ending_in(output: Path, seen: list[float]) -> Callable[[float], dict[str, Any]]:
    """The work of a stage, which notes the seconds that it was given."""

    def work(seconds_s: float) -> dict[str, Any]:
        seen.append(seconds_s)
        facts = {"texts": [], "left_out": {}, "steps": 1, "parameters": 1}
        return {"output": str(output), "found": len(seen), **facts}

    return work


def killed(_: float) -> dict[str, Any]:
    raise KeyboardInterrupt


def test_a_stage_is_done_once_and_gets_its_share_of_the_time_left(tmp_path: Path) -> None:
    began = time.time() - 10
    said: list[str] = []
    build = build_of(tmp_path, plan(), began=began, said=said)
    seen: list[float] = []
    output = tmp_path / "output"
    output.touch()
    work = ending_in(output, seen)
    for _ in range(2):
        assert build.do("fetch", "a", work)["found"] == 1
    build.do("train", "a", work)
    assert seen == pytest.approx([8.9, 89], abs=5)
    build.do("fetch", "other text", work)
    assert len(seen) == 3
    assert [line.split(":")[0] for line in said] == ["stage fetch", "stage train", "stage fetch"]
    # The next command goes on by the same clock, and does what has lost its output again.
    later = build_of(tmp_path, plan())
    assert later.record.started == began
    later.do("train", "a", work)
    assert len(seen) == 3
    output.unlink()
    later.do("train", "a", work)
    assert len(seen) == 4


def test_a_stage_that_was_killed_is_no_record_but_its_time_counts(tmp_path: Path) -> None:
    began = time.time() - 50
    build = build_of(tmp_path, plan(), began=began)
    with pytest.raises(KeyboardInterrupt):
        build.do("train", "a", killed)
    assert BuildRecord.read(tmp_path).stages == {}
    seen: list[float] = []
    later = build_of(tmp_path, plan())
    later.do("train", "a", ending_in(tmp_path, seen))
    assert seen == pytest.approx([49], abs=5)
    assert later.record.stages["train"].started == began


@pytest.mark.parametrize(
    "error",
    [
        DivergenceError("it diverged", place="step 7"),
        TooSmallError(1.0, needed_s=5.0, price=None),
    ],
)
def test_what_a_build_can_do_without_is_left_out_until_the_plan_changes(
    error: Exception, tmp_path: Path
) -> None:
    planned = plan(stages=STAGES | MORE, mono="/m")
    calls: list[str] = []

    def work() -> dict[str, Any]:
        calls.append("called")
        build.do("reverse", "a", ending_in(tmp_path, []))
        raise error

    for _ in range(2):
        build = build_of(tmp_path, planned)
        assert build.optional(("reverse", "back-translate", "train-more"), work) == []
        stages = build.record.stages
        assert stages["reverse"].skipped == ""
        assert stages["train-more"].skipped == error.problem  # type: ignore[attr-defined]
    assert len(calls) == 1
    build = build_of(tmp_path, plan(stages=STAGES | MORE | {"train-more": 7}, mono="/m"))
    build.optional(("reverse", "back-translate", "train-more"), work)
    assert len(calls) == 2
    assert build_of(tmp_path, plan()).optional(("reverse",), work) == []
    assert len(calls) == 2


def test_a_budget_that_is_too_small_starts_again_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan()
    planned.save(tmp_path)

    def too_little(build: _Build) -> None:
        build.do("fetch", "a", ending_in(tmp_path, []))
        raise TooSmallError(80.0, needed_s=200.0, price=None)

    monkeypatch.setattr(builds._Build, "all_stages", too_little)
    with pytest.raises(ConfigError, match='run it again with budget = "4 min 10 s"') as caught:
        carry_out(planned, Wanted("en-de", tmp_path), began=5.0, workers=1, progress=False)
    assert caught.value.place == f"{tmp_path / 'build.toml'}:7"
    record = BuildRecord.read(tmp_path)
    assert record.started is None
    assert list(record.stages) == ["fetch"]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(CheckpointError, match="is not the record of a build"):
        build_of(tmp_path, plan())


def fill(mirror: CorpusMirror) -> None:
    mirror.add(GOOD, "/a%20b/%C3%A9.tsv", PAIRS, ext="tsv")
    mirror.entries[-1]["url"] = mirror.url("/a b/\u00e9.tsv")
    mirror.add("Local-gone-1-eng-deu", "/gone.tsv", PAIRS, ext="tsv")
    mirror.add("Local-french-1-eng-fra", "/french.tsv", PAIRS, ext="tsv")
    mirror.add("Local-damaged-1-eng-deu", "/damaged.tsv.gz", b"\x1f\x8b no gzip", ext="tsv.gz")
    french = "".join(map("{}\t{}\n".format, SENTENCES["en"], SENTENCES["fr"])).encode()
    mirror.add("Local-mislabelled-1-eng-deu", "/mislabelled.tsv", french, ext="tsv")
    mirror.add("Local-unreachable-1-eng-deu", "/unreachable.tsv", PAIRS, ext="tsv")
    mirror.entries[-1]["url"] = "http://127.0.0.1:9/unreachable.tsv"  # discard: nobody listens
    del mirror.files["/gone.tsv"]


def builder(folder: Path, mirror: CorpusMirror, ids: list[str], *, needed: bool) -> _Build:
    index = folder / "index.jsonl"
    index.write_bytes(mirror.index())
    return build_of(folder, plan(*ids, index=str(index), needed=needed), said=[])


@pytest.fixture
def no_second_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.corpus.download, "ATTEMPTS", 1)


@pytest.mark.usefixtures("no_second_attempt")
def test_a_corpus_that_cannot_be_had_is_left_out_and_said(tmp_path: Path) -> None:
    said: list[str] = []
    with corpus_mirror() as mirror:
        fill(mirror)
        made = builder(tmp_path, mirror, [*NOT_TO_BE_HAD, GOOD], needed=False)
        made.say = said.append
        (text,) = made.fetch()
    facts = made.record.stages["fetch"].facts
    assert (text["id"], text["lines"]) == (GOOD, 20)
    assert facts["left_out"].keys() == NOT_TO_BE_HAD.keys()
    for did, why in NOT_TO_BE_HAD.items():
        assert why in facts["left_out"][did]
        assert any(f"{did} is left out" in line for line in said)


@pytest.mark.usefixtures("no_second_attempt")
@pytest.mark.parametrize("did", NOT_TO_BE_HAD)
def test_a_corpus_that_was_chosen_by_hand_is_one_error(did: str, tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        fill(mirror)
        with pytest.raises(dragoman.DragomanError, match=NOT_TO_BE_HAD[did]) as error:
            builder(tmp_path, mirror, [did, GOOD], needed=True).fetch()
    assert "\n" not in str(error.value)
    assert error.value.remedy


@pytest.mark.usefixtures("no_second_attempt")
def test_without_any_training_text_each_reason_is_said(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        fill(mirror)
        with pytest.raises(CorpusError, match="can be fetched") as error:
            builder(tmp_path, mirror, [*NOT_TO_BE_HAD], needed=False).fetch()
    assert all(why in str(error.value) for why in NOT_TO_BE_HAD.values())
