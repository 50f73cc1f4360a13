"""Pairs from a teacher behind an address: what is asked, what is dropped, what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import ConfigError, CorpusError, MachineError
from fake_teacher import PRICE_IN, PRICE_OUT, FakeTeacher, teaching
from real_text import real_lines

PRICES = {"price_in": f"{PRICE_IN} USD", "price_out": f"{PRICE_OUT} USD"}
ENGLISH, GERMAN = real_lines("train", "en")[:300], real_lines("train", "de")[:300]
KNOWN = dict(zip(ENGLISH, GERMAN, strict=True))
TEXT, RIGHT = ENGLISH[0], GERMAN[0]


def taught(folder: Path, teacher: FakeTeacher, lines: list[str], **more: Any) -> dragoman.Taught:
    (folder / "text").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    options = {"languages": "en-de", "model": "large", **more}
    return dragoman.ask_teacher(teacher.url, folder / "text", folder / "pairs.tsv", **options)


@pytest.mark.system
def test_pairs_are_in_order_and_each_line_is_asked_once(tmp_path: Path) -> None:
    lines = [*ENGLISH, "", *ENGLISH[:50]]
    with teaching(KNOWN.__getitem__) as teacher:
        made = taught(tmp_path, teacher, lines, **PRICES)
    pairs = [line.split("\t") for line in made.output.read_text("utf-8").splitlines()]
    assert pairs == [[line, KNOWN[line]] for line in lines if line]
    assert (made.lines, made.pairs, made.dropped) == (351, 350, {"empty": 1})
    assert set(teacher.billed.values()) == {1}
    assert (made.tokens_in, made.tokens_out) == tuple(teacher.tokens)
    assert made.cost == pytest.approx(teacher.bill)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "pairs.tsv", "pairs.tsv.json"}


def test_what_was_asked_is_kept_and_the_key_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_TEACHER_KEY", "secret-key")
    (tmp_path / "prompt").write_text("To {target}, {not a place}:{terms}\n{text}", "utf-8")
    (tmp_path / "terms").write_text("man\tHerr\nzebra\tZebra\n", "utf-8")
    with teaching(lambda line: "Ein Herr.") as teacher:
        made = taught(
            tmp_path, teacher, ["A man {source}."], prompt=tmp_path / "prompt",
            terms=tmp_path / "terms", fields=["temperature=0.5", "max_tokens=null", 'stop=["x"]'],
        )  # fmt: skip
    (request,) = teacher.requests
    question = "To German, {not a place}: Use these translations: man = Herr.\nA man {source}."
    assert request == {
        "model": "large",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0.5,
        "stop": ["x"],
    }
    assert teacher.headers[0]["Authorization"] == "Bearer secret-key"
    manifest = json.loads(made.manifest.read_text("utf-8"))
    assert manifest["asked"]["prompt"].startswith("To {target}")
    assert manifest["asked"]["terms"] == {"man": "Herr", "zebra": "Zebra"}
    assert (manifest["pairs"], manifest["tokens_out"]) == (1, made.tokens_out)
    assert "secret" not in made.manifest.read_text("utf-8")


ANSWERS: dict[str, tuple[Any, str]] = {
    "apology": ("I'm sorry, but I can't translate that.", "refused"),
    "filter": ({"finish_reason": "content_filter", "message": {"content": "Ein"}}, "refused"),
    "refusal": ({"message": {"content": None, "refusal": "I will not."}}, "refused"),
    "most tokens": ({"finish_reason": "length", "message": {"content": RIGHT}}, "cut_off"),
    "nothing": ("", "empty"),
    "null": ({"message": {"content": None}}, "empty"),
    "explained": (f"{RIGHT}\n\nNote: Büsche means bushes.", "explained"),
    "lead": (f"Sure! Here is the translation: {RIGHT}", "explained"),
    "label": (f"German translation: {RIGHT}", "explained"),
    "bold": (f"**{RIGHT}**", "markdown"),
    "fence": (f"```{RIGHT}```", "markdown"),
    "long": (" ".join(GERMAN[1:12]), "length"),
    "short": ("Ja.", "length"),
    "copied": (TEXT, "copied"),
    "loop": ("Zwei junge " * 8, "repeating"),
    "French": ("Deux jeunes hommes blancs sont dehors près de nombreux buissons.", "language"),
    "strange status": (400, "not_allowed"),
}


@pytest.mark.system
@pytest.mark.parametrize(("answer", "reason"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_no_translation_is_counted(
    answer: Any, reason: str, tmp_path: Path
) -> None:
    lines = [ENGLISH[5], TEXT, ENGLISH[6]]
    with teaching(lambda line: answer if line == TEXT else KNOWN[line]) as teacher:
        made = taught(tmp_path, teacher, lines, at_once=1)
    assert made.dropped == {reason: 1}
    assert made.pairs == 2


@pytest.mark.parametrize(
    "answer", [f'"{RIGHT}"', f"„{RIGHT}“", f"  {RIGHT}\n", f"<think>\nHm.\n</think>\n\n{RIGHT}"]
)
def test_quotation_marks_and_thoughts_are_no_part_of_a_translation(
    answer: str, tmp_path: Path
) -> None:
    with teaching(lambda _: answer) as teacher:
        made = taught(tmp_path, teacher, [TEXT], direction="back")
    assert made.output.read_text("utf-8") == f"{RIGHT}\t{TEXT}\n"


@pytest.mark.system
def test_real_translations_are_not_dropped(tmp_path: Path) -> None:
    with teaching(KNOWN.__getitem__) as teacher:
        made = taught(tmp_path, teacher, ENGLISH)
    assert made.dropped == {}


@pytest.mark.system
def test_errors_that_pass_are_asked_again(tmp_path: Path) -> None:
    with teaching(KNOWN.__getitem__, fault_share=0.3) as teacher:
        made = taught(tmp_path, teacher, ENGLISH[:60], at_once=16, **PRICES)
    assert made.pairs == 60
    assert len(teacher.faults) >= 6
    assert set(teacher.billed.values()) == {1}
    assert made.cost is not None
    assert teacher.bill <= made.cost <= 1.5 * teacher.bill, "lost answers may be billed"


@pytest.mark.system
@pytest.mark.parametrize("status", [401, 402, 403, 404, 400, 302])
def test_a_server_that_refuses_us_ends_the_work(status: int, tmp_path: Path) -> None:
    with teaching(lambda _: status) as teacher, pytest.raises(MachineError) as error:
        taught(tmp_path, teacher, ENGLISH[:30])
    assert f"the server answers {status}" in error.value.problem
    assert error.value.remedy
    assert sum(teacher.asked.values()) <= 16, "no more than were asked at once"


@pytest.mark.system
def test_the_limit_holds_and_more_money_goes_on(tmp_path: Path) -> None:
    with teaching(KNOWN.__getitem__) as teacher:
        with pytest.raises(ConfigError, match=r"spend: the limit of 0\.02 USD is reached") as error:
            taught(tmp_path, teacher, ENGLISH, spend="0.02 USD", **PRICES)
        assert 0.8 * 0.02 < teacher.bill <= 0.02
        draft = tmp_path / ".pairs.tsv.partial"
        assert str(draft) in error.value.remedy
        num_paid = sum(teacher.billed.values())
        assert 0 < len(draft.read_text("utf-8").splitlines()) <= num_paid
        made = taught(tmp_path, teacher, ENGLISH, spend="1 USD", **PRICES)
    assert made.pairs == len(ENGLISH)
    assert set(teacher.billed.values()) == {1}, "what was paid for is not asked again"
    assert made.cost == pytest.approx(teacher.bill)


def test_a_limit_of_tokens(tmp_path: Path) -> None:
    with teaching(KNOWN.__getitem__) as teacher:
        with pytest.raises(ConfigError, match="the limit of 3000 tokens is reached"):
            taught(tmp_path, teacher, ENGLISH, most_tokens=3000)
        assert 2000 < sum(teacher.tokens) <= 3000


@pytest.mark.system
@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"spend": "1 USD"}, "spend: needs the prices of a million tokens"),
        ({"spend": "1 EUR", **PRICES}, "in the currency of spend"),
        ({"price_in": "1 USD"}, "and price_out must both be given"),
        ({"most_tokens": 5, **PRICES}, "most_tokens: has no effect beside prices"),
        ({"model": ""}, "model: which model shall answer"),
        ({"languages": "english"}, "languages: 'english' is not a pair"),
        ({"fields": ["temperature"]}, "fields: 'temperature' is not NAME=JSON"),
        ({"fields": ["messages=[]"]}, "is not NAME=JSON"),
    ],
)
def test_wrong_settings_are_refused(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    with teaching(KNOWN.__getitem__) as teacher, pytest.raises(ConfigError, match=words):
        taught(tmp_path, teacher, ENGLISH[:3], **more)
    assert not teacher.asked


def test_a_prompt_without_a_place_and_terms_without_a_tab_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("man Herr\n", "utf-8")
    with teaching(KNOWN.__getitem__) as teacher:
        with pytest.raises(ConfigError, match=r"prompt: has no \{text\}"):
            taught(tmp_path, teacher, ENGLISH[:3], prompt=tmp_path / "bad")
        with pytest.raises(CorpusError, match="bad, line 1: is not a term and its translation"):
            taught(tmp_path, teacher, ENGLISH[:3], terms=tmp_path / "bad")


@pytest.mark.parametrize(
    ("address", "is_refused"),
    [
        ("http://example.com/v1", True),
        ("http://8.8.8.8/v1", True),
        ("ftp://127.0.0.1/", True),
        ("example.com", True),
        ("https://example.com/v1", False),
        ("http://10.0.0.5:8000/v1", False),
        ("http://localhost:11434/v1", False),
        ("http://[::1]:1/v1", False),
    ],
)
def test_a_key_does_not_travel_in_the_open(address: str, is_refused: bool) -> None:
    from dragoman.inference.chat import Server

    if not is_refused:
        assert Server(address, "key").key == "key"
        return
    with pytest.raises(ConfigError):
        Server(address, "key")
