"""The stage `fetch` of a build: a corpus that cannot be had is left out, and said."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import dragoman.corpus.download
from dragoman.base.errors import CorpusError
from dragoman.builds.build import _Build
from dragoman.builds.plan import BuildPlan, PlannedCorpus, PlannedStage
from dragoman.builds.record import Stages
from dragoman.run.budget_plan import Place
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
    plan = BuildPlan(
        pair="en-de",
        budget="1h",
        corpus=tuple(PlannedCorpus(id=did, use="train", needed=needed) for did in ids),
        stage=tuple(PlannedStage(name=name, share=1) for name in ("fetch", "clean", "train")),
    )
    said = folder / "said.txt"

    def print_line(line: str) -> None:
        with said.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    made = _Build(plan, folder, Place(), index, 1, False, None, lambda _: None)
    made.say = print_line
    made.stages = Stages(folder, plan, 3600.0, began=time.time(), ended=lambda _: None)
    return made


@pytest.fixture(autouse=True)
def no_second_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.corpus.download, "ATTEMPTS", 1)


def test_a_corpus_that_cannot_be_had_is_left_out_and_said(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        fill(mirror)
        ids = [*NOT_TO_BE_HAD, GOOD]
        made = builder(tmp_path, mirror, ids, needed=False)
        (text,) = made.fetch()
    facts = made.stages.record.stages["fetch"].facts
    assert (text["id"], text["lines"]) == (GOOD, 20)
    assert facts["left_out"].keys() == NOT_TO_BE_HAD.keys()
    said = (tmp_path / "said.txt").read_text(encoding="utf-8")
    for did, why in NOT_TO_BE_HAD.items():
        assert why in facts["left_out"][did]
        assert f"{did} is left out" in said


@pytest.mark.parametrize("did", NOT_TO_BE_HAD)
def test_a_corpus_that_was_chosen_by_hand_is_one_error(did: str, tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        fill(mirror)
        with pytest.raises(dragoman.DragomanError, match=NOT_TO_BE_HAD[did]) as error:
            builder(tmp_path, mirror, [did, GOOD], needed=True).fetch()
    assert "\n" not in str(error.value)
    assert error.value.remedy


def test_without_any_training_text_each_reason_is_said(tmp_path: Path) -> None:
    with corpus_mirror() as mirror:
        fill(mirror)
        with pytest.raises(CorpusError, match="can be fetched") as error:
            builder(tmp_path, mirror, [*NOT_TO_BE_HAD], needed=False).fetch()
    assert all(why in str(error.value) for why in NOT_TO_BE_HAD.values())
