"""Paragraphs go into the model as a whole; each sentence comes back in its place."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.api.kinds import Context
from dragoman.api.teacher import write_own_pairs
from dragoman.cli.command_line import main
from dragoman.corpus.config import SubwordConfig
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from dragoman.corpus.shards import EOS, TokenShards
from dragoman.corpus.stand_ins import ALL, SEPARATOR
from dragoman.corpus.subword import Subword, count_words, train_on_words
from dragoman.formats.ctranslate2_engine import Candidate, Results
from dragoman.formats.normalizing_pieces import with_normalization
from dragoman.inference.text import TextFormat
from dragoman.inference.translator import Engine, TextTranslator, open_translator
from dragoman.model.config import SearchConfig
from paragraphs_run import SENTENCES, paragraph, paragraphs_run, split_at
from parallel_text import sentences, small_corpus, write_pairs
from served import serving
from small_run import small_run

FORMATS: tuple[TextFormat, ...] = ("line", "document")
CONTEXTS: tuple[Context, ...] = ("sentence", "paragraph")
DOCUMENTS = [paragraph(random.Random(seed)) for seed in range(60)]
SOURCES = [source for document in DOCUMENTS for source, _ in [*document, ("", "")]]
REFERENCES = [target for document in DOCUMENTS for _, target in [*document, ("", "")]]


def right(translations: Sequence[str]) -> float:
    """The share of the lines that are as the reference."""
    pairs = zip(translations, REFERENCES, strict=True)
    return sum(one == reference for one, reference in pairs) / len(REFERENCES)


@pytest.fixture(scope="module", params=["ctranslate2", "torch"])
def translator(request: pytest.FixtureRequest) -> Iterator[dragoman.Translator]:
    with dragoman.Translator(paragraphs_run(), engine=request.param) as opened:
        yield opened


def test_a_pronoun_is_known_by_the_sentence_before(translator: dragoman.Translator) -> None:
    assert right(translator.translate(SOURCES)) < 0.85
    assert right(translator.translate(SOURCES, context="paragraph")) > 0.97
    assert right([*translator.stream(SOURCES, context="paragraph")]) > 0.97


def test_an_empty_line_ends_a_paragraph(translator: dragoman.Translator) -> None:
    """Without it the first noun would tell the pronoun."""
    for noun, pronoun in (("cell", "sie"), ("field", "es"), ("button", "ihn")):
        near = translator.translate([f"Now open the {noun}.", "Now see it."], context="paragraph")
        assert near[1] == f"Jetzt lies {pronoun}."
        for empty in ("", "  "):
            far = translator.translate(
                [f"Now open the {noun}.", empty, "Now see it."], context="paragraph"
            )
            assert far[1:] == [empty, *translator.translate(["Now see it."])]


def test_the_sentences_of_a_document_stay_where_they_are(translator: dragoman.Translator) -> None:
    text = "  Now open the button.\n  Now see it.  Now take it. \n\n * * *"
    (found,) = translator.translate([text], text_format="document", context="paragraph")
    assert found == "  Jetzt öffne den Knopf.\n  Jetzt lies ihn.  Jetzt nimm ihn. \n\n * * *"
    (marked,) = translator.translate(
        ["<p>Now open the <b>cell</b>. Now <i>see</i> it.</p>"],
        text_format="markup",
        context="paragraph",
    )
    assert re.sub("<.*?>", "", marked) == "Jetzt öffne die Zelle. Jetzt lies sie."
    assert re.fullmatch(r"<p>.*<b>.*Zelle</b>\. .*<i>.*</i>.*\.</p>", marked)


def test_several_translations_and_terms_work_with_it(translator: dragoman.Translator) -> None:
    lines = ["Now open the cell.", "Now see it."]
    several = translator.translate(lines, n_best=3, context="paragraph")
    assert [found[0].text for found in several] == ["Jetzt öffne die Zelle.", "Jetzt lies sie."]
    assert all(SEPARATOR not in one.text for found in several for one in found)
    with_term = translator.translate(lines, terms={"cell": "Tabelle"}, context="paragraph")
    assert "Tabelle" in with_term[0]


@dataclass
class Altered:
    """An engine whose answers for more than one sentence are changed."""

    engine: Engine
    change: Callable[[list[int]], list[int]]
    separator: int
    searched: int = 0

    def submit(self, sources: Sequence[list[int]], search: SearchConfig, **options: Any) -> Results:
        results = self.engine.submit(sources, search, **options)()
        self.searched += len(sources)
        changed = [
            [Candidate(self.change(one.ids), one.score) for one in found]
            if self.separator in source
            else found
            for source, found in zip(sources, results, strict=True)
        ]
        return Results(lambda: changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@pytest.fixture(scope="module")
def whole() -> Iterator[TextTranslator]:
    with open_translator(
        paragraphs_run().path, checkpoints=["best"], overrides=(), engine="ctranslate2", threads=1
    ) as one:
        yield one.translator


def separator_of(translator: TextTranslator) -> int:
    separator = translator.subwords[0].separator_id
    assert separator is not None
    return separator


@pytest.mark.parametrize("fault", ["none is left", "one too many", "nothing between two"])
def test_without_the_right_separators_it_falls_back_sentence_by_sentence(
    whole: TextTranslator, fault: str
) -> None:
    between = separator_of(whole)
    changes: dict[str, Callable[[list[int]], list[int]]] = {
        "none is left": lambda ids: [one for one in ids if one != between],
        "one too many": lambda ids: [*ids, between, ids[0]],
        "nothing between two": lambda ids: [one for one in ids if one == between],
    }
    engine: Any = Altered(whole.engine, changes[fault], between)
    search = SearchConfig(beam_size=2)
    alone = whole.translate(SOURCES, search, text_format="line")
    joined = replace(whole, engine=engine).with_context()
    found = joined.translate(SOURCES, search, text_format="line")
    assert [one.text for one, *_ in found] == [one.text for one, *_ in alone]
    assert engine.searched == len(DOCUMENTS) + sum(map(bool, SOURCES))


def test_a_sentence_beside_an_empty_one_is_translated_alone(whole: TextTranslator) -> None:
    """With `a b||c` for a|b|c the number fits, and b would be there twice."""
    between = separator_of(whole)

    def merged(ids: list[int]) -> list[int]:
        first = ids.index(between) if between in ids else len(ids)
        rest = ids[first + 1 :]
        second = rest.index(between) if between in rest else len(rest)
        return [*ids[:first], *rest[:second], between, *rest[second:]]

    lines = ["Now open the cell.", "Now see it.", "Close it."]
    search = SearchConfig(beam_size=1)
    alone = whole.translate(lines, search, text_format="line")
    engine: Any = Altered(whole.engine, merged, between)
    found = (
        replace(whole, engine=engine).with_context().translate(lines, search, text_format="line")
    )
    assert [one.text for one, *_ in found] == [one.text for one, *_ in alone]


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_line_ends_a_paragraph_beside_placeholders(
    whole: TextTranslator, empty: str
) -> None:
    config = SubwordConfig(vocab_size=100)
    words = count_words(SOURCES)
    subword = Subword.parse(train_on_words(words, config, tags=[*ALL]), place=Path("source.model"))
    translator = replace(whole, subwords=(subword, subword)).with_context()
    assert translator.stand_ins == ALL
    for between, num_paragraphs in (([], 1), ([empty], 0)):
        encoded = translator.encode(["Now open {a} cell.", *between, "Now see it."], "line")
        assert len(encoded.rows) == 2
        assert len(encoded.paragraphs) == num_paragraphs


def test_a_separator_in_a_translation_is_no_text(whole: TextTranslator) -> None:
    ids = whole.subwords[1].encode_plain(["Jetzt lies es.", "Jetzt lies es."])
    assert whole.subwords[1].decode([[*ids[0], separator_of(whole), *ids[1]]]) == [
        "Jetzt lies es. Jetzt lies es."
    ]


def test_paragraphs_keep_to_what_the_model_has_learnt(whole: TextTranslator) -> None:
    chosen = random.Random(3)
    joined = whole.with_context()
    for _ in range(30):
        texts = [
            chosen.choice(("Now open the cell.", "Now see it. " * chosen.randint(1, 30), ""))
            for _ in range(chosen.randint(1, 12))
        ]
        for text_format in FORMATS:
            encoded = joined.encode(texts, text_format)
            rows = [row for one in encoded.paragraphs for row in one.sentences]
            assert rows == [*range(len(encoded.rows))] or not encoded.paragraphs
            for one in encoded.paragraphs:
                assert len(one.sentences) <= SENTENCES
                assert len(one.row) <= joined.max_source_pieces
    assert not whole.encode(["Now see it."] * 3, "line").paragraphs


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_paragraph_goes_into_the_model_as_in_training(kind: str, tmp_path: Path) -> None:
    """The row of several sentences is the one that was trained, behind one language token."""
    train = tuple(
        write_pairs(tmp_path, name, sentences(300, seed=number)).model_copy(
            update={"target_language": language}
        )
        for number, (name, language) in enumerate((("a", "de"), ("b", "fr")))
    )
    config = small_corpus(
        tmp_path,
        train=train,
        context={"sentences": SENTENCES},
        subword={"vocab_size": 150, "kind": kind},
        test_pairs=0,
    )
    prepare(config, tmp_path / "out", workers=1)
    subword = Subword.load(tmp_path / "out/source.model")
    shards = TokenShards(tmp_path / "out/train")
    rows = [shards.source(row).tolist() for row in range(shards.num_pairs)]
    no_engine: Any = None
    whole = TextTranslator(
        no_engine, (subword, subword), lowercase=False, max_source_pieces=config.max_pieces,
        learnt_sentences=SENTENCES,
    )  # fmt: skip
    compared = 0
    for row in rows:
        lines = subword.decode(split_at(subword.separator_id, row))
        if len(lines) > 1:
            joined = replace(whole, token=subword.pieces(row)[0]).with_context()
            (one,) = joined.encode(lines, "line").paragraphs
            assert one.row == row
            compared += 1
    assert compared > 100


def test_a_separator_in_a_text_loses_nothing(translator: dragoman.Translator) -> None:
    lines = [f"Now open the cell.{SEPARATOR} Now see it.", "Now take it.", SEPARATOR]
    for context in CONTEXTS:
        found = translator.translate(lines, context=context)
        assert len(found) == 3
        assert "Zelle" in found[0]
        assert SEPARATOR not in "".join(found[:2])
        (markup,) = translator.translate(
            [f"Now open the cell.&#x{ord(SEPARATOR):X}; Now see it."],
            text_format="markup",
            context=context,
        )
        assert SEPARATOR not in markup


def test_the_command_and_a_model_without_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(f"{line}\n" for line in SOURCES))
    command = ["translate", "--input", str(source), "--output", str(output)]
    assert main([*command, str(paragraphs_run().path), "--context", "paragraph"]) == 0
    assert right(output.read_text().split("\n")[:-1]) > 0.97
    capsys.readouterr()
    output.unlink()
    assert main([*command, str(small_run().path), "--context", "paragraph"]) != 0
    said = capsys.readouterr().err.strip()
    assert "was not trained on paragraphs" in said
    assert "corpus.context.sentences" in said
    assert said.count("\n") == 0
    assert not output.exists()


def test_programs_that_read_an_export_show_no_separator(tmp_path: Path) -> None:
    from sentencepiece import SentencePieceProcessor
    from transformers import AutoTokenizer

    model = (paragraphs_run().prepared() / "target.model").read_bytes()
    for_argos = SentencePieceProcessor(model_proto=with_normalization(model, lowercase=False))
    separator = for_argos.piece_to_id(SEPARATOR)
    ids = for_argos.encode("Jetzt lies es.")
    pieces = for_argos.id_to_piece([*ids, separator, *ids])
    assert for_argos.decode_pieces(pieces) == "Jetzt lies es. Jetzt lies es."
    exported = dragoman.export(paragraphs_run(), to="huggingface", output=tmp_path / "export")
    tokenizer = AutoTokenizer.from_pretrained(exported.path)
    (text,) = tokenizer.batch_decode([[*ids, separator, *ids, EOS]], skip_special_tokens=True)
    assert text == "Jetzt lies es. Jetzt lies es."


def test_a_student_learns_sentences_of_a_teacher_of_paragraphs(tmp_path: Path) -> None:
    run = paragraphs_run()
    write_own_pairs(run, tmp_path / "pairs.tsv")
    pairs = (tmp_path / "pairs.tsv").read_text().splitlines()
    train = Manifest.load(run.prepared()).train
    assert len(pairs) == train.pairs - train.copies["context"]
    assert not any("it. " in pair or SEPARATOR in pair for pair in pairs)


@pytest.mark.parametrize("form", ["huggingface", "argos"])
def test_exports_take_paragraphs(form: str, tmp_path: Path) -> None:
    exported = dragoman.export(paragraphs_run(), to=form, output=tmp_path / form)
    lines = ["Now open the button.", "Now see it."]
    with dragoman.Translator(exported.path, threads=1) as opened:
        found = opened.translate(lines, context="paragraph")
    assert found == ["Jetzt öffne den Knopf.", "Jetzt lies ihn."]


def test_a_server_translates_paragraphs_and_names_a_model_that_cannot(tmp_path: Path) -> None:
    exported = dragoman.export(paragraphs_run(), to="ctranslate2", output=tmp_path / "bundle")
    text = "Now open the button. Now see it."
    with serving(exported.path, "--threads", "1") as server:
        joined = server.ask("/translate", {"text": text, "context": "paragraph"})
        assert joined.json["translations"][0]["text"] == "Jetzt öffne den Knopf. Jetzt lies ihn."
        lines = server.ask("/translate/stream", {"text": text, "context": "paragraph"})
        assert "lies ihn." in json.loads(lines.body.splitlines()[0])["text"]
        assert server.ask("/translate", {"text": text, "context": "page"}).status == 422
