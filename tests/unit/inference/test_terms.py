"""Terms: found in text, and used and inflected by a model that nobody has taught to."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import dragoman
from dragoman.cli.command_line import main
from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.directions import Direction
from dragoman.corpus.stand_ins import PLACEHOLDERS
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.formats.bundle import Bundle
from dragoman.formats.ctranslate2_engine import Candidate, CTranslate2Engine
from dragoman.inference.term_search import Found, TermSearch
from dragoman.inference.terms import (
    Term,
    Terms,
    has_other_ending,
    has_term,
    is_whole,
    read_terms,
    targets_for,
)
from dragoman.inference.translator import advanced, open_translator, translator_of
from dragoman.model.config import SearchConfig, length_penalty
from dragoman.serve.limits import Limits
from dragoman.serve.models import Chain, ServedModel
from served import serving
from small_run import small_run
from terms_run import ENDINGS, NOUNS, STEMS, sentences, terms_run

TARGETS = {
    "cell": "Zelle", "table cell": "Tabellenzelle", "Apple": "Apple", "apple": "Apfel",
    "单元格": "cell", "e-mail": "E-Mail", "C++": "C++", "see {name}": "siehe",
    "now": f"jetzt{PLACEHOLDERS[0]}",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Open the cell.", ["cell=Zelle"]),
        ("Open cells, cell-like, e.cell, supercell", []),
        ("CELL, the Table Cell's cell", ["CELL=Zelle", "Table Cell=Tabellenzelle", "cell=Zelle"]),
        ("Apple or apple or APPLE", ["Apple=Apple", "apple=Apfel", "APPLE=Apple"]),
        ("打开单元格。", ["单元格=cell"]),
        ("an E-mail, no mail", ["E-mail=E-Mail"]),
        ("C++ and C+", ["C++=C++"]),
        ("https://cell.org/cell {cell} %(cell)s me@cell.org", []),
        (f"table{PLACEHOLDERS[1]} cell {PLACEHOLDERS[0]} cell", ["cell=Zelle", "cell=Zelle"]),
        ("see {other} now, {see} {name}", []),
        ("", []),
    ],
)
def test_whole_words_the_longest_and_those_in_the_same_case_first(
    text: str, found: list[str]
) -> None:
    spans = Terms(TARGETS).found(text)
    assert [f"{text[start:end]}={target}" for start, end, target in spans] == found


def test_a_letter_with_further_marks_is_another_word() -> None:
    assert Terms({"क": "a"}).found("क")
    assert not Terms({"क": "a"}).found("की")


@pytest.mark.parametrize(
    "text", ["a-" * 100_000, "a." * 100_000, "cell" * 50_000, "table " * 50_000, "_" * 200_000]
)
def test_hostile_text_is_read_in_linear_time(text: str) -> None:
    assert not Terms(TARGETS).found(text)  # in quadratic time it would take minutes


def test_many_terms_are_found_in_one_pass() -> None:
    terms = Terms({f"word{number} next": "x" for number in range(50_000)})
    text = " ".join(f"word{number} next word{number}" for number in range(0, 50_000, 10))
    assert len(terms.found(text)) == 5000


@pytest.mark.parametrize(
    ("text", "term", "is_there"),
    [
        ("die Zelle", "Zelle", True),
        ("DIE ZELLE!", "Zelle", True),
        ("aller Tabellenzellen", "Tabellenzelle", True),
        ("Tabellen Zelle", "Tabellenzelle", False),
        ("Zelluloid", "Zelle", False),
        ("der Seitenumbrüche", "Seitenumbruch", True),
        ("neue Zellen", "neuen Zelle", True),
        ("Zellen, neue", "neue Zelle", False),
        ("an", "am", False),
        ("die Daten", "Datei", False),
        ("die Dateien", "Datei", True),
        ("im Modus", "Modul", False),
        ("eine Routine", "Route", False),
        ("mehrere Konten", "Konto", True),
        ("all queries", "query", True),
        ("složky", "složka", True),
        ("новая папки", "папка", True),
        ("打开单元格", "单元格", True),
        ("", "Zelle", False),
    ],
)
def test_words_with_the_same_beginning_are_forms(text: str, term: str, is_there: bool) -> None:
    assert has_term(text, term) is is_there


@pytest.mark.parametrize(
    ("word", "term", "whole", "other_ending"),
    [
        ("zellen", "zelle", True, True),
        ("neuer", "neue", True, True),
        ("leeres", "leerer", False, True),
        ("knop", "knopf", False, True),
        ("listenkastatur", "listenkasten", False, False),
        ("schriftstre", "schriftstück", False, False),
        ("kaffeehagen", "kaffeehaus", False, False),
        ("am", "an", False, False),
    ],
)
def test_a_word_is_whole_or_has_another_ending(
    word: str, term: str, whole: bool, other_ending: bool
) -> None:
    assert is_whole(word, term) is whole
    assert has_other_ending(word, term) is other_ending


def test_a_file_has_comments_and_terms_for_some_languages(tmp_path: Path) -> None:
    file = tmp_path / "Wörter.tsv"
    file.write_text("# for the help\ncell\tZelle\n\ncell \t cellule \ten-fr\nmenu\tMenü\ten-de\n")
    terms = read_terms(file)
    assert terms == [
        Term("cell", "Zelle"),
        Term("cell", "cellule", Direction("en", "fr")),
        Term("menu", "Menü", Direction("en", "de")),
    ]
    assert targets_for(terms, [Direction("en", "de-AT")]) == {"cell": "Zelle", "menu": "Menü"}
    assert targets_for(terms, [Direction("en", "fr")]) == {"cell": "cellule"}
    assert targets_for(terms, [Direction("de", "en")]) == {"cell": "Zelle"}


@pytest.mark.parametrize("line", ["cell", "\tZelle", "cell\t", "a\tb\ten-de\tc", "a\tb\tenglish"])
def test_an_error_names_the_file_and_the_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "Wörter 1.tsv"
    file.write_text(f"# terms\n{line}\n")
    with pytest.raises(dragoman.CorpusError) as error:
        read_terms(file)
    assert error.value.place == f"{file}, line 2"


@pytest.fixture(scope="module", params=["ctranslate2", "torch"])
def translator(request: pytest.FixtureRequest) -> Iterator[dragoman.Translator]:
    with dragoman.Translator(terms_run(), engine=request.param) as opened:
        yield opened


@pytest.mark.system
def test_a_model_uses_terms_and_inflects_them(
    translator: dragoman.Translator,
) -> None:
    chosen = random.Random(4)
    used, plain, inflected = [], [], []
    for text, _ in sentences(80, seed=9):
        words = text.strip(".").split()
        noun = chosen.choice([word for word in words if word in NOUNS])
        stem = chosen.choice(STEMS[noun])
        ending = ENDINGS[words[words.index(noun) - 1]][1]
        with_term, *_ = translator.translate([text], terms={noun.upper(): stem})
        without, *_ = translator.translate([text])
        right = stem + ending
        used.append(right in with_term.strip(".").split())
        plain.append(right in without.strip(".").split())
        if ending:
            inflected.append(used[-1])
    assert sum(plain) < 0.55 * len(plain), "nothing tells the words that are wanted"
    assert sum(used) > 0.85 * len(used)
    assert sum(inflected) > 0.8 * len(inflected) > 20, "the term is given without its ending"


@pytest.mark.system
def test_what_is_kept_stays_beside_terms(translator: dragoman.Translator) -> None:
    stem = STEMS["cell"][2]
    (found,) = translator.translate(["open all cell and one {name}."], terms={"cell": stem})
    assert "{name}" in found
    assert stem in found


@pytest.mark.system
def test_a_term_that_the_model_cannot_write_changes_nothing(
    translator: dragoman.Translator,
) -> None:
    for target in ("単語", "x " * 100):
        plain = translator.translate(["open all cell."])
        assert translator.translate(["open all cell."], terms={"cell": target}) == plain


@pytest.mark.system
def test_a_term_is_used_as_often_as_it_occurs(translator: dragoman.Translator) -> None:
    stem = STEMS["cell"][1]
    (found,) = translator.translate(["open one cell and all cell."], terms={"cell": stem})
    assert found == f"öffne ein {stem} und alle {stem}en."


@pytest.mark.system
def test_several_terms_and_several_translations(translator: dragoman.Translator) -> None:
    stems = {"cell": STEMS["cell"][1], "menu": STEMS["menu"][2]}
    (found,) = translator.translate(["open one cell and all menu."], terms=stems, n_best=3)
    assert {stems["cell"], f"{stems['menu']}en"} <= {*found[0].text.strip(".").split()}
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)


def test_both_engines_go_on_alike_with_whole_scores() -> None:
    text = "A man in a red shirt."
    found = {}
    for engine in ("ctranslate2", "torch"):
        with open_translator(
            small_run().path, checkpoints=["best"], overrides=(), engine=engine, threads=1
        ) as opened:
            translator = opened.translator
            source, target = translator.subwords
            rows = source.encode([text, text])
            beginnings = target.encode(["Ein Mann mit", "Zwei"])
            several = translator.engine.go_on(rows, beginnings, opened.recipe.search)
            for begin, candidates in zip(beginnings, several, strict=True):
                assert all(one.ids[: len(begin)] == begin for one in candidates)
            found[engine] = [max(one, key=lambda best: best.score) for one in several]
            if isinstance(translator.engine, CTranslate2Engine):
                (nats,) = translator.engine.log_probabilities(rows[:1], [found[engine][0].ids])
                penalty = length_penalty(len(found[engine][0].ids) + 1, opened.recipe.search)
                assert found[engine][0].score == pytest.approx(sum(nats) / penalty, abs=1e-4)
    for ours, theirs in zip(found["torch"], found["ctranslate2"], strict=True):
        assert ours.ids == theirs.ids
        assert ours.score == pytest.approx(theirs.score, abs=1e-3)


@pytest.mark.system
def test_the_command_reads_a_file_and_an_export_uses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = dragoman.export(terms_run(), to="ctranslate2", output=tmp_path / "für CTranslate2")
    stem = STEMS["menu"][0]
    (tmp_path / "a.tsv").write_text(f"menu\t{stem}\ten-de\nmenu\tno\ten-fr\n")
    (tmp_path / "a.en").write_text("see all menu.\n")
    out = tmp_path / "a.de"
    arguments = ["--input", str(tmp_path / "a.en"), "--output", str(out)]
    terms = ["--terms", str(tmp_path / "a.tsv")]
    assert main(["translate", str(export.path), *arguments, *terms]) == 0
    assert out.read_text() == f"sieh alle {stem}en.\n"
    assert not capsys.readouterr().err


@pytest.mark.system
def test_a_server_takes_terms_with_each_request(tmp_path: Path) -> None:
    export = dragoman.export(terms_run(), to="ctranslate2", output=tmp_path / "für den Server")
    text, stems = "see all menu.", STEMS["menu"]
    with serving(export.path, "--threads", "1") as server:
        for stem in stems:
            terms = {"menu": stem}
            answer = server.ask("/translate", {"text": text, "terms": terms}).json
            assert answer["translations"][0]["text"] == f"sieh alle {stem}en."
            lines = server.ask("/translate/stream", {"text": text, "terms": terms}).body.decode()
            assert f"sieh alle {stem}en." in lines
        for refused in ({"": "a"}, {"a": ""}, {"a": 1}, ["a"], {f"{n}": "a" for n in range(501)}):
            assert server.ask("/translate", {"text": text, "terms": refused}).status == 422


@pytest.mark.system
def test_a_server_tells_the_terms_that_it_does_not_use(tmp_path: Path) -> None:
    export = dragoman.export(terms_run(), to="ctranslate2", output=tmp_path / "ungenutzt")
    asked = {
        "text": "see all menu.",
        "terms": {"menu": STEMS["menu"][0], "all": "単語", "{a}": "b"},
    }
    with serving(export.path, "--threads", "1") as server:
        (found,) = server.ask("/translate", asked).json["translations"]
        assert found["unused_terms"] == ["all", "{a}"]
        assert STEMS["menu"][0] in found["text"]
        line, *_ = server.ask("/translate/stream", asked).body.decode().splitlines()
        assert json.loads(line)["unused_terms"] == ["all", "{a}"]


@pytest.mark.system
def test_the_command_tells_the_terms_that_it_does_not_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text = tmp_path / "a.tsv", tmp_path / "a.en"
    text.write_text("see all menu.\n")
    command = ["translate", str(terms_run().path), "--input", str(text), "--terms", str(file)]
    file.write_text(
        "".join(f"w{number}\t単語\n" for number in range(7)) + f"menu\t{STEMS['menu'][0]}\n"
    )
    assert main(command) == 0
    told = capsys.readouterr().err
    assert str(file) in told
    assert "'w0', 'w1', 'w2', 'w3', 'w4' and 2 more" in told
    file.write_text("menu\tMenü\tde-fr\n")
    assert main(command) == 2
    assert "has no term for en to de" in capsys.readouterr().err
    file.write_bytes("menu\tMenü\n".encode("latin-1"))
    assert main(command) == 1
    assert "is not UTF-8" in capsys.readouterr().err


@dataclass
class _Scripted:
    """An engine that goes on as told, and looks from each word of a text at one of the source.

    looks: by the text, the number of the word of the source for each of its words.
    """

    words: Subword
    looks: dict[str, list[int]]
    longer: str

    def attention(
        self, sources: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[NDArray[np.float32]]:
        (source,), (target,) = sources, targets
        ours, theirs = (
            np.cumsum([piece.startswith("▁") for piece in self.words.pieces(ids)]) - 1
            for ids in (source, target)
        )
        looks = np.array(self.looks[self.words.decode([target])[0]])
        return [(ours[None, :] == looks[theirs][:, None]).astype(np.float32)]

    def go_on(
        self, sources: Sequence[list[int]], _begun: Sequence[list[int]], _search: SearchConfig
    ) -> list[list[Candidate]]:
        return [[Candidate(self.words.encode([self.longer])[0], -1.0)] for _ in sources]


@pytest.mark.parametrize(
    ("text", "plain", "longer", "looks", "wanted"),
    [
        ("close file", "schließ Datei", "schließ Akte Datei", [0, 1, 1], "schließ Akte"),
        ("close file", "schließ Datei", "schließ Akte Dateien", [0, 1, 1], "schließ Akte"),
        ("file data", "Daten", "Akte Daten", [0, 1], "Akte Daten"),
    ],
)
def test_the_word_that_a_term_replaced_does_not_stay_behind_it(
    text: str, plain: str, longer: str, looks: list[int], wanted: str
) -> None:
    """Unless the model looks at another word of the source there."""
    counts = count_words([text, plain, longer, "Akte"])
    config = SubwordConfig(vocab_size=40, kind="bpe")
    words = Subword.parse(train_on_words(counts, config), place=Path("a.model"))
    rows, (ids,) = words.encode([text]), words.encode([plain])
    engine = _Scripted(words, {plain: looks[: len(plain.split())], longer: looks}, longer)
    terms = Terms({"file": "Akte"})
    steps = TermSearch(rows, [[Found(plain, -1.0, ids)]], terms, (words, words)).run(
        SearchConfig(), 1
    )
    step, found = advanced(steps)
    while step is not None:
        step, found = advanced(steps, step(engine))  # type: ignore[arg-type]
    assert found is not None
    assert found[0][0].text == wanted
    assert found[0][0].ids == words.encode([wanted])[0]


@pytest.mark.system
def test_many_terms_of_one_request_let_others_go_before(tmp_path: Path) -> None:
    asked: list[int] = []

    class Watched(CTranslate2Engine):
        def go_on(
            self,
            sources: Sequence[list[int]],
            beginnings: Sequence[list[int]],
            search: SearchConfig,
        ) -> list[list[Candidate]]:
            asked.append(len({tuple(source) for source in sources}))
            return super().go_on(sources, beginnings, search)

    bundle = dragoman.export(terms_run(), to="ctranslate2", output=tmp_path / "für alle")
    opened = Bundle.open(bundle.path)
    engine = Watched(opened.path, opened.subwords(), threads=1, batch_cells=2048)
    (model,) = ServedModel.of(
        opened, replace(translator_of(opened, threads=1), engine=engine), Limits()
    )
    texts = [text for text, _ in sentences(60, seed=3)]
    chain = Chain.of(model)
    long = chain.with_terms({noun: STEMS[noun][2] for noun in NOUNS})

    async def scenario() -> None:
        begun = asyncio.create_task(long.translate(texts, text_format="line"))
        while not asked:
            await asyncio.sleep(0.001)
        await chain.with_terms({"menu": "Menü"}).translate(["see one menu."], text_format="line")
        await model.translate(["see one menu."], text_format="line")
        assert not begun.done(), "they take turns"
        begun.cancel()
        await asyncio.wait([begun])
        await model.translate(texts, text_format="line")
        num_asked = len(asked)
        await asyncio.sleep(0.3)
        assert len(asked) == num_asked, "nobody waits for it any more"
        model.batcher.close()

    asyncio.run(scenario())
    assert max(asked) <= 8


@pytest.mark.parametrize("terms", [{"cell": ""}, {"cell": 1}, 7, ["cell"]])
def test_terms_of_another_kind_are_refused(terms: object) -> None:
    with (
        dragoman.Translator(small_run()) as translator,
        pytest.raises(dragoman.ConfigError, match="terms"),
    ):
        translator.translate(["a"], terms=terms)  # type: ignore[call-overload]
