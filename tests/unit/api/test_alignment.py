"""`dragoman.align`: documents in two languages become a corpus, and what is doubtful is told."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

import dragoman
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.cli.command_line import main
from dragoman.corpus.align import Band
from real_text import real_lines

Lines = list[str]
ENGLISH, GERMAN = real_lines("train", "en")[:1200], real_lines("train", "de")[:1200]


def documents(
    count: int, length: int, *, seed: int = 1
) -> tuple[list[Lines], list[Lines], set[tuple[str, str]]]:
    """Documents of both languages, a tenth of whose lines only one side has, and their pairs."""
    random = Random(seed)
    sources, targets, pairs = [], [], set()
    for start in range(0, count * length, length):
        one: Lines = []
        other: Lines = []
        for source, target in zip(
            ENGLISH[start : start + length], GERMAN[start : start + length], strict=True
        ):
            keeps = random.random() > 0.1, random.random() > 0.1
            one += [source] * keeps[0]
            other += [target] * keeps[1]
            if all(keeps):
                pairs.add((source, target))
            if random.random() < 0.05:
                other.append(random.choice(GERMAN).partition(" ")[0])
        sources.append(one)
        targets.append(other)
    return sources, targets, pairs


def write(folder: Path, side: str, texts: Sequence[Lines], name: str = "part{}.{}.txt") -> Path:
    place = folder / side
    place.mkdir(parents=True)
    for number, lines in enumerate(texts):
        place.joinpath(name.format(number, side)).write_text("\n".join(lines) + "\n", "utf-8")
    return place


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        found = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in found if any(row.values())]


def pairs_of(path: Path) -> set[tuple[str, str]]:
    return {(row["source"], row["target"]) for row in rows(path)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[dragoman.Aligned, set[tuple[str, str]]]:
    folder = tmp_path_factory.mktemp("documents")
    sources, targets, pairs = documents(8, 100)
    english, german = write(folder, "en", sources), write(folder, "de", targets)
    return dragoman.align(english, german, folder / "out", lines=True), pairs


def test_dropped_lines_and_headings_leave_the_other_pairs_right(
    made: tuple[dragoman.Aligned, set[tuple[str, str]]],
) -> None:
    aligned, pairs = made
    found = pairs_of(aligned.output / "pairs.tsv")
    assert len(found & pairs) / len(found) > 0.95
    assert len(found & pairs) / len(pairs) > 0.95
    assert len(aligned.documents) == 8
    assert aligned.pairs == len(rows(aligned.output / "pairs.tsv"))


def test_a_low_score_tells_a_wrong_pair(
    made: tuple[dragoman.Aligned, set[tuple[str, str]]],
) -> None:
    aligned, pairs = made
    scored = [*rows(aligned.output / "pairs.tsv"), *rows(aligned.output / "doubtful.tsv")]
    both = [row for row in scored if row["source"] and row["target"]]
    right = [float(row["score"]) for row in both if (row["source"], row["target"]) in pairs]
    wrong = [float(row["score"]) for row in both if (row["source"], row["target"]) not in pairs]
    assert len(wrong) >= 5
    higher = sum(one > other for one in right for other in wrong)
    assert higher / (len(right) * len(wrong)) > 0.9
    sure = sum(score >= 0.9 for score in right), sum(score >= 0.9 for score in wrong)
    assert sure[0] / sum(sure) > 0.98
    assert all(0.0 <= float(row["score"]) <= 1.0 for row in scored)


def test_documents_that_have_nothing_to_do_with_each_other_give_no_pairs(tmp_path: Path) -> None:
    english = write(tmp_path, "en", [ENGLISH[start : start + 80] for start in (0, 80, 160, 240)])
    german = write(tmp_path, "de", [GERMAN[start : start + 80] for start in (600, 680, 760, 840)])
    aligned = dragoman.align(english, german, tmp_path / "out")
    assert aligned.pairs < 0.1 * aligned.doubtful


@pytest.mark.parametrize("length", [60, 300])
def test_more_text_of_another_kind_does_not_become_sure(tmp_path: Path, length: int) -> None:
    english = write(tmp_path, "en", [ENGLISH[start : start + length] for start in (0, length)])
    german = write(tmp_path, "de", [GERMAN[600 + start :][:length] for start in (0, length)])
    aligned = dragoman.align(english, german, tmp_path / "out", lines=True)
    assert aligned.pairs <= 0.02 * aligned.doubtful


def test_text_that_one_side_alone_has_leaves_the_other_pairs_right(tmp_path: Path) -> None:
    starts = range(0, 240, 60)
    english = write(tmp_path, "en", [ENGLISH[start : start + 60] for start in starts])
    longer = [GERMAN[start : start + 60] + GERMAN[400 + 2 * start :][:120] for start in starts]
    german = write(tmp_path, "de", longer)
    aligned = dragoman.align(english, german, tmp_path / "out", lines=True)
    found = pairs_of(aligned.output / "pairs.tsv")
    right = found & {*zip(ENGLISH[:240], GERMAN[:240], strict=True)}
    assert len(right) > 0.9 * 240
    assert len(right) / len(found) > 0.95


@pytest.mark.system
def test_the_same_documents_give_the_same_bytes(
    made: tuple[dragoman.Aligned, set[tuple[str, str]]], tmp_path: Path
) -> None:
    aligned, _ = made
    folder = aligned.output.parent
    again = dragoman.align(folder / "en", folder / "de", tmp_path / "again", lines=True)
    for name in ("pairs.tsv", "doubtful.tsv", "doubtful.html"):
        assert (again.output / name).read_bytes() == (aligned.output / name).read_bytes()


def test_names_match_then_contents_and_the_rest_is_told(tmp_path: Path) -> None:
    english, german = tmp_path / "manual-en", tmp_path / "manual-de"
    for folder in (english / "a", german / "a"):
        folder.mkdir(parents=True)
    for number, name in enumerate(("a/guide.en.txt", "intro.txt", "ports.txt")):
        text = "".join(f"{one} {900 + 7 * number}\n" for one in ENGLISH[number * 40 :][:40])
        (english / name).write_text(text, "utf-8")
    for number, name in enumerate(("a/guide.de.txt", "intro.txt", "anschluesse.txt")):
        text = "".join(f"{one} {900 + 7 * number}\n" for one in GERMAN[number * 40 :][:40])
        (german / name).write_text(text, "utf-8")
    (german / "allein.txt").write_text("\n".join(GERMAN[700:720]), "utf-8")
    (german / "kaputt.txt").write_bytes(b"Stra\xdfe")
    (english / "brochure.pdf").write_bytes(b"%PDF-1.7")
    aligned = dragoman.align(english, german, tmp_path / "out")
    assert set(aligned.documents) == {
        ("a/guide.en.txt", "a/guide.de.txt"),
        ("intro.txt", "intro.txt"),
        ("ports.txt", "anschluesse.txt"),
    }
    assert aligned.by_content == 1
    assert aligned.alone == [str(german / "allein.txt")]
    assert set(aligned.unread) == {str(german / "kaputt.txt"), str(english / "brochure.pdf")}
    assert 'source_language = "en", target_language = "de"' in aligned.entry


@pytest.mark.system
def test_prepare_takes_the_entry_and_makes_paragraphs_of_neighbours(
    made: tuple[dragoman.Aligned, set[tuple[str, str]]], tmp_path: Path
) -> None:
    aligned, _ = made
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"name = 'own'\n[corpus]\ntrain = [{aligned.entry}]\nvalid_pairs = 20\n"
        "[corpus.context]\nsentences = 3\n[corpus.subword]\nvocab_size = 600\n",
        "utf-8",
    )
    prepared = dragoman.prepare(recipe, prepared=tmp_path / "prepared")
    manifest = (prepared / "manifest.json").read_text("utf-8")
    assert '"context"' in manifest
    lines = (aligned.output / "pairs.tsv").read_text("utf-8").splitlines()
    assert sum(line == "\t\t\t" for line in lines) >= 7, "between documents and where lines lack"


def test_formats_of_documents_become_sentences(tmp_path: Path) -> None:
    english, german = tmp_path / "en", tmp_path / "de"
    for folder, lines in ((english, ENGLISH[:30]), (german, GERMAN[:30])):
        folder.mkdir()
        body = "".join(f"<p>{one.replace('<', '&lt;')} <b>7</b></p>\n" for one in lines)
        (folder / "page.html").write_text(f"<html><body>{body}</body></html>", "utf-8")
        cues = (
            f"{n}\n00:00:{n:02},000 --> 00:00:{n:02},900\n{one}\n" for n, one in enumerate(lines)
        )
        (folder / "film.srt").write_text("\n".join(cues), "utf-8")
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    (english / "app.po").write_text(
        f'{head}msgid "b"\nmsgstr "Close the file"\n\nmsgid "a"\nmsgstr "Print 12 pages"\n', "utf-8"
    )
    (german / "app.po").write_text(
        f'{head}msgid "a"\nmsgstr "12 Seiten drucken"\n\nmsgid "x"\nmsgstr "Nie"\n\n'
        'msgid "b"\nmsgstr "Datei schließen"\n',
        "utf-8",
    )
    aligned = dragoman.align(english, german, tmp_path / "out")
    assert len(aligned.documents) == 3
    assert aligned.unread == {}
    found = pairs_of(aligned.output / "pairs.tsv") | pairs_of(aligned.output / "doubtful.tsv")
    assert ("Close the file", "Datei schließen") in found
    assert ("Print 12 pages", "12 Seiten drucken") in found
    assert not any("<b>" in side for pair in found for side in pair)
    assert any(source.endswith(" 7") and target.endswith(" 7") for source, target in found)


def test_the_page_shows_strangers_text_as_text(tmp_path: Path) -> None:
    evil = '<script src="//evil">x</script> & \x1b[2J'
    english = write(tmp_path, "en", [[*ENGLISH[:20], f"Say {evil}"]], "a{}<b>.txt")
    german = write(tmp_path, "de", [[*GERMAN[300:320], f"Nein {evil}"]], "a{}<b>.txt")
    aligned = dragoman.align(english, german, tmp_path / "out", least_score=1.0)
    page = (aligned.output / "doubtful.html").read_text("utf-8")
    assert "<script" not in page
    assert "<b>" not in page
    assert "\x1b" not in page


@pytest.mark.system
def test_a_prepared_corpus_helps_with_documents_that_are_too_short(
    made: tuple[dragoman.Aligned, set[tuple[str, str]]], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"name = 'own'\n[corpus]\ntrain = [{made[0].entry}]\nvalid_pairs = 20\n"
        "[corpus.subword]\nvocab_size = 600\n",
        "utf-8",
    )
    prepared = dragoman.prepare(recipe, prepared=tmp_path / "prepared")
    english = write(tmp_path, "en", [ENGLISH[1000:1020]])
    german = write(tmp_path, "de", [GERMAN[1000:1020]])
    without = dragoman.align(english, german, tmp_path / "without", lines=True)
    helped = dragoman.align(english, german, tmp_path / "helped", lines=True, lexicon=prepared)
    right = {*zip(ENGLISH[1000:1020], GERMAN[1000:1020], strict=True)}
    assert len(pairs_of(helped.output / "pairs.tsv") & right) >= 15
    assert without.pairs < helped.pairs
    assert helped.pairs <= 20


def test_errors_name_the_place(tmp_path: Path) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("A line.\n", "utf-8")
    other.write_bytes(b"\xff\xfeA\x00")
    with pytest.raises(CorpusError, match=r"other\.txt"):
        dragoman.align(one, other, tmp_path / "out")
    with pytest.raises(ConfigError, match="no such"):
        dragoman.align(one, tmp_path / "none", tmp_path / "out")
    with pytest.raises(ConfigError, match="exists"):
        dragoman.align(one, other, tmp_path)
    english = write(tmp_path, "en", [ENGLISH[:20]], "first{}.txt")
    german = write(tmp_path, "de", [GERMAN[600:620]], "second{}.txt")
    with pytest.raises(ConfigError, match="both"):
        dragoman.align(english, tmp_path / "de" / ".." / "en", tmp_path / "out")
    for place in (english, german):
        with pytest.raises(ConfigError, match="inside"):
            dragoman.align(english, german, place / "sub" / "out")
    with pytest.raises(ConfigError, match="english"):
        dragoman.align(english, german, tmp_path / "out", source_language="english")
    for score in (-0.1, 5.0):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            dragoman.align(english, german, tmp_path / "out", least_score=score)
    with pytest.raises(ConfigError, match="none of 1 documents matches"):
        dragoman.align(english, german, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_text_on_both_sides_and_links_to_folders_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    english, german = write(tmp_path, "en", [[]]), write(tmp_path, "de", [[]])
    for folder in (english, german):
        (folder / "licence.txt").write_text("\n".join(ENGLISH[:60]), "utf-8")
    (tmp_path / "more").mkdir()
    (english / "linked").symlink_to(tmp_path / "more")
    output = tmp_path / "out \U0001f600"
    assert main(["align", str(english), str(german), "--output", str(output)]) == 0
    printed = capsys.readouterr()
    assert f"not read: {english / 'licence.txt'}" in printed.out
    assert f"not read: {english / 'linked'}" in printed.out
    assert "no pair" in printed.err
    entry = tomllib.loads(printed.out[printed.out.index("[corpus]") :])["corpus"]["train"][0]
    assert entry["tsv"] == str(output / "pairs.tsv")


@pytest.mark.parametrize("sentences", [5_000, 50_000])
def test_memory_grows_with_the_length_of_a_document_alone(sentences: int) -> None:
    band = Band.around_diagonal(sentences, sentences * 9 // 10)
    assert len(band.lows) == sentences + 1
    assert band.width <= 801
    assert band.lows[0] == 0
    assert band.lows[-1] + band.width == sentences * 9 // 10 + 1
