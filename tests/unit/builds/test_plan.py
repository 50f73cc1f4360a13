"""build.toml as it is written and read, and the table of its stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.base.errors import ConfigError
from dragoman.builds.plan import BuildPlan, PlannedCorpus, PlannedStage, read_plan
from dragoman.builds.record import BuildRecord, BuildStage
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
    with pytest.raises(
        ConfigError, match=r"build\.toml: .*not UTF-8; mend it, or remove it to plan again"
    ):
        read_plan(tmp_path)
    (tmp_path / "build.toml").unlink()
    (tmp_path / "build.toml").mkdir()
    with pytest.raises(ConfigError, match="directory; mend it, or remove it to plan again"):
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


def test_the_table_shows_the_cost_and_the_gain_of_each_stage() -> None:
    texts = [{"id": "a", "use": "train", "lines": 900, "bytes": 5000}]
    scores = {"parameters": 60_000, "steps": 500, "dev_bleu": 20.0, "test_bleu": 21.0}
    made: list[tuple[str, float, dict[str, object]]] = [
        ("fetch", 995, {"facts": {"texts": texts, "left_out": {"b": "gone"}}}),
        ("clean", 1001, {"facts": {"pairs_in": 900, "pairs": 800}}),
        ("train", 1050, {"facts": scores}),
        ("reverse", 1060, {"skipped": "it diverged"}),
        ("train-more", 1080, {"facts": scores | {"dev_bleu": 22.5, "test_bleu": 22.0}}),
    ]
    record = BuildRecord(started=990.0)
    for name, ended, values in made:
        values |= {"name": name, "started": record.last_s, "ended": ended}
        stage = BuildStage.model_validate(values)
        record = record.model_copy(update={"stages": {**record.stages, stage.name: stage}})
    more = [
        PlannedStage.model_validate({"name": name, "share": 0.2})
        for name in ("reverse", "back-translate", "train-more")
    ]
    planned = plan(stage=(*plan().stage, *more), mono="/m")
    table = {row[0]: row for row in rows(planned, record, 160.0, HourlyPrice(36.0, "USD"))}
    text = "1 corpus, 900 pairs, 5 kB of text; 1 left out"
    assert table["fetch"][3:5] == ("5 s (0.05 USD)", text)
    assert table["clean"][4] == "800 of 900 pairs to train on"
    assert table["train"][5] == "dev 20.0 BLEU, test 21.0 BLEU"
    assert table["reverse"][3:5] == ("10 s (0.10 USD)", "left out: it diverged")
    assert table["back-translate"][3:5] == ("", "")
    assert table["train-more"][5].endswith("+1.0 on test against the pairs alone")
    assert table["all"][2:4] == ("2 min 40 s (1.60 USD)", "1 min 30 s (0.90 USD)")
