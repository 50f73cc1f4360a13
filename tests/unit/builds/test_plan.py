"""build.toml as it is written and read, and the record of its stages."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dragoman.base.errors import CheckpointError, ConfigError, DivergenceError
from dragoman.builds.plan import BuildPlan, PlannedCorpus, PlannedStage, read_plan
from dragoman.builds.record import RECORD, BuildRecord, BuildStage, OverError, Stages
from dragoman.builds.report import rows
from dragoman.corpus.directions import parse_pair
from dragoman.telemetry.host import HourlyPrice


def plan(**changes: object) -> BuildPlan:
    shares = (("fetch", 0.1), ("clean", 0.1), ("train", 0.8))
    stages = [PlannedStage.model_validate({"name": n, "share": s, "why": n}) for n, s in shares]
    values: dict[str, object] = {
        "pair": "en-de",
        "budget": "100s",
        "corpus": (PlannedCorpus(id="A-b-1-eng-deu", use="train", licence="CC0"),),
        "stage": tuple(stages),
    }
    return BuildPlan.model_validate(values | changes)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_plan(tmp_path) is None
    written = plan(set=("model.d_model=64",), mono="/mono.de")
    written.save(tmp_path)
    assert read_plan(tmp_path) == written


def test_a_plan_that_is_no_text_may_be_saved_again(tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_bytes('pair = "en-de" # schön'.encode("latin1"))
    with pytest.raises(ConfigError, match=r"build\.toml: .*not UTF-8; save it as UTF-8, or remove"):
        read_plan(tmp_path)
    (tmp_path / "build.toml").unlink()
    (tmp_path / "build.toml").mkdir()
    with pytest.raises(ConfigError, match="make it readable, or remove it to plan again"):
        read_plan(tmp_path)


def test_shares_are_relative_and_a_share_of_nothing_is_no_stage() -> None:
    stages = [*plan().stage[:2], plan().stage[2].model_copy(update={"share": 1.8})]
    none = PlannedStage(name="reverse", share=0.0)
    shares = plan(stage=(none, *stages)).shares()
    assert shares == pytest.approx({"fetch": 0.05, "clean": 0.05, "train": 0.9})


@pytest.mark.parametrize(
    "text", ["en", "en_de", "en-de-fr-it-es", "en-a-de", "../x-de", "e-de", "en-", "-en"]
)
def test_words_that_are_no_pair_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a pair of languages; write source and target"):
        parse_pair(text)


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("en-de", ("en", "de")),
        ("EN-DE", ("en", "de")),
        ("en-pt_BR", ("en", "pt-BR")),
        ("en-pt-BR", ("en", "pt-BR")),
        ("pt-BR-en", ("pt-BR", "en")),
        ("en-ca-valencia", ("en", "ca-valencia")),
        ("pt_BR-en", ("pt-BR", "en")),
        ("sr-Latn-en", ("sr-Latn", "en")),
        ("en-sr_Latn", ("en", "sr-Latn")),
        ("en-sr-Latn-RS", ("en", "sr-Latn-RS")),
        ("sr-Latn-sr-Cyrl", ("sr-Latn", "sr-Cyrl")),
        ("de-DE-en-GB", ("de-DE", "en-GB")),
        ("es-419-en", ("es-419", "en")),
        ("zh-Hant-TW-zh-CN", ("zh-Hant-TW", "zh-CN")),
        ("eng_Latn-fra_Latn", ("eng_Latn", "fra_Latn")),
        ("en-pt-br", ("en", "pt-BR")),
        ("EN-PT-BR", ("en", "pt-BR")),
        ("pt-br-en", ("pt-BR", "en")),
        ("pt-BR-DE", ("pt-BR", "de")),
        ("en-zh-tw", ("en", "zh-TW")),
        ("de-at-fr", ("de-AT", "fr")),
        ("fr-BE-nl", ("fr-BE", "nl")),
        ("zh-hans-en", ("zh-Hans", "en")),
        ("en-latn-de", ("en-Latn", "de")),
        ("en-sr@latin", ("en", "sr-Latn")),
        ("sr@latin-en", ("sr-Latn", "en")),
        ("sr_RS@latin-en", ("sr-Latn-RS", "en")),
    ],
)
def test_a_pair_may_have_hyphens_inside_its_codes(text: str, languages: tuple[str, str]) -> None:
    assert parse_pair(text) == languages
    assert parse_pair(str(parse_pair(text))) == languages


@pytest.mark.parametrize(
    "text", ["en-DE-FR", "en-de-fr", "en-eu-es", "fr-ga-ie", "ar-ps-af", "de-ch-fr"]
)
def test_a_pair_that_can_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"may be .* or .*; write _ inside a code"):
        parse_pair(text)
    source, region, target = text.split("-")
    wanted = (f"{source}-{region.upper()}", target.lower())
    assert parse_pair(f"{source}_{region}-{target}") == wanted


@pytest.mark.parametrize("text", ["en-en", "en-EN", "pt-BR-pt-PT"])
def test_one_language_twice_is_no_pair(text: str) -> None:
    with pytest.raises(ConfigError, match="are the same language; write two languages"):
        parse_pair(text)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ([("reverse", 1)], "the stage back-translate has no share"),
        ([("reverse", 1), ("back-translate", 1), ("train-more", 1)], "reverse needs text: mono"),
        ([("student", 1)], "the stage translate has no share"),
        ([("train", 1)], "the stage train is listed twice"),
    ],
)
def test_incomplete_or_repeated_stages_are_refused(
    more: list[tuple[str, int]], problem: str
) -> None:
    added = tuple(PlannedStage.model_validate({"name": n, "share": s}) for n, s in more)
    with pytest.raises(ValueError, match=problem):
        plan(stage=(*plan().stage, *added))


def stages_of(
    folder: Path, budget_s: float = 100.0, *, began: float | None = None
) -> tuple[Stages, list[str]]:
    ended: list[str] = []
    began = time.time() if began is None else began
    made = Stages(
        folder, plan(), budget_s, began=began, ended=lambda stage: ended.append(stage.name)
    )
    return made, ended


def killed(_: BuildStage) -> tuple[Path, dict[str, int]]:
    raise KeyboardInterrupt


def test_a_stage_is_done_once_and_gets_its_share_of_the_time_left(tmp_path: Path) -> None:
    began = time.time() - 10
    stages, ended = stages_of(tmp_path, began=began)
    calls: list[float] = []
    output = tmp_path / "output"
    output.touch()

    def work(stage: BuildStage) -> tuple[Path, dict[str, int]]:
        calls.append(stage.seconds_s)
        return output, {"found": 1}

    assert stages.do("fetch", "a", work).facts == {"found": 1}
    assert stages.do("fetch", "a", work).facts == {"found": 1}
    assert stages.do("train", "a", work).spent_s == pytest.approx(0, abs=5)
    assert calls == pytest.approx([8.9, 89], abs=2)
    stages.do("fetch", "other text", work)
    assert len(calls) == 3
    assert ended == ["fetch", "train", "fetch"]
    # The next command goes on by the same clock, and does what has lost its output again.
    later, _ = stages_of(tmp_path)
    assert later.started == began
    later.do("train", "a", work)
    assert len(calls) == 3
    output.unlink()
    later.do("train", "a", work)
    assert len(calls) == 4


def test_a_stage_that_was_killed_keeps_its_time_unless_it_has_nothing_to_show(
    tmp_path: Path,
) -> None:
    stages, _ = stages_of(tmp_path)
    seen: list[float] = []

    def work(stage: BuildStage) -> tuple[Path, dict[str, int]]:
        seen.append(stage.started)
        return tmp_path, {}

    with pytest.raises(KeyboardInterrupt):
        stages.do("train", "a", killed)
    begun = BuildRecord.read(tmp_path).stages["train"]
    assert begun.ended is None
    stages, _ = stages_of(tmp_path)
    stages.do("train", "a", work)
    assert seen == [begun.started]
    with pytest.raises(KeyboardInterrupt):
        stages.do("train", "b", killed)
    late = stages.record.stages["train"].model_copy(update={"started": time.time() - 900})
    stages.record = stages.record.model_copy(update={"stages": {"train": late}})
    stages.do("train", "b", work, has_begun=lambda: False)
    assert seen[-1] == pytest.approx(time.time(), abs=30)


def test_a_stage_that_was_too_short_gets_the_time_of_the_next_budget(tmp_path: Path) -> None:
    short, _ = stages_of(tmp_path)
    fetched = short.do("fetch", "a", lambda _: (tmp_path, {}))
    with pytest.raises(KeyboardInterrupt):
        short.do("train", "a", killed)
    short.forget_clock()
    long, _ = stages_of(tmp_path, 1000.0)
    done = long.do("train", "a", lambda _: (tmp_path, {}))
    assert done.seconds_s == pytest.approx(999, abs=5)
    assert long.do("fetch", "a", killed) == fetched


def test_no_stage_begins_after_the_budget(tmp_path: Path) -> None:
    stages, _ = stages_of(tmp_path, began=time.time() - 200)
    with pytest.raises(OverError, match=r"the budget of 1 min 40 s was over before train"):
        stages.do("train", "a", killed)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(CheckpointError, match="is not the record of a build"):
        stages_of(tmp_path)


def test_the_table_shows_the_cost_and_the_gain_of_each_stage() -> None:
    def done(name: str, seconds_s: float, **facts: object) -> BuildStage:
        values = {"name": name, "inputs": "", "started": 1000.0, "seconds_s": 1.0}
        return BuildStage.model_validate(values | {"ended": 1000.0 + seconds_s, "facts": facts})

    texts = [{"id": "a", "use": "train", "lines": 900, "bytes": 5000}]
    scores = {"parameters": 60_000, "steps": 500, "dev_bleu": 20.0, "test_bleu": 21.0}
    records = [
        done("fetch", 5, texts=texts, left_out={"b": "gone"}),
        done("clean", 6, pairs_in=900, pairs=800),
        done("train", 50, **scores),
        done("train-more", 20, **scores | {"dev_bleu": 22.5, "test_bleu": 22.0}),
    ]
    stages = (
        *plan().stage,
        *(
            PlannedStage.model_validate({"name": name, "share": 0.2})
            for name in ("reverse", "back-translate", "train-more")
        ),
    )
    table = rows(
        plan(stage=stages, mono="/m"),
        {one.name: one for one in records},
        started=990.0,
        budget_s=100.0,
        price=HourlyPrice(36.0, "USD"),
    )
    by_name = {row[0]: row for row in table}
    assert by_name["fetch"][3:6] == (
        "5 s",
        "0.05 USD",
        "1 corpus, 900 pairs, 5 kB of text; 1 left out",
    )
    assert by_name["clean"][5] == "800 of 900 pairs to train on"
    assert by_name["train"][6] == "dev 20.0 BLEU, test 21.0 BLEU"
    assert by_name["train-more"][6].endswith("+1.0 on test against the pairs alone")
    assert by_name["all"][3:5] == ("1 min 00 s", "0.60 USD")


def test_a_stage_that_fails_and_is_left_out_keeps_its_time(tmp_path: Path) -> None:
    stages, _ = stages_of(tmp_path)

    def fails(_: BuildStage) -> tuple[Path, dict[str, object]]:
        time.sleep(0.2)
        raise DivergenceError("it diverged", place="step 7")

    with pytest.raises(DivergenceError):
        stages.do("train", "inputs", fails)
    assert not stages.was_skipped("clean", "train")
    stages.skip("clean", "no room")
    stages.skip("train", "it diverged")
    again, _ = stages_of(tmp_path)
    assert again.was_skipped("clean")
    found = rows(
        plan(),
        again.record.stages,
        started=again.started,
        budget_s=100.0,
        price=HourlyPrice(3600.0, "USD"),
    )
    table = {row[0]: row for row in found}
    assert table["clean"][3:6] == ("", "", "left out: no room")
    assert (again.record.stages["train"].spent_s or 0.0) >= 0.2
    assert table["train"][3] != ""
    assert table["train"][4].endswith("USD")
    assert table["train"][5] == "left out: it diverged"
