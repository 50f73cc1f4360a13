"""The parts of a model card that programs read."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest
import yaml

import dragoman
from bundle_info import bundle_info
from card_example import printed_by_example
from dragoman.corpus.manifest import Manifest
from dragoman.distributed.world import join_world
from dragoman.formats.bundle import Bundle, BundleScore
from dragoman.formats.card import card_html, model_card
from dragoman.formats.export import export
from dragoman.formats.export_job import Request
from dragoman.formats.kinds import FORMATS, NOT_STATED, Kind, Quantization
from dragoman.formats.scores import scores_of
from dragoman.formats.trained_model import checkpoint_path
from dragoman.inference.scores import score_text
from dragoman.recipe.run_directory import RunDirectory
from dragoman.telemetry.events import EventWriter
from dragoman.training.average import average_checkpoints
from example_events import TEST_SCORED, changed
from parallel_text import sentences, write_pairs
from small_run import small_run
from tiny_recipe import TINY


def card_of(
    kind: Kind = "ctranslate2", licence: str = "CC0", scores: tuple[BundleScore, ...] = ()
) -> str:
    """The card of an export into Norwegian."""
    run = small_run()
    info = bundle_info(kind=kind, licence=licence, scores=scores)
    return model_card(info, run.recipe(), Manifest.load(run.path))


@pytest.mark.parametrize("kind", [*FORMATS])
@pytest.mark.parametrize(
    ("licence", "named"),
    [
        ("CC0 1.0", {"license": "cc0-1.0"}),
        ('Ours: "no"\n# sale', {"license": "other", "license_name": "ours-no-sale"}),
        (NOT_STATED, {}),
    ],
)
def test_the_header_of_every_format_has_languages_and_licence(
    kind: Kind, licence: str, named: dict[str, str]
) -> None:
    """Norwegian is written as YAML writes false."""
    _, header, _ = card_of(kind, licence).split("---", 2)
    values = yaml.safe_load(header)
    assert values["language"] == ["en", "no"]
    assert values["pipeline_tag"] == "translation"
    assert {key: one for key, one in values.items() if key.startswith("license")} == named


@pytest.mark.parametrize(
    ("licence", "line"),
    [
        ("CC BY 4.0\n\n## Scores\n\n- chrF: 99", "CC BY 4.0 ## Scores - chrF: 99"),
        ("CC0\r# A model\u2028# Of ours", "CC0 # A model # Of ours"),
        ("# Free", r"\# Free"),
        ("---", r"\---"),
        ("1. Free", r"1\. Free"),
        ("[free](https://example.org) <b>", r"\[free\](https://example.org) \<b\>"),
    ],
)
def test_a_licence_is_one_line_of_text(licence: str, line: str) -> None:
    assert f"\n\n## Licence\n\n{line}\n\n## Scores\n\nNone was measured" in card_of(licence=licence)


def test_a_page_without_scores_tells_of_no_beam() -> None:
    beam = f"Scores were measured with a beam of {small_run().recipe().search.beam_size}."
    score = BundleScore(text="dev", value=1.0, low=None, high=None, signature="chrF2")
    assert beam not in card_of("web")
    assert beam in card_of("web", scores=(score,))


@pytest.mark.system
def test_a_card_of_fewer_bits_says_when_its_scores_were_measured(tmp_path: Path) -> None:
    kinds: tuple[Quantization, ...] = ("float32", "int8")
    for quantization in kinds:
        output = tmp_path / quantization
        request = Request(to="ctranslate2", output=output, quantization=quantization)
        with join_world() as world:
            export(small_run(), request, world)
        card = (output / "README.md").read_text("utf-8")
        assert "chrF2|" in card
        says_so = "They were measured before the weights were written in int8." in card
        assert says_so == (quantization == "int8")


def test_a_score_is_listed_for_the_weights_and_the_search_that_had_it(tmp_path: Path) -> None:
    run = RunDirectory.open(copytree(small_run().path, tmp_path / "run"))
    best, average = checkpoint_path(run, "best", run.recipe()), run.path / "average"
    average_checkpoints([best, best], average)
    with join_world() as world, EventWriter(run.events) as events:
        for name, checkpoint, overrides in (
            ("own", "best", ["evaluate.bootstrap_samples=0"]),
            ("narrow", "best", ["search.beam_size=1"]),
            ("mean", str(average), []),
        ):
            source, reference = run.path / f"{name}.en", run.path / f"{name}.de"
            source.write_text("A man sings.\n")
            reference.write_text("Ein Mann singt.\n")
            score_text(
                run,
                checkpoint=checkpoint,
                source=source,
                reference=reference,
                overrides=overrides,
                world=world,
                events=events,
            )
    of_best, step = scores_of(run, best)
    assert step is not None
    assert {score.text for score in of_best if "dev" not in score.text} == {"own, 1 lines"}
    of_average, step = scores_of(run, average)
    assert step is None
    assert {score.text for score in of_average} == {"mean, 1 lines"}


def test_texts_of_one_name_have_scores_of_their_own(tmp_path: Path) -> None:
    run = RunDirectory.open(copytree(small_run().path, tmp_path / "run"))
    with join_world() as world, EventWriter(run.events) as events:
        for folder, name in (("2018", "news"), ("2019", "news"), ("2019", "valid")):
            place = tmp_path / folder
            place.mkdir(exist_ok=True)
            source, reference = place / f"{name}.en", place / f"{name}.de"
            source.write_text("A man sings.\n")
            reference.write_text("Ein Mann singt.\n")
            score_text(
                run,
                checkpoint="best",
                source=source,
                reference=reference,
                overrides=["search.beam_size = 1"],
                world=world,
                events=events,
            )
        best = checkpoint_path(run, "best", run.recipe())
        scored = next(one for one in dragoman.read_events(run, "test_scored"))
        for target in ("fr", "cs"):
            weights, settings = scored["weights"], "search.beam_size=1"
            of_target = {"name": "web", "weights": weights, "settings": settings, "target": target}
            events.write(changed(TEST_SCORED, **of_target))
    found, _ = scores_of(run, best, ["search.beam_size=1"])
    assert [score.text for score in found if score.signature.startswith("BLEU")] == [
        "2018/news, 1 lines",
        "2019/news, 1 lines",
        "valid.en, 1 lines",
        "web into fr, 1000 lines",
        "web into cs, 1000 lines",
    ]


def test_dev_scores_are_those_of_the_runs_own_checkpoint(tmp_path: Path) -> None:
    run = RunDirectory.open(copytree(small_run().path, tmp_path / "run"))
    own = checkpoint_path(run, "best", run.recipe())
    other = copytree(own, tmp_path / "other" / own.name)
    assert {score.text.split(",")[0] for score in scores_of(run, own)[0]} == {"dev"}
    assert scores_of(run, other)[0] == ()


@pytest.mark.slow
@pytest.mark.system
def test_the_card_of_one_direction_names_its_language_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(60))
    Path("tiny.toml").write_text(TINY)
    settings = ["train.max_steps=1", "data.batch_tokens=256", "evaluate.bleu_pairs=0"]
    run = dragoman.train(
        dragoman.load_recipe("tiny.toml", [*settings, "corpus.language_token=true"])
    )
    said: dict[Kind, str] = {
        "huggingface": 'tokenizer(["<2de> A sentence."]',
        "ctranslate2": 'pieces = ["<2de>", *source.encode(',
    }
    for kind, how in said.items():
        path = dragoman.export(run, to=kind).path
        (direction,) = Bundle.open(path).info.directions
        assert (direction.source, direction.target, direction.token) == ("en", "de", "<2de>")
        card = (path / "README.md").read_text()
        assert "A token says into which language: de `<2de>`." in card
        assert printed_by_example(path)
        assert how in card
    plain = dragoman.export(small_run(), output=tmp_path / "plain").path
    assert Bundle.open(plain).info.directions == ()
    assert "A token says" not in (plain / "README.md").read_text()


def test_a_card_becomes_html_without_that_of_its_author() -> None:
    shown = card_html(
        "---\nlicence: mit\n---\n# Fjord\n\n| set | BLEU |\n|---|---:|\n| test | 31.2 |\n\n"
        "<script>alert(1)</script> ![x](https://example.org/x.png) [run](javascript:alert(1))\n"
    )
    assert "<h1>Fjord</h1>" in shown
    assert "<td>31.2</td>" in shown
    assert "licence" not in shown
    assert not any(part in shown for part in ("<script", "<img", 'href="javascript'))
    assert "&lt;script&gt;" in shown
