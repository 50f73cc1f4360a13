"""`dragoman distill` from a trained teacher to the table; a second call repeats no work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import sacrebleu

import dragoman
from dragoman.api.teacher import write_own_pairs, write_sources
from dragoman.cli import main
from dragoman.corpus.shards import TokenShards
from dragoman.inference.translator import LINES_AT_A_TIME
from parallel_text import sentences, write_pairs
from real_text import real_lines
from tiny_recipe import TINY

TEACHER = """
name = "teacher"
[corpus]
target_language = "de"
train = [
  {source = "train.en", target = "train.de", target_language = "fr"},
  {source = "made.en", target = "made.de", target_language = "fr", tag = "<bt>"},
]
valid_pairs = 20
test_pairs = 30
subword.vocab_size = 150
[data]
batch_tokens = 1000
[model]
d_model = 32
num_heads = 2
d_ffn = 64
encoder_layers = 1
decoder_layers = 2
[schedule]
kind = "constant"
peak_learning_rate = 0.005
warmup_steps = 20
[train]
max_steps = 120
log_every_steps = 60
validate_every_steps = 60
validate_at_start = false
[evaluate]
bleu_pairs = 0
[search]
beam_size = 3
"""
SHARES = """
stages = [{steps = 20, weights = {made = 1}}, {learning_rate_factor = 0.5}]
[corpus]
temperature = 5
"""
STUDENT = ["decoder_layers=1", "d_model=16", "d_ffn=16"]


@pytest.mark.timeout(400)
def test_a_student_is_trained_exported_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(400, seed=1))
    write_pairs(tmp_path, "made", sentences(100, seed=2))
    (tmp_path / "teacher.toml").write_text(TEACHER)
    teacher = dragoman.train(dragoman.load_recipe("teacher.toml", ["corpus.language_token=true"]))
    # Shares of a text that is not used: stages and temperature know no entry of the student's.
    own = TEACHER.replace('"teacher"', '"student"').replace("[corpus]", SHARES, 1)
    own = own.replace('"fr", tag = "<bt>"', '"es", tag = "<bt>", name = "made"')
    (tmp_path / "student.toml").write_text(own)
    overrides = [*(f"model.{one}" for one in STUDENT), "search.beam_size=1", "train.max_steps=60"]

    recipe = dragoman.load_recipe("student.toml", overrides)
    made = dragoman.distill(teacher, recipe)
    prepared = teacher.prepared()
    (source,) = (tmp_path / "distilled").glob("student-of-*/source.txt")
    lines = source.read_text().splitlines()
    assert len(lines) == TokenShards(prepared / "train").num_pairs
    assert not [line for line in lines if "<bt>" in line]
    before = (prepared / "test" / "source.txt").read_text().splitlines()
    assert all(line.startswith("<2fr> ") for line in before)
    assert not [line for line in before if "<bt>" in line]
    sources = [line.removeprefix("<2fr> ") for line in before]
    assert made.run.recipe().corpus.directions == (("en", "fr"),)
    for entry in (*made.run.recipe().corpus.valid, *made.run.recipe().corpus.test):
        assert "<" not in Path(entry.source).read_text()
    assert Path(entry.source).read_text().splitlines() == sources

    given = tmp_path / "given.de"
    given.write_text("".join(f"{line}\n" for line in dragoman.translate(teacher, sources)))
    (found,) = dragoman.compare(teacher, given)
    assert (found.result.pairs, found.result.ties) == (30, 30)

    assert {one["name"] for one in dragoman.read_events(made.run, "compared")} == {"test"}
    result = made.comparison.result
    for served, field in ((made.teacher, "first"), (made.student, "second")):
        references = (prepared / "test" / "target.txt").read_text().splitlines()
        with dragoman.Translator(served.path) as translator:
            texts = list(translator.translate(sources, beam_size=served.beam_size))
        bleu = sacrebleu.corpus_bleu(texts, [references]).score
        assert getattr(result.scores["bleu"], field) == pytest.approx(bleu)
        files = [path for path in served.path.rglob("*") if path.is_file()]
        assert served.size_bytes == sum(path.stat().st_size for path in files)
        assert served.sentences_per_s > 0
    assert (made.teacher.beam_size, made.student.beam_size) == (3, 1)
    assert made.student.size_bytes < made.teacher.size_bytes
    rows = {row.name: row for one in dragoman.report(made.run).answers for row in one.evidence}
    assert rows["size of the export"].value == made.student.size_bytes
    assert rows["sentences/s of the export"].value == made.student.sentences_per_s
    assert "with beam 1, the teacher's" in rows["sentences/s of the export"].text
    assert (
        rows["learnt from"].text
        == f"{made.synthesized.pairs} translations of {teacher.path.absolute()}"
    )
    synthetic, own_pairs = made.run.recipe().corpus.train
    assert (synthetic.tsv, synthetic.translated) == (str(made.synthesized.output), "target")
    # The teacher's own pairs without its back-translations, as they were before preparation.
    sides = ((tmp_path / f"train.{side}").read_text().splitlines() for side in ("en", "de"))
    kept = Path(own_pairs.tsv).read_text().splitlines()
    assert set(kept) <= set(map("\t".join, zip(*sides, strict=True)))
    assert 300 < len(kept) < len(lines)
    assert own_pairs.translated == ""
    assert [(one.steps, one.weights) for one in made.run.recipe().stages] == [
        (20, None),
        (None, None),
    ]

    words = [word for override in overrides for word in ("--set", override)]
    learnt_from = made.synthesized.output
    written = learnt_from.stat().st_mtime_ns
    assert main(["distill", str(teacher.path), "student.toml", *words]) == 0
    assert learnt_from.stat().st_mtime_ns == written
    printed = capsys.readouterr().out
    for word in ("BLEU", "chrF", "sentences/s", "beam", str(made.run.path.name)):
        assert word in printed
    assert len(list((tmp_path / "runs").glob("student-*"))) == 1
    assert f"{result.scores['bleu'].second:.2f}" in printed

    whole = learnt_from.read_bytes()
    learnt_from.write_bytes(whole[:100])  # others' work is not taken for our own
    again = dragoman.distill(teacher, recipe).synthesized
    assert learnt_from.read_bytes() == whole
    assert (again.lines, again.pairs) == (made.synthesized.lines, made.synthesized.pairs)
    assert again.dropped == made.synthesized.dropped
    assert again.resumed_after == 0
    again = dragoman.distill(teacher, recipe).synthesized
    assert (again.lines, again.pairs) == (made.synthesized.lines, made.synthesized.pairs)
    assert again.dropped == made.synthesized.dropped
    assert again.resumed_after == again.lines

    # Another student of the same text: it is not translated again, and the first one stays.
    exported = (made.student.path / "model.bin").read_bytes()
    smaller = dragoman.load_recipe("student.toml", [*overrides, "model.d_ffn=8"])
    second = dragoman.distill(teacher, smaller)
    assert second.synthesized.output == made.synthesized.output
    assert second.synthesized.resumed_after == again.lines
    assert second.teacher.path == made.teacher.path
    assert second.student.path != made.student.path
    assert (made.student.path / "model.bin").read_bytes() == exported

    lines = (tmp_path / "train.en").read_text().splitlines(keepends=True)
    for number, part in enumerate((lines[:150], lines[150:300])):
        (tmp_path / "other.en").write_text("".join(part))
        other = dragoman.distill(teacher, recipe, text="other.en")
        assert other.synthesized.lines == 150
        assert len(list((tmp_path / "runs").glob("student-*"))) == 3 + number

    alone = dragoman.distill(teacher, recipe, text="other.en", synthetic_only=True)
    assert [one.tsv for one in alone.run.recipe().corpus.train] == [str(alone.synthesized.output)]
    assert alone.synthesized.resumed_after == alone.synthesized.lines
    assert len(list((tmp_path / "runs").glob("student-*"))) == 5

    # More translations than the teacher's beam has are searched with a wider one.
    other = dragoman.distill(teacher, recipe, text="other.en", n_best=4)
    pairs = [line.split("\t") for line in other.synthesized.output.read_text().splitlines()]
    assert other.synthesized.lines == 150
    assert max(Counter(pair[0] for pair in pairs).values()) == 4
    assert len(set(map(tuple, pairs))) == len(pairs)
    assert len(list((tmp_path / "runs").glob("student-*"))) == 6


def test_a_teacher_of_tagged_text_alone_has_no_pairs_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(200, seed=1))
    write_pairs(tmp_path, "made", sentences(100, seed=2))
    tagged = TEACHER.replace('train.de", target', 'train.de", tag = "<news>", target')
    (tmp_path / "teacher.toml").write_text(tagged)
    teacher = dragoman.train(dragoman.load_recipe("teacher.toml", ["train.max_steps=60"]))
    overrides = [*(f"model.{one}" for one in STUDENT), "train.max_steps=2"]
    made = dragoman.distill(teacher, dragoman.load_recipe("teacher.toml", overrides))
    assert [one.tsv for one in made.run.recipe().corpus.train] == [str(made.synthesized.output)]


def test_pairs_that_the_teacher_cut_off_are_not_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(200, seed=1))
    write_pairs(tmp_path, "made", sentences(100, seed=2))
    (tmp_path / "teacher.toml").write_text(TEACHER)
    cut = ["train.max_steps=1", "corpus.too_long=truncate", "corpus.max_pieces=12"]
    teacher = dragoman.train(dragoman.load_recipe("teacher.toml", cut))
    overrides = [*(f"model.{one}" for one in STUDENT), "train.max_steps=1"]
    made = dragoman.distill(teacher, dragoman.load_recipe("teacher.toml", overrides))
    _, own_pairs = made.run.recipe().corpus.train
    (source,) = (tmp_path / "distilled").glob("*/source.txt")
    sides = [(tmp_path / f"train.{side}").read_text().splitlines() for side in ("en", "de")]
    kept = Path(own_pairs.tsv).read_text().splitlines()
    assert 0 < len(kept) < len(set(zip(*sides, strict=True)))
    assert set(kept) <= set(map("\t".join, zip(*sides, strict=True)))
    made_sources = (tmp_path / "made.en").read_text().splitlines()
    assert set(source.read_text().splitlines()) <= {*sides[0], *made_sources}


def test_a_teacher_without_a_test_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from small_run import small_run

    monkeypatch.chdir(tmp_path)
    with pytest.raises(dragoman.ConfigError, match="give them to load_recipe"):
        dragoman.distill(small_run(), small_run().recipe(), overrides=["train.max_steps=1"])
    with pytest.raises(dragoman.ConfigError, match=r"no test set, by which its student"):
        dragoman.distill(small_run(), "student-tiny")
    assert not list(tmp_path.iterdir())


def test_translations_that_are_all_dropped_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(60))
    Path("tiny.toml").write_text(TINY)
    settings = ["train.max_steps=1", "evaluate.bleu_pairs=0", "data.batch_tokens=256"]
    teacher = dragoman.train(dragoman.load_recipe("tiny.toml", settings))
    Path("blank.en").write_text("\n\n")
    for _ in range(2):  # also with the finished translations of the first call
        said = r"blank.en: none of its 2 lines has a translation to learn from \(empty 2\)"
        with pytest.raises(dragoman.CorpusError, match=said):
            dragoman.distill(teacher, "student-tiny", text="blank.en")


def test_a_student_learns_only_text_that_the_teacher_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text with the weight 0 is not translated; pairs of a model are not the teacher's own."""
    monkeypatch.chdir(tmp_path)
    lines = {}
    for name, first in (("own", 0), ("off", 60), ("model", 120), ("late", 180)):
        english, german = (real_lines("train", side)[first : first + 60] for side in ("en", "de"))
        lines[name] = english
        pairs = zip(english, german, strict=True)
        Path(f"{name}.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in pairs), "utf-8")
    Path("mixed.toml").write_text(
        "stages = [{steps = 1}, {weights = {late = 1}}]\n"
        + TINY.replace(
            'train = [{source = "train.en", target = "train.de"}]',
            'train = [{tsv = "own.tsv", name = "own", weight = 1},'
            ' {tsv = "off.tsv", name = "off", weight = 0},'
            ' {tsv = "model.tsv", name = "model", weight = 1, translated = "target"},'
            ' {tsv = "late.tsv", name = "late", weight = 0}]\n'
            'source_language = "en"\ntarget_language = "de"',
        )
    )
    settings = ["train.max_steps=2", "evaluate.bleu_pairs=0", "data.batch_tokens=256"]
    settings += ["corpus.valid_pairs=5", "corpus.subword.vocab_size=300"]
    teacher = dragoman.train(dragoman.load_recipe("mixed.toml", settings))
    write_sources(teacher, Path("sources.txt"))
    write_own_pairs(teacher, Path("pairs.tsv"))
    sources = Path("sources.txt").read_text("utf-8").splitlines()
    own = [line.split("\t")[0] for line in Path("pairs.tsv").read_text("utf-8").splitlines()]
    assert sum(map(len, map(set(sources).intersection, lines.values()))) > 0.8 * len(sources)
    for name, learnt, is_own in (
        ("own", True, True), ("off", False, False), ("model", True, False), ("late", True, True),
    ):  # fmt: skip
        assert bool({*lines[name]} & {*sources}) == learnt, name
        assert bool({*lines[name]} & {*own}) == is_own, name


def test_text_in_the_language_of_the_translations_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("py3langid")
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(60))
    Path("tiny.toml").write_text(TINY)
    settings = ["train.max_steps=1", "evaluate.bleu_pairs=0", "data.batch_tokens=256"]
    teacher = dragoman.train(dragoman.load_recipe("tiny.toml", settings))
    german = "".join(f"{line}\n" for line in real_lines("train", "de")[:20])
    Path("text.de").write_text(german, "utf-8")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(dragoman.ConfigError, match=r"text.de: seems to be in de, but the model"):
        dragoman.distill(teacher, "student-tiny", text="text.de")
    Path("empty.en").touch()
    with pytest.raises(dragoman.CorpusError, match=r"empty.en: is empty"):
        dragoman.distill(teacher, "student-tiny", text="empty.en", folder="a/b")
    Path("empty.en").unlink()
    assert sorted(tmp_path.iterdir()) == before
    # The folder of an earlier call stays.
    Path("distilled").mkdir()
    with pytest.raises(dragoman.ConfigError, match=r"seems to be in de"):
        dragoman.distill(teacher, "student-tiny", text="text.de")
    assert not list(Path("distilled").iterdir())
    number = 3 * LINES_AT_A_TIME
    Path("cut.en").write_bytes(b"A man.\n" + b"\n" * (number - 1) + b"\xff\n")
    with pytest.raises(dragoman.CorpusError, match=rf"cut.en, line {number + 1}: is not UTF-8"):
        dragoman.distill(teacher, "student-tiny", text="cut.en")
    (begun,) = Path("distilled").iterdir()
    assert (begun / ".synthetic.tsv.partial.json").is_file()
