"""One model of several languages, from its text to every place that it translates in."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dragoman
from dragoman.base.errors import ConfigError
from dragoman.cli import main
from dragoman.cli.summary import print_summary
from dragoman.corpus.directions import tempered
from dragoman.corpus.shards import TokenShards
from dragoman.distributed.world import join_world
from dragoman.evaluation.metrics import bleu
from dragoman.evaluation.validate import mean_loss
from dragoman.formats.argos import translate_as_argos
from dragoman.formats.bundle import Bundle
from dragoman.formats.huggingface import translate_with_huggingface
from dragoman.formats.trained_model import TranslationModel
from dragoman.recipe.run_directory import RunDirectory
from dragoman.reporting.reading import read_facts
from dragoman.telemetry.events import read_events
from kept import kept
from own_folder import own_folder
from parallel_text import write_lines
from served import serving
from web_export import greedy, static_server, web_export

pytestmark = pytest.mark.system
TARGETS = ("de", "fr")
SLICE = 100
"""Training pairs whose loss the recipe measures."""
_COLUMNS = ("source", "translation", "reference")
RECIPE = """
name = "languages"
[corpus]
source_language = "en"
target_language = "de"
temperature = 5
train = [
  {source = "train.en", target = "train.de"},
  {source = "few.en", target = "few.fr", target_language = "fr"},
]
valid = [
  {source = "valid.en", target = "valid.de"},
  {source = "valid.en", target = "valid.fr", target_language = "fr"},
  {source = "valid.de", target = "valid.fr", source_language = "de", target_language = "fr"},
]
test = [
  {source = "test.en", target = "test.de"},
  {source = "test.en", target = "test.fr", target_language = "fr"},
  {source = "test.de", target = "test.fr", source_language = "de", target_language = "fr"},
]
subword.vocab_size = 60
max_pieces = 60
[data]
batch_tokens = 1500
[model]
d_model = 48
num_heads = 4
d_ffn = 128
encoder_layers = 1
decoder_layers = 1
dropout = 0.0
[schedule]
kind = "inverse_sqrt"
peak_learning_rate = 0.006
warmup_steps = 30
[train]
max_steps = 200
log_every_steps = 100
validate_every_steps = 100
validate_at_start = false
[checkpoint]
every_steps = 100
[evaluate]
bleu_pairs = 30
train_slice_pairs = 100
bootstrap_samples = 10
[search]
beam_size = 3
length_penalty = "power"
"""


def train(folder: Path) -> None:
    """English words; with a syllable before each as German, and after each as French."""
    chosen = random.Random(1)
    words = ["".join(pair) for pair in itertools.product(("ba", "fi", "go", "hu"), repeat=2)]
    english = [" ".join(chosen.choices(words, k=chosen.randint(3, 8))) for _ in range(2000)]
    text = {
        "en": english,
        "de": [" ".join(f"ge{word}" for word in line.split()) for line in english],
        "fr": [" ".join(f"{word}que" for word in line.split()) for line in english],
    }
    for language, lines in text.items():
        write_lines(folder / f"train.{language}", lines[:1500])
        write_lines(folder / f"few.{language}", lines[:300])
        write_lines(folder / f"valid.{language}", lines[1500:1550])
        write_lines(folder / f"test.{language}", lines[1600:1640])
    (folder / "languages.toml").write_text(RECIPE)
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["run", "languages.toml"]) == 0
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def run() -> RunDirectory:
    folder = own_folder("languages")
    with kept("languages", train, Path(__file__)) as whole:
        shutil.copytree(whole, folder, dirs_exist_ok=True)
    (path,) = (folder / "runs").iterdir()
    (prepared,) = (folder / "prepared").iterdir()
    record = json.loads((path / "corpus.json").read_bytes())
    (path / "corpus.json").write_text(json.dumps(record | {"prepared": str(prepared)}))
    return RunDirectory.open(path)


@pytest.fixture(scope="module")
def english(run: RunDirectory) -> list[str]:
    return (run.path.parents[1] / "test.en").read_text().splitlines()


@pytest.fixture(scope="module")
def ours(run: RunDirectory, english: list[str]) -> dict[str, list[str]]:
    """Our own search, with PyTorch, into each language."""
    found = {}
    for target in TARGETS:
        with dragoman.Translator(run, target_language=target, engine="torch") as translator:
            found[target] = translator.translate(english)
    assert found["de"] != found["fr"]
    return found


@pytest.fixture(scope="module")
def bundle(run: RunDirectory) -> Path:
    return dragoman.export(run, to="ctranslate2").path


def events(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    path = run.events / "log.jsonl"
    return [event.payload for event in read_events(path) if event.kind == kind]


def test_the_scores_of_a_direction_are_those_of_its_lines(run: RunDirectory) -> None:
    scored = [one for one in events(run, "direction_scored") if one["text"] == "test"]
    assert [(one["source"], one["target"]) for one in scored] == [
        ("en", "de"),
        ("en", "fr"),
        ("de", "fr"),
    ]
    assert [one["zero_shot"] for one in scored] == [False, False, True]
    folder = run.path.parents[1]
    for one in scored:
        translated = (run.samples / f"test.{one['source']}-{one['target']}").read_text()
        references = (folder / f"test.{one['target']}").read_text().splitlines()
        again = bleu(translated.splitlines(), references).value
        assert one["bleu"] == pytest.approx(again)
    (whole,) = events(run, "test_scored")
    trained = [one["bleu"] for one in scored if not one["zero_shot"]]
    assert whole["bleu"] == pytest.approx(sum(trained) / 2)
    assert whole["pairs"] == sum(one["pairs"] for one in scored if not one["zero_shot"])
    for target in TARGETS:
        assert in_language((run.samples / f"test.en-{target}").read_text(), target) > 0.9


def test_the_end_of_a_run_shows_sentences_of_the_first_direction(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(run)
    shown = [line.split(None, 1) for line in capsys.readouterr().out.splitlines()]
    texts = {name: [line[1].rstrip() for line in shown if line[:1] == [name]] for name in _COLUMNS}
    folder = run.path.parents[1]
    lines = [(folder / f"test.{side}").read_text().splitlines() for side in ("en", "de")]
    translated = (run.samples / "test.en-de").read_text().splitlines()
    triples = list(zip(*texts.values(), strict=True))
    assert len(triples) == 3
    (hint,) = [line[1] for line in shown if line[:1] == ["translate"]]
    (source,) = [one[0] for one in triples if f"echo '{one[0]}' | dragoman" in hint]
    assert hint.endswith("--target de")
    assert source in lines[0]
    assert set(triples) <= set(zip(lines[0], translated, lines[1], strict=True))


def test_a_validation_is_the_mean_of_the_directions_with_text(run: RunDirectory) -> None:
    validated = events(run, "validated")
    scored = [one for one in events(run, "direction_scored") if one["text"] == "valid"]
    assert (len(validated), len(scored)) == (2, 6)
    for number, whole in enumerate(validated):
        trained = [one for one in scored[3 * number : 3 * number + 3] if not one["zero_shot"]]
        for key, mean in (("loss", whole["dev_loss"]), ("bleu", whole["bleu"])):
            assert sum(one[key] for one in trained) / len(trained) == pytest.approx(mean)
        assert whole["decoded_pairs"] == sum(one["pairs"] for one in trained) == 20


def test_training_text_is_measured_in_the_mean_of_the_directions(run: RunDirectory) -> None:
    last = events(run, "validated")[-1]
    with join_world() as world:
        loaded = TranslationModel.load(run, ["last"], world)
        shards = TokenShards(run.prepared() / "train")
        entries = shards.entries()
        losses = []
        for entry in (0, 1):
            pairs = np.flatnonzero(entries == entry)
            some = pairs[np.arange(SLICE // 2) * len(pairs) // (SLICE // 2)]
            losses.append(mean_loss(loaded.models[0], shards, some, world, batch_tokens=4096))
    assert last["train_slice_loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_directions_are_drawn_in_the_shares_of_the_temperature(run: RunDirectory) -> None:
    planned = events(run, "mixture_planned")
    assert [one["entry"] for one in planned] == ["train.en, en to de", "few.en, en to fr"]
    wanted = tempered([one["pairs"] for one in planned], 5.0)
    assert [one["share"] for one in planned] == pytest.approx(wanted, abs=1e-3)
    assert planned[1]["draws_per_pair"] > 2


def test_the_report_has_every_direction(run: RunDirectory) -> None:
    (one, *_) = [one for one in read_facts(run.path).direction_scores if one.zero_shot]
    assert (one.text, one.source, one.target) == ("valid", "de", "fr")
    page = dragoman.report(run)._repr_html_()
    for said in ("BLEU on dev, en to de", "BLEU on test, de to fr", "zero-shot"):
        assert said in page


def test_ctranslate2_translates_into_every_language(
    bundle: Path, english: list[str], ours: dict[str, list[str]]
) -> None:
    directions = Bundle.open(bundle).info.directions
    assert [(one.source, one.target, one.token, one.zero_shot) for one in directions] == [
        ("en", "de", "<2de>", False),
        ("en", "fr", "<2fr>", False),
        ("de", "fr", "<2fr>", True),
    ]
    for target in TARGETS:
        found = dragoman.translate(bundle, english, target_language=target)
        assert same(found, ours[target]) >= 0.95
    with dragoman.Translator(bundle, target_language="fr") as translator:
        (whole,) = translator.translate(["\n".join(english)], text_format="document")
    assert same(whole.split("\n"), ours["fr"]) >= 0.95


def test_ctranslate2_needs_nothing_of_ours(
    bundle: Path, english: list[str], ours: dict[str, list[str]]
) -> None:
    import ctranslate2
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(bundle / "source.model"))
    translator = ctranslate2.Translator(str(bundle))
    for target in TARGETS:
        rows = [[f"<2{target}>", *processor.encode(line, out_type=str)] for line in english]
        found = translator.translate_batch(rows, beam_size=3, length_penalty=0.6)
        texts = [processor.decode(one.hypotheses[0]) for one in found]
        assert same(texts, ours[target]) >= 0.8  # its search ends elsewhere


def test_transformers_translate_into_every_language(
    run: RunDirectory, english: list[str], ours: dict[str, list[str]]
) -> None:
    pytest.importorskip("transformers")
    export = dragoman.export(run, to="huggingface")
    assert export.verified.identical >= 0.95 * export.verified.sentences
    for target in TARGETS:
        texts = [f"<2{target}> {line}" for line in english]
        found = translate_with_huggingface(export.path, texts, run.recipe().search)
        assert same(found, ours[target]) >= 0.95
    card = (export.path / "README.md").read_text()
    assert "en to de, en to fr, de to fr" in card
    assert "zero-shot" in card
    assert "test en-fr, 40 lines" in card


def test_a_page_offers_every_direction(
    run: RunDirectory, english: list[str], tmp_path: Path, browser: Any
) -> None:
    folder = web_export(run, tmp_path / "web")
    with static_server(folder) as server:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.goto(server.url)
        page.wait_for_selector("#translate:not([disabled])")
        assert page.locator("#direction option").all_inner_texts() == [
            "English to German", "English to French", "German to French (no training text)",
        ]  # fmt: skip
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        for number, target in enumerate(TARGETS):
            page.focus("#direction")
            page.keyboard.press("ArrowDown" if number else "Home")
            assert page.text_content("#result") == ""
            assert page.get_attribute("#result", "lang") == target
            page.fill("#source", "\n".join(english))
            page.keyboard.press("Control+Enter")
            page.wait_for_selector("#time:text-matches('a sentence$')")
            found = page.text_content("#result").split("\n")
            assert same(found, greedy(run, [f"<2{target}> {line}" for line in english])) >= 0.95
        assert page.title() == "English to French"
        if screenshots := os.environ.get("DRAGOMAN_SCREENSHOTS"):
            page.screenshot(path=f"{screenshots}/web-languages.png", full_page=True)
    card = (folder / "README.md").read_text()
    assert "`<2fr>`" in card


def test_a_package_for_argos_has_one_language(
    run: RunDirectory, english: list[str], ours: dict[str, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="de, fr"):
        dragoman.export(run, to="argos", output=tmp_path / "none")
    package = dragoman.export(run, to="argos", output=tmp_path / "fr", target_language="fr").path
    with zipfile.ZipFile(package / "en_fr.argosmodel") as archive:
        archive.extractall(tmp_path)
    found = translate_as_argos(tmp_path / "translate-en_fr", english)
    assert same(found, ours["fr"]) >= 0.5  # it has a search of its own
    assert in_language(" ".join(found), "fr") > 0.9
    assert dragoman.translate(package, english) == found


def test_the_server_has_every_direction(
    bundle: Path, english: list[str], ours: dict[str, list[str]]
) -> None:
    with serving(bundle, "--threads", "1") as server:
        for target in TARGETS:
            body = {"text": english, "source": "en", "target": target}
            answer = server.ask("/translate", body).json
            assert {(one["source"], one["target"]) for one in answer["translations"]} == {
                ("en", target)
            }
            assert same([one["text"] for one in answer["translations"]], ours[target]) >= 0.95
            libre = {"q": english[0], "source": "en", "target": target}
            found = server.ask("/libretranslate/translate", libre).json["translatedText"]
            assert found == answer["translations"][0]["text"]
        languages = server.ask("/libretranslate/languages").json
        assert {one["code"]: one["targets"] for one in languages} == {
            "en": ["de", "en", "fr"],
            "de": ["de", "fr"],
            "fr": ["fr"],
        }
        models = server.ask("/models").json
        assert [(one["source"], one["target"], one["zero_shot"]) for one in models] == [
            ("en", "de", False),
            ("en", "fr", False),
            ("de", "fr", True),
        ]
        for wanted in ({"source": "fr", "target": "de"}, {}):
            refused = server.ask("/translate", {"text": "a", **wanted})
            assert refused.status == 404
            assert refused.json["error"].endswith("en to de, en to fr, de to fr")
        rows = [
            line
            for line in server.ask("/metrics").body.decode().splitlines()
            if line.startswith("dragoman_rows_total")
        ]
        assert len(rows) == 1  # one model, whose rows are counted once
        assert 'source="en,de",target="de,fr"' in rows[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["translate", "RUN"], "the model translates into de, fr, and nothing says into which"),
        (["translate", "RUN", "--target", "it"], "does not translate into 'it'"),
        (["evaluate", "RUN", "--source", "test.en", "--reference", "test.fr"], "de, fr"),
        (["evaluate", "RUN", "--target", "fr"], "says its languages itself"),
        (["export", "RUN", "--to", "ctranslate2", "--target", "fr"], "has all languages"),
        (["distill", "RUN"], "several directions (en to de, en to fr, de to fr), and a student"),
    ],
)
def test_wrong_uses_of_a_multilingual_model_are_refused_in_one_line(
    run: RunDirectory,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run.path.parents[1])
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n"))
    assert main([str(run.path) if one == "RUN" else one for one in arguments]) == 2
    said = capfd.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_other_text_is_scored_in_the_language_that_is_named(run: RunDirectory) -> None:
    folder = run.path.parents[1]
    found = dragoman.evaluate(
        run, source=folder / "test.en", reference=folder / "test.fr", target_language="fr"
    )
    (before, *_) = [
        one["bleu"]
        for one in events(run, "direction_scored")
        if (one["text"], one["source"], one["target"]) == ("test", "en", "fr")
    ]
    assert found.scores["bleu"].value == pytest.approx(before)
    assert found.translations == run.samples / "test.en.fr"


def test_two_sources_of_one_test_set_are_kept_apart(run: RunDirectory) -> None:
    folder = run.path.parents[1]
    for language in ("en", "de"):
        source = shutil.copy(folder / f"test.{language}", folder / f"news.{language}")
        found = dragoman.evaluate(
            run, source=source, reference=folder / "test.fr", target_language="fr"
        )
        assert found.name == f"news.{language}"
        assert found.translations == run.samples / f"news.{language}.fr"


def test_another_training_from_it_keeps_its_tokens(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = run.path.parents[1]
    text = RECIPE.replace("max_steps = 200", "max_steps = 2").replace("temperature = 5", "")
    lines = [line for line in text.splitlines() if 'target_language = "fr"' not in line]
    text = "\n".join(lines).replace("[corpus]", f'[corpus]\nfolder = "{folder}"')
    Path("one.toml").write_text(text.replace('name = "languages"', ""))
    tuned = dragoman.train("one.toml", origin=run.path)
    corpus = tuned.recipe().corpus
    assert (len(corpus.directions), corpus.language_tokens) == (1, ("<2de>",))
    assert dragoman.translate(tuned, ["bade"]) == dragoman.translate(
        tuned, ["bade"], target_language="de"
    )
    Path("three.toml").write_text(text.replace('target_language = "de"', 'target_language = "it"'))
    with pytest.raises(ConfigError, match="target language: <2it>"):
        dragoman.train("three.toml", origin=run.path)


def in_language(text: str, language: str) -> float:
    """The share of words that are of this language."""
    words = text.split()
    own = [word.startswith("ge") if language == "de" else word.endswith("que") for word in words]
    return sum(own) / len(words)


def same(found: list[str], others: list[str]) -> float:
    return sum(a == b for a, b in zip(found, others, strict=True)) / len(others)
