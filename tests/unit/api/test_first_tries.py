"""The first tries of people in a notebook, from the documentation alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any, Literal

import pytest
import sacrebleu

import dragoman
from dragoman.cli import main
from real_text import real_lines
from small_run import small_run


def test_a_recipe_is_a_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sections: dict[str, Any] = {
        "corpus": {"train": [{"tsv": "en-de.tsv"}], "valid_pairs": 10, "seed": None},
        "model": {"d_model": 64},
    }
    (tmp_path / "recipe.toml").write_text(
        '[corpus]\ntrain = [{tsv = "en-de.tsv"}]\nvalid_pairs = 10\n[model]\nd_model = 64\n'
    )
    assert dragoman.load_recipe(sections) == dragoman.load_recipe("recipe.toml")
    changed = dragoman.load_recipe(sections, ["model.d_model=128"])
    assert changed.model.d_model == 128
    assert sections["model"] == {"d_model": 64}


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"model": {"d_modle": 3}, "corpus": {"train": [{"tsv": "en-de"}], "valid_pairs": 1}},
         "recipe: unknown key model.d_modle; did you mean d_model?"),
        ({"corpus": {"train": [{"tsv": "en-de"}]}}, "recipe: neither corpus.valid nor"),
        ({"corpus": 3}, "recipe: corpus is a section, not a value"),
        ({1: 2}, "name_or_path"),
    ],
)  # fmt: skip
def test_mistakes_in_a_dictionary_are_named_in_one_line(sections: Any, problem: str) -> None:
    with pytest.raises(dragoman.ConfigError) as error:
        dragoman.load_recipe(sections)
    assert problem.replace("name_or_path", "source") in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("corpus", "problem"),
    [
        ({"valid_pairs": "10"}, "corpus.valid_pairs = '10': must be a valid integer"),
        ({"valid_pairs": True}, "corpus.valid_pairs = True: must be a valid integer"),
        ({"valid_pair": 10}, "unknown key corpus.valid_pair; did you mean valid_pairs?"),
        ({}, "neither corpus.valid nor corpus.valid_pairs is set"),
    ],
)
def test_every_function_reads_a_dictionary_as_load_recipe_does(
    corpus: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sections = {"corpus": {"train": [{"tsv": "en-de.tsv"}], **corpus}}
    for call in (
        dragoman.load_recipe,
        dragoman.prepare,
        dragoman.train,
        lambda recipe: dragoman.plan(recipe, hosts=2, link="1Gbit", gpu="v100"),
        lambda recipe: dragoman.distill(small_run(), recipe),
    ):
        with pytest.raises(dragoman.ConfigError, match=re.escape(f"recipe: {problem}")):
            call(sections)


def test_files_of_a_dictionary_lie_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        dragoman.CorpusError, match=re.escape(f"{tmp_path / 'en-de.tsv'}: does not")
    ):
        dragoman.train({"corpus": {"train": [{"tsv": "en-de.tsv"}], "valid_pairs": 10}})


def nested(kind: type[list[Any]] | type[tuple[Any, ...]] | None) -> dict[str, Any]:
    """A recipe 3000 deep; kind: of arrays, None: of tables."""
    inner: Any = {}
    for _ in range(3000):
        inner = {"model": inner} if kind is None else kind([inner])
    return {"model": inner}


def endless(kind: str) -> dict[str, Any]:
    """A recipe that contains itself."""
    tables: dict[str, Any] = {}
    tables["model"] = tables if kind == "table" else [[tables] * 9, [tables] * 9]
    return tables


@pytest.mark.parametrize(
    "sections",
    [nested(None), nested(list), nested(tuple), endless("table"), endless("arrays")],
    ids=["tables", "arrays", "tuples", "itself", "itself often"],
)
def test_a_dictionary_that_is_nested_too_deep_is_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(dragoman.ConfigError, match="recipe: tables or arrays are nested over 16"):
        dragoman.load_recipe(sections)


def test_a_system_error_becomes_a_dragoman_error(tmp_path: Path) -> None:
    name = "a" * 5000
    for call in (
        lambda: dragoman.load_recipe(name),
        lambda: dragoman.Translator(name),
        lambda: dragoman.report(name),
        lambda: dragoman.export(small_run(), output=tmp_path / name),
    ):
        with pytest.raises(dragoman.MachineError, match="File name too long; check the disk and"):
            call()


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("text", lambda odd: dragoman.synthesize(small_run(), odd, "pairs.tsv")),
        ("output", lambda odd: dragoman.synthesize(small_run(), __file__, output=Path(odd))),
        ("output", lambda odd: dragoman.score(small_run(), __file__, odd)),
        ("source", lambda odd: dragoman.evaluate(small_run(), source=odd, reference=odd)),
        ("tests", lambda odd: dragoman.compare(small_run(), small_run(), tests=[(odd, odd)])),
        ("runs", lambda odd: dragoman.train("demo", runs=odd)),
        ("prepared", lambda odd: dragoman.prepare("demo", prepared=odd)),
        ("folder", lambda odd: dragoman.distill(small_run(), folder=odd)),
    ],
)
def test_a_path_with_nul_is_refused(place: str, call: Callable[[str], object]) -> None:
    said = rf"^{place}: 'mono\\x00\.de' has a NUL character, which no path can have; remove it$"
    with pytest.raises(dragoman.ConfigError, match=said):
        call("mono\0.de")


def test_a_recipe_is_not_changed_in_place() -> None:
    recipe = dragoman.load_recipe("demo")
    with pytest.raises(dragoman.ConfigError, match=r"override such as \"SECTION\.max_steps=5\""):
        recipe.train.max_steps = 5
    assert recipe == dragoman.load_recipe("demo")


def test_one_text_is_not_taken_for_a_list_of_them() -> None:
    run = small_run()
    with pytest.raises(dragoman.ConfigError, match=r"brackets: \['A man\.'\]"):
        dragoman.translate(run, "A man.")
    with pytest.raises(dragoman.ConfigError, match="one text"), dragoman.Translator(run) as opened:
        opened.translate("A man.")


def test_answers_show_themselves_at_a_prompt(tmp_path: Path) -> None:
    run = small_run()
    report = repr(dragoman.report(run))
    assert len(report.splitlines()) == 13
    assert "Is it overfitting?" in report
    plan = repr(dragoman.plan("demo", hosts=2, link="1Gbit", gpu="v100"))
    assert "Cheapest" in plan
    for language in ("en", "de"):
        lines = real_lines("test", language)[:20]
        (tmp_path / f"t.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (found,) = dragoman.compare(run, run, tests=[(tmp_path / "t.en", tmp_path / "t.de")])
    of = f"{tmp_path}/t.en, t.de, 20 sentences"
    assert repr(found).startswith(f"{of}: {run.path} and {run.path}")
    assert repr(found).endswith("better: neither is shown to be")


def test_an_evaluation_has_its_scores_by_name(tmp_path: Path) -> None:
    for language in ("en", "de"):
        lines = real_lines("test", language)[:5]
        (tmp_path / f"t.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source, reference = tmp_path / "t.en", tmp_path / "t.de"
    run = copytree(small_run().path, tmp_path / "run")  # which the scores are written into
    found = dragoman.evaluate(run, source=source, reference=reference, ranks=1)
    assert found.pairs == 5
    assert found.scores.keys() == {"bleu", "chrf"}
    assert found.scores["chrf"].value > 0
    assert found.scores["bleu"].signature.startswith("BLEU|")
    assert found.translations is not None
    assert len(found.translations.read_text(encoding="utf-8").splitlines()) == 5


@pytest.mark.system
@pytest.mark.parametrize("kind", ["huggingface", "ctranslate2"])
def test_an_export_is_scored_and_stays_as_it_is(
    kind: Literal["huggingface", "ctranslate2"], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, reference = tmp_path / "t.en", tmp_path / "t.de"
    for path in (source, reference):
        lines = real_lines("test", path.suffix[1:])[:5]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    exported = dragoman.export(small_run(), to=kind, output=tmp_path / "export").path
    before = {path: path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    events: list[dragoman.Event] = []
    found = dragoman.evaluate(
        exported,
        source=source,
        reference=reference,
        overrides=["search.beam_size=2"],
        on_event=events.append,
    )
    with dragoman.Translator(exported) as translator:
        texts = list(translator.translate(source.read_text("utf-8").splitlines(), beam_size=2))
    references = reference.read_text("utf-8").splitlines()
    assert found.scores["bleu"].value == sacrebleu.corpus_bleu(texts, [references]).score
    assert found.scores["chrf"].value == sacrebleu.corpus_chrf(texts, [references]).score
    assert (found.name, found.pairs, found.translations) == ("t", 5, None)
    assert [event.kind for event in events] == ["test_scored"]
    assert capsys.readouterr().out == ""
    words = ["evaluate", str(exported), "--source", str(source), "--reference", str(reference)]
    assert main([*words, "--set", "search.beam_size=2"]) == 0
    assert found.scores["bleu"].signature in capsys.readouterr().out
    assert {path: path.read_bytes() for path in exported.rglob("*") if path.is_file()} == before

    short = tmp_path / "short.de"
    short.write_text("Eins.\n", encoding="utf-8")
    for given, problem in (
        ({}, "an export has no test set of its own; give both source and reference"),
        ({"source": source, "reference": short}, "5 lines, the reference 1"),
        ({"source": source, "reference": reference, "checkpoint": 6}, "one checkpoint only"),
        ({"source": source, "reference": reference, "target_language": "xx"}, "xx"),
    ):
        with pytest.raises(dragoman.DragomanError, match=problem):
            dragoman.evaluate(exported, **given)


def test_remedies_are_words_of_this_interface() -> None:
    run = small_run()
    for call in (lambda: dragoman.evaluate(run), lambda: dragoman.compare(run, run)):
        with pytest.raises(dragoman.ConfigError, match="its source and its reference") as error:
            call()
        assert not re.search(r"(^|[\s(])--[a-z]", str(error.value).partition("; ")[0])


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda run: dragoman.export(run, to="onnx", quantization="int8"),
         "written in float32, not in int8"),
        (lambda run: dragoman.export(run, target_language="fr"),
         "target language fr: such an export"),
        (lambda run: dragoman.export(run, to="onnx", overrides=["search.beam_size=2"]),
         "search.beam_size=2: onnx has"),
        (lambda run: dragoman.export(run, onnxruntime_web="x.tgz"),
         "x.tgz: huggingface has no use"),
        (lambda run: dragoman.Translator(run, overrides=["train.seed=2"]), "train.seed=2: a model"),
        (lambda run: dragoman.translate(run, ["a"], target_language="xx"),
         "target language: the model does not"),
        (lambda run: dragoman.evaluate(run, target_language="xx"), "its source and its reference"),
    ],
)  # fmt: skip
def test_errors_use_the_names_common_to_commands_and_functions(
    call: Callable[[dragoman.RunDirectory], Any], problem: str
) -> None:
    """A command's options and a function's arguments have the same names but for the dashes."""
    with pytest.raises(dragoman.DragomanError) as error:
        call(small_run())
    assert problem in str(error.value)
    assert not re.search(r"(^|[\s(])--[a-z]", str(error.value).partition("; ")[0])


FROZEN: dict[str, Any] = {
    "corpus": {"train": [{"tsv": "en-de.tsv"}], "valid_pairs": 10},
    "train": {"freeze": ["encoder"]},
}


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: dragoman.plan("demo", hosts=2, gpu="v100"), "link: the speed of the network"),
        (lambda: dragoman.plan("demo", hosts=2), "gpu v100:4, hosts 2 and link 1Gbit"),
        (lambda: dragoman.plan("demo", gpu="v100:x"), "gpu: "),
        (lambda: dragoman.load_recipe("demo", ["train.max_step=20"]), "train.max_step=20: unknown"),
        (lambda: dragoman.run_recipe("demo", budget="5 bananas"), "budget 5 bananas: "),
        (lambda: dragoman.run_recipe("demo", budget="1 USD"), "budget 1 USD: no price turns"),
        (lambda: dragoman.run_recipe(small_run().path, budget="1h"),
         "^budget 1h: a run cannot get a new budget; leave it out"),
        (lambda: dragoman.run_recipe("demo", budgets="1h"),  # type: ignore[call-arg]
         "budgets: .*; did you mean budget?"),
        (lambda: dragoman.train(FROZEN), "train.freeze: .* start from, or"),
    ],
)  # fmt: skip
def test_errors_name_settings(
    call: Callable[[], Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dragoman.ConfigError, match=problem) as error:
        call()
    assert not re.search(r"(^|[\s(])--[a-z]", str(error.value).partition("; ")[0])
    assert [*tmp_path.iterdir()] == []


def test_the_command_line_names_them_alike(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "demo", "--gpu", "h1000"]) == 2
    assert "give tflops" in capsys.readouterr().err
    assert main(["plan", "demo", "--hosts", "2", "--gpu", "h100"]) == 2
    assert capsys.readouterr().err.startswith("dragoman: link: the speed of the network")
    with pytest.raises(dragoman.ConfigError, match=r"^link: "):
        dragoman.plan("demo", hosts="2", gpu="h100")


def test_a_notebook_shows_an_error_as_one_line() -> None:
    with pytest.raises(dragoman.ConfigError) as error:
        dragoman.load_recipe("demo", ["train.max_step=20"])
    (line,) = error.value._render_traceback_()
    assert line == f"ConfigError: {error.value}"


def test_a_run_is_opened_by_its_name(tmp_path: Path) -> None:
    run = small_run()
    assert dragoman.RunDirectory.open(str(run.path)).path == run.path
    found = dragoman.RunDirectory.newest(run.recipe(), runs=str(run.path.parent))
    assert found is not None
    assert found.path == run.path


def test_two_runs_of_one_second_have_two_names(tmp_path: Path) -> None:
    run = small_run()
    made = [
        dragoman.RunDirectory.create(run.recipe(), prepared=run.prepared(), runs=tmp_path)
        for _ in range(2)
    ]
    assert len({one.path for one in made}) == len([*tmp_path.iterdir()]) == 2


def test_a_folder_of_nothing_is_neither_run_nor_export(tmp_path: Path) -> None:
    with pytest.raises(dragoman.CheckpointError, match="neither a run nor an export"):
        dragoman.Translator(tmp_path)


def test_texts_of_several_sentences_are_documents() -> None:
    text = "A man sleeps. A dog runs."
    one, whole = (
        dragoman.translate(small_run(), [text], text_format=kind) for kind in ("line", "document")
    )
    with dragoman.Translator(small_run()) as translator:
        assert one == translator.translate([text])
        assert whole == translator.translate([text], text_format="document")
