"""dragoman.compare: which systems it takes, and what it says of those it does not."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest

import dragoman
from dragoman.cli import main
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import Compared, EventWriter
from parallel_text import sentences, write_lines, write_pairs
from real_text import real_lines
from small_run import small_run
from tiny_recipe import TINY

TWO = ("de", "fr")


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "test.en", tmp_path / "test.de"
    for path, lines in zip(
        paths, (real_lines("test", "en"), real_lines("test", "de")), strict=True
    ):
        path.write_text("".join(f"{line}\n" for line in lines[:24]), "utf-8")
    return paths


def run_of_two_languages() -> RunDirectory:
    """A run from English into TWO; the French is German with "und" before each sentence."""
    english, german = sentences(60)
    write_lines(Path("train.en"), english)
    write_lines(Path("train.de"), german)
    write_lines(Path("train.fr"), [f"und {line}" for line in german])
    more = '{source = "train.en", target = "train.fr", target_language = "fr"}'
    named = 'target = "train.de", target_language = "de"}'
    Path("tiny.toml").write_text(TINY.replace('target = "train.de"}', f"{named}, {more}"))
    settings = ["train.max_steps=1", "evaluate.bleu_pairs=0", "data.batch_tokens=256"]
    settings += ["corpus.target_language=de", "corpus.source_language=en"]
    return dragoman.train(dragoman.load_recipe("tiny.toml", settings))


@pytest.mark.system
def test_runs_checkpoints_exports_and_files_are_compared(texts: tuple[Path, Path]) -> None:
    run = small_run()
    (checkpoint,) = run.checkpoints.glob("step-*")
    systems: list[Path] = [run.path, checkpoint]
    for kind in ("huggingface", "ctranslate2"):
        done = dragoman.export(run, to=kind)
        assert done.path.is_relative_to(run.path)  # where a checkpoint's run might be looked for
        systems.append(done.path)
    translations = texts[1].with_name("translations")
    lines = dragoman.translate(run, texts[0].read_text("utf-8").splitlines())
    translations.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    systems.append(translations)
    for system in systems:
        (found,) = dragoman.compare(run, system, tests=[texts])
        assert found.result.ties == 24, system
        assert found.better is None
        assert found.counted_pairs > 1000
        assert found.result.by_frequency


@pytest.mark.system
def test_the_better_of_two_is_named_and_printed(
    texts: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "compare",
        str(small_run().path),
        str(texts[1]),
        "--test",
        ",".join(map(str, texts)),
    ]
    assert main(words) == 0
    assert "B is better: every p is below 0.05." in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["better"] == str(texts[1])
    bleu = found["result"]["scores"]["bleu"]
    assert bleu["second"] == pytest.approx(100)

    page = dragoman.report(small_run())._repr_html_()
    rows = {row.name: row for one in dragoman.report(small_run()).answers for row in one.evidence}
    row = rows[f"BLEU on {texts[0]}, test.de, beside {texts[1]}"]
    assert row.value == pytest.approx(bleu["first"])
    assert row.text.startswith(
        f"{bleu['first']:.2f}, the other 100.00, p {bleu['p_bootstrap']:.4f}"
    )
    assert row.text.endswith("shown to be better: the other")
    assert f"chrF on {texts[0]}, test.de, beside {texts[1]}" in rows
    assert "shown to be better: the other" in page

    result = found["result"]
    place = f"on {texts[0]}, test.de, beside {texts[1]}"
    ahead = f"{result['first_wins']}; equal in {result['ties']}, behind in {result['second_wins']}"
    assert rows[f"sentences ahead {place}"].text.startswith(ahead)


def rows_of(run: RunDirectory) -> dict[str, str]:
    """The rows of evidence in a report."""
    return {row.name: row.text for one in dragoman.report(run).answers for row in one.evidence}


@pytest.mark.system
def test_a_report_keeps_comparisons_apart(
    texts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the folders of test sets and of systems; one with itself, or named twice, stands once."""
    run = RunDirectory.open(shutil.copytree(small_run().path, tmp_path / "run"))
    names = []
    for folder, count in (("wmt22", 24), ("wmt23", 20)):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        for path, to in zip(texts, ("src.en", "ref.de"), strict=True):
            write_lines(Path(to), path.read_text("utf-8").splitlines()[:count])
        shutil.copy("ref.de", "out.de")
        (found,) = dragoman.compare(run, "out.de", tests=[("src.en", "ref.de")])
        names.append(found.test)
    assert names == [f"{tmp_path}/{folder}/src.en, ref.de" for folder in ("wmt22", "wmt23")]
    twice = [("src.en", "ref.de")] * 2
    assert len(dragoman.compare(run, "../run", tests=twice)) == 2
    rows = rows_of(run)
    for folder, name in zip(("wmt22", "wmt23"), names, strict=True):
        assert f"BLEU on {name}, beside {tmp_path / folder / 'out.de'}" in rows


@pytest.mark.system
def test_a_report_keeps_the_languages_of_a_model_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare German word may be a common word in another language of the model."""
    monkeypatch.chdir(tmp_path)
    run = run_of_two_languages()
    write_lines(tmp_path / "source", sentences(60)[0][:2])
    write_lines(tmp_path / "target", ["und"] * 2)
    found = {}
    for language in TWO:
        tests = [("source", "target")]
        (one,) = dragoman.compare(run, run, tests=tests, target_language=language)
        assert one.test == f"{tmp_path}/source, target ({language})"
        found[language] = ([group.name for group in one.result.by_frequency], one.counted_pairs)
    assert (found["de"][0], found["fr"][0]) == (["0"], ["10 to 99"])
    assert max(counted for _, counted in found.values()) <= 60
    rows = rows_of(run)
    assert f"BLEU on {tmp_path}/source, target (de), beside {run.path.absolute()}" in rows


def test_scores_that_disagree_name_no_winner(
    texts: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    spelt, cut = Path("spelt.de"), Path("cut.de")
    words = [line.split() for line in texts[1].read_text("utf-8").splitlines()]
    # BLEU counts whole words, chrF letters.
    spelt.write_text("".join(" ".join(f"{word}e" for word in line) + "\n" for line in words))
    cut.write_text("".join(" ".join(line[: 1 + len(line) // 2]) + "\n" for line in words))
    assert main(["compare", "spelt.de", "cut.de", "--test", ",".join(map(str, texts))]) == 0
    said = capsys.readouterr().out
    assert "Neither is shown to be better: the scores disagree." in said


def test_a_report_has_nothing_of_an_earlier_comparison(tmp_path: Path) -> None:
    run = RunDirectory.open(shutil.copytree(small_run().path, tmp_path / "run"))
    with EventWriter(run.events) as events:
        for metric in ("bleu", "chrf", "comet", "bleu", "chrf"):
            events.write(
                Compared(
                    name="news",
                    pairs=40,
                    model="ours",
                    other="theirs",
                    metric=metric,
                    value=1.0,
                    other_value=2.0,
                    p_bootstrap=1.0,
                    p_randomisation=1.0,
                    signature="",
                    better="neither",
                    ahead=1,
                    behind=1,
                )
            )
    rows = rows_of(run)
    assert "chrF on news, beside theirs" in rows
    assert "COMET on news, beside theirs" not in rows


def test_a_run_that_cannot_be_written_to_is_compared(
    texts: tuple[Path, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run().path, run)
    shutil.rmtree(run / "events")
    (run / "events").write_text("in the way")
    (found,) = dragoman.compare(run, texts[1], tests=[texts])
    assert found.better == str(texts[1])


@pytest.mark.system
def test_a_model_of_small_letters_is_evaluated_as_it_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(60))
    Path("tiny.toml").write_text(TINY)
    settings = ["corpus.lowercase=true", "train.max_steps=1", "data.batch_tokens=256"]
    run = dragoman.train(dragoman.load_recipe("tiny.toml", settings))
    (found,) = dragoman.compare(run, run, tests=[("train.en", "train.de")])
    scored = dragoman.evaluate(run, source="train.en", reference="train.de").scores
    for name, score in found.result.scores.items():
        assert scored[name].value == pytest.approx(score.first)
        assert "case:lc" in score.signature
        assert "case:lc" in scored[name].signature


def test_bad_input_is_named(texts: tuple[Path, Path], tmp_path: Path) -> None:
    run, lost = small_run(), tmp_path / "lost"
    with pytest.raises(dragoman.ConfigError, match="lost: no such run, export or file"):
        dragoman.compare(run, lost, tests=[texts])
    with pytest.raises(dragoman.ConfigError, match="belongs to one test set"):
        dragoman.compare(run, texts[1], tests=[texts, texts])
    short = tmp_path / "short"
    short.write_text("one line\n")
    with pytest.raises(dragoman.CorpusError, match="1 translations for 24 references"):
        dragoman.compare(run, short, tests=[texts])
    with pytest.raises(dragoman.CorpusError, match="24 lines, the reference 1"):
        dragoman.compare(run, run, tests=[(texts[0], short)])
    with pytest.raises(dragoman.ConfigError, match="no model has a test set"):
        dragoman.compare(run, run)


def test_a_name_that_no_record_can_hold_is_refused_before_a_model_is_loaded(
    texts: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    odd = shutil.copyfile(texts[0], tmp_path / os.fsdecode(b"t\xff.en"))
    monkeypatch.setattr("dragoman.api.systems.open_translator", None)
    monkeypatch.setattr("dragoman.run.run.evaluate", None)
    run, lines = str(small_run().path), str(texts[1])
    for words in (
        ["compare", run, run, "--test", f"{odd},{lines}"],
        ["compare", run, run, "--test", f"{texts[0]},{odd}"],
        ["compare", run, str(odd), "--test", f"{texts[0]},{lines}"],
        ["evaluate", run, "--source", str(odd), "--reference", lines],
    ):
        assert main(words) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert re.search(r"a file or folder has the byte 0xff in its name, .*; rename it$", said)
        assert str(odd.parent) in said


@pytest.mark.system
@pytest.mark.parametrize("lost", [0, 1])
def test_one_of_two_runs_may_have_lost_its_prepared_text(
    lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write_pairs(Path(), "train", sentences(60))
        Path("tiny.toml").write_text(TINY)
        settings = ["train.max_steps=1", "data.batch_tokens=256"]
        runs.append(dragoman.train(dragoman.load_recipe("tiny.toml", settings)).path.absolute())
    shutil.rmtree(tmp_path / ("first", "second")[lost] / "prepared")
    (found,) = dragoman.compare(*runs)
    assert found.test == "test"
    assert dragoman.compare(runs[1 - lost], runs[1 - lost])


def test_a_model_of_the_opposite_direction_is_refused(
    texts: tuple[Path, Path], tmp_path: Path
) -> None:
    back = tmp_path / "back"
    shutil.copytree(small_run().path, back)
    recipe = (back / "recipe.toml").read_text("utf-8")
    for side, language in (("source", "de"), ("target", "en")):
        recipe = re.sub(
            rf"^{side}_language = .*$", f'{side}_language = "{language}"', recipe, flags=re.M
        )
    (back / "recipe.toml").write_text(recipe, "utf-8")
    said = "back: translates de to en, and the other model en to de; name two models of the same"
    for tests in ([texts], []):
        with pytest.raises(dragoman.ConfigError, match=said):
            dragoman.compare(small_run(), back, tests=tests)


@pytest.mark.system
def test_an_export_that_writes_no_capitals_is_scored_in_lower_case(
    texts: tuple[Path, Path], tmp_path: Path
) -> None:
    exported = dragoman.export(small_run(), output=tmp_path / "folder").path
    lines = texts[1].read_text("utf-8")
    given = tmp_path / "given"
    given.write_text(lines.lower(), "utf-8")
    (cased,) = dragoman.compare(exported, given, tests=[texts])
    assert cased.result.scores["bleu"].second < 99
    recipe = (exported / "recipe.toml").read_text("utf-8")
    assert "\nlowercase = false\n" in recipe
    lowered = recipe.replace("\nlowercase = false\n", "\nlowercase = true\n")
    (exported / "recipe.toml").write_text(lowered, "utf-8")
    digests = exported / "digests.json"
    known = json.loads(digests.read_text())
    digest = hashlib.sha256(lowered.encode()).hexdigest()
    known["recipe.toml"] = {"sha256": digest, "bytes": len(lowered.encode())}
    digests.write_text(json.dumps(known))
    (found,) = dragoman.compare(exported, given, tests=[texts])
    assert found.result.scores["bleu"].second == pytest.approx(100)
    assert "case:lc" in found.result.scores["bleu"].signature


@pytest.mark.system
def test_a_language_without_spaces_has_its_tokenizer_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    english, german = sentences(60)
    chinese = ["".join(chr(0x4E00 + ord(letter)) for letter in line) for line in german]
    write_lines(Path("train.en"), english)
    write_lines(Path("train.de"), chinese)
    Path("tiny.toml").write_text(TINY)
    settings = ["corpus.target_language=zh-CN", "train.max_steps=1", "data.batch_tokens=256"]
    run = dragoman.train(dragoman.load_recipe("tiny.toml", settings))
    (signature,) = {one["bleu_signature"] for one in dragoman.read_events(run, "validated")}
    assert "tok:zh|" in signature
    assert "tok:zh|" in dragoman.evaluate(run).scores["bleu"].signature

    half = [line[: len(line) // 2] for line in chinese]
    write_lines(Path("half"), half)
    tests = [("train.en", "train.de")]
    (of_run,) = dragoman.compare(run, "half", tests=tests)
    (of_files,) = dragoman.compare("train.de", "half", tests=tests, target_language="zh")
    for found in (of_run, of_files):
        assert "tok:zh|" in found.result.scores["bleu"].signature
        assert found.result.scores["bleu"].second > 20
        assert found.result.by_length[0].size < 60  # of characters, not one "word" a line
