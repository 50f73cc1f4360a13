"""The names that `import dragoman` gives."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import dragoman
from dragoman.formats.kinds import Kind
from parallel_text import sentences, write_pairs
from small_run import small_run
from tiny_recipe import TINY


def test_the_face_is_sorted_complete_and_documented() -> None:
    assert sorted(dragoman.__all__) == dragoman.__all__
    for name in dragoman.__all__:
        thing = getattr(dragoman, name)
        assert name == "__version__" or inspect.getdoc(thing), name
    assert dir(dragoman) == dragoman.__all__
    with pytest.raises(AttributeError, match="nothing_like_it"):
        dragoman.nothing_like_it  # noqa: B018


def test_the_import_is_light() -> None:
    program = "import dragoman, sys; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy", "pydantic", "rich", "sentencepiece"} & set(loaded)


def test_pytorch_is_loaded_only_for_computation() -> None:
    """Exports translate on machines without it, and a launcher of other processes loads none."""
    names = ["Translator", "load_recipe", "plan", "prepare", "read_events"]
    names += ["report", "score", "synthesize", "train"]
    program = (
        "import sys; sys.modules['torch'] = None\n"  # whoever imports it fails
        "import dragoman\n"
        "for name in sys.argv[1:]: getattr(dragoman, name)"
    )
    subprocess.run([sys.executable, "-c", program, *names], check=True)


def test_no_package_hides_a_function() -> None:
    """Importing dragoman.x.y sets dragoman.x: no function may have the name of a package."""
    packages = {path.name for path in Path(dragoman.__file__).parent.iterdir() if path.is_dir()}
    assert not packages & set(dragoman.__all__)


def test_a_translator_gives_texts_or_all_it_found() -> None:
    with dragoman.Translator(small_run(), threads=1) as translator:
        texts = translator.translate(["A man is running.", "Two dogs play."])
        assert [type(text) for text in texts] == [str, str]
        found = translator.translate(["A man is running."], beam_size=5, n_best=3)
        assert [len(one) for one in found] == [3]
        # Numbers out of a table are numpy's.
        five, three = np.int64(5), np.int64(3)
        assert translator.translate(["A man is running."], beam_size=five, n_best=three) == found  # type: ignore[call-overload]
        scores = [one.score for one in found[0]]
        assert scores == sorted(scores, reverse=True)
        assert list(translator.stream(iter(["Two dogs play."]))) == [texts[1]]
        assert translator.translate([]) == []
    given: Any
    for given in (["Two dogs play."], iter(["Two dogs play."]), np.array(["Two dogs play."])):
        assert dragoman.translate(small_run().path, given) == [texts[1]]


@pytest.mark.parametrize("to", ["huggingface", "ctranslate2"])
def test_an_export_translates_as_its_run_does(to: Kind, tmp_path: Path) -> None:
    texts = ["A man is running.", "Two dogs play in the snow.", "A woman reads."]
    done = dragoman.export(small_run(), to=to, output=tmp_path / to)
    assert dragoman.translate(done.path, texts) == dragoman.translate(small_run(), texts)


def test_a_model_for_onnx_is_refused(tmp_path: Path) -> None:
    done = dragoman.export(small_run(), to="onnx", output=tmp_path / "onnx")
    with pytest.raises(dragoman.CheckpointError, match="weights of an export of kind onnx"):
        dragoman.Translator(done.path)


def test_the_packages_have_one_order_everywhere() -> None:
    root = Path(__file__).resolve().parents[3]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    order = [layer.removeprefix("dragoman.") for layer in reversed(contract)][:-1]
    doc = re.findall(r"^([a-z]+)  +\S", dragoman.__doc__ or "", re.MULTILINE)
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert doc == order
    assert re.findall(r"^\| `([a-z]+)` \|", readme, re.MULTILINE) == order
    packages = Path(dragoman.__file__).parent
    assert {path.parent.name for path in packages.glob("*/__init__.py")} == set(order)


def test_a_translator_names_the_parameter_that_is_wrong() -> None:
    with dragoman.Translator(small_run(), engine="torch") as translator:
        with pytest.raises(dragoman.ConfigError, match="texts: is one text"):
            translator.translate("A man is running.")
        with pytest.raises(dragoman.ConfigError, match="beam_size: 0 cannot be used"):
            translator.translate(["A man."], beam_size=0)
        with pytest.raises(dragoman.ConfigError, match="9 translations"):
            translator.translate(["A man."], n_best=9)
    with pytest.raises(dragoman.CheckpointError, match="/nowhere: does not exist"):
        dragoman.Translator("/nowhere")
    with pytest.raises(dragoman.CheckpointError, match="hf download Helsinki-NLP/opus-mt-en-de"):
        dragoman.Translator("Helsinki-NLP/opus-mt-en-de")
    with pytest.raises(dragoman.ConfigError, match=r"train\.max_steps"):
        dragoman.Translator(small_run(), overrides=["train.max_steps=3"])


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dragoman.Recipe:
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(60))
    (tmp_path / "tiny.toml").write_text(TINY)
    return dragoman.load_recipe("tiny.toml", ["train.max_steps=6", "train.log_every_steps=2"])


def test_training_prints_nothing_and_tells_its_events(
    tiny: dragoman.Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    events: list[dragoman.Event] = []
    run = dragoman.train(tiny, ranks=1, workers=1, on_event=events.append)
    scores = dragoman.evaluate(run, ranks=1).scores
    report, table = dragoman.report(run), dragoman.read_events(run, "train_interval")
    assert capfd.readouterr() == ("", "")
    assert [event.step for event in events if event.kind == "train_interval"] == [2, 4, 6]
    assert [row["step"] for row in table] == [2, 4, 6]
    (prepared,) = dragoman.read_events(run, "corpus_prepared")
    assert prepared["train_pairs"] > 0
    assert dragoman.read_events(run)[0]["kind"].startswith("corpus_")
    assert scores["bleu"].signature.startswith("BLEU|")
    assert "<iframe srcdoc=" in report._repr_html_()
    assert "sandbox" in report._repr_html_()
    assert len(report.answers) == 12
    with pytest.raises(dragoman.ConfigError, match="fresh: a run keeps"):
        dragoman.train(run.path, fresh=True)
    assert dragoman.train(run.path, ranks=1) == run
    assert dragoman.RunDirectory(str(run.path)) == run  # type: ignore[arg-type]
    assert dragoman.evaluate(run, ranks=1, checkpoint=6).scores == scores
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_caller_s_own_file_comes_out_as_it_is(tiny: dragoman.Recipe) -> None:
    def post(_event: dragoman.Event) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(ConnectionRefusedError) as raised:
        dragoman.train(tiny, ranks=1, workers=1, on_event=post)
    assert raised.value.__notes__ == ["a function that dragoman was given has raised it"]


def test_an_error_of_the_caller_ends_the_training_and_a_thread_goes_on_with_it(
    tiny: dragoman.Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    class OutOfPatienceError(Exception):
        pass

    def give_up(event: dragoman.Event) -> None:
        if event.kind == "train_interval":
            raise OutOfPatienceError

    with pytest.raises(OutOfPatienceError):
        dragoman.train(tiny, ranks=1, workers=1, on_event=give_up)
    assert capfd.readouterr().out == ""
    done: list[dragoman.RunDirectory] = []
    thread = threading.Thread(
        target=lambda: done.append(dragoman.train(tiny, ranks=1, workers=1, progress=True))
    )
    thread.start()
    thread.join()
    (run,) = done
    assert len(list(run.path.parent.iterdir())) == 1
    assert dragoman.read_events(run, "run_finished")[-1]["reason"] == "max_steps"
    assert "trained to its end" in capfd.readouterr().out, "progress, as it was asked for"


def test_a_plan_has_the_shape_of_the_model_to_start_from() -> None:
    """The model of the demo's recipe has 3.5 million weights, that of the small run 68,000."""
    model = small_run()
    planned = dragoman.plan("demo", hosts=2, link="1Gbit", gpu="cpu", origin=model.path)
    (weights,) = model.path.glob("checkpoints/*/model.safetensors")
    computed = ("embed_positions", "final_logits_bias")  # stored, as transformers wants them
    trained = sum(
        tensor.numel()
        for name, tensor in load_file(weights).items()
        if not any(word in name for word in computed)
    )
    assert planned.workload.num_parameters == trained
    with pytest.raises(dragoman.CheckpointError, match="does not exist"):
        dragoman.plan("demo", hosts=2, link="1Gbit", gpu="cpu", origin="nowhere")


def test_a_plan_is_made_from_the_given_hosts_and_link(tiny: dragoman.Recipe) -> None:
    planned = dragoman.plan(tiny, hosts=2, link="1Gbit", gpu="cpu")
    assert {one.cluster.num_hosts for one in planned.options} == {1, 2}


def test_without_hosts_a_plan_times_this_machine(tiny: dragoman.Recipe) -> None:
    planned = dragoman.plan(tiny, price="1 USD")
    (only,) = planned.options
    assert only.run_s > 0
    assert only.price == pytest.approx(only.run_s / 3600)


def test_a_folder_without_a_run_has_no_events_and_no_report(tmp_path: Path) -> None:
    with pytest.raises(dragoman.CheckpointError, match="has no record of a training"):
        dragoman.read_events(tmp_path)
    with pytest.raises(dragoman.CheckpointError, match="is not a run"):
        dragoman.report(tmp_path)


WRONG: list[tuple[str, Callable[[Any, Any], object]]] = [
    ("ranks", lambda d, recipe: d.train(recipe, ranks=0)),
    ("ranks", lambda d, recipe: d.train(recipe, ranks=1.5)),
    ("workers", lambda d, recipe: d.prepare(recipe, workers=-1)),
    ("runs", lambda d, recipe: d.train(recipe, runs=None)),
    ("on_event", lambda d, recipe: d.train(recipe, on_event=5)),
    ("hosts", lambda d, recipe: d.train(recipe, hosts=5)),
    ("recipe", lambda d, _: d.prepare(None)),
    ("recipe", lambda d, _: d.plan([], hosts=2)),
    ("price", lambda d, recipe: d.plan(recipe, hosts=2, price=3)),
    ("tflops: nan cannot", lambda d, recipe: d.plan(recipe, hosts=2, tflops=float("nan"))),
    ("compute", lambda d, recipe: d.plan(recipe, hosts=2, compute=0.25)),
    ("run", lambda d, _: d.report(None)),
    ("run", lambda d, _: d.evaluate(5)),
    ("run", lambda d, _: d.read_events([])),
    ("kind", lambda d, _: d.read_events(small_run(), "nosuch")),
    ("overrides", lambda d, _: d.load_recipe("demo", "train.max_steps=3")),
    ("overrides", lambda d, _: d.load_recipe("demo", [5])),
    ("to", lambda d, _: d.export(small_run(), to="zip")),
    ("licence", lambda d, _: d.export(small_run(), licence=None)),
    ("engine", lambda d, _: d.Translator(small_run(), engine="x")),
    ("quantization", lambda d, _: d.Translator(small_run(), quantization="x")),
    ("quantization", lambda d, _: d.Translator(small_run(), quantization="float16")),
    (
        "quantization: 'float16' cannot be used: input should be 'float32' or 'int8'",
        lambda d, _: d.synthesize(small_run(), "text", "pairs", quantization="float16"),
    ),
    ("threads", lambda d, _: d.Translator(small_run(), threads=-1)),
    ("model", lambda d, _: d.Translator(None)),
    (
        "model: 5 cannot be used: input should be an instance of RunDirectory",
        lambda d, _: d.Translator(5),
    ),
    ("checkpoint", lambda d, _: d.Translator(small_run(), checkpoint=[])),
    ("folder", lambda d, _: d.import_model(None, "here")),
    ("nonsense", lambda d, recipe: d.train(recipe, nonsense=1)),
    ("workers", lambda d, recipe: d.prepare(recipe, workers=True)),
    ("workers", lambda d, recipe: d.prepare(recipe, workers="2")),
    ("fresh", lambda d, recipe: d.train(recipe, fresh="no")),
    ("run: is missing", lambda d, _: d.report()),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_a_wrong_argument_is_named_before_anything_happens(
    case: int, tiny: dragoman.Recipe, tmp_path: Path
) -> None:
    parameter, call = WRONG[case]
    before = sorted(tmp_path.iterdir())
    with pytest.raises(dragoman.ConfigError, match=rf"^{parameter}"):
        call(dragoman, tiny)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "texts", "options"),
    [
        ("texts: None cannot be used: it is not a list", None, {}),
        (r"texts\[1\]: 5 is not a text", ["a", 5], {}),
        (r"texts\[0\]: holds half a character \(a lone surrogate\) at position 0", ["\ud800"], {}),
        ("n_best: 0 cannot be used", ["a"], {"n_best": 0}),
        ("n_best: '3' cannot be used", ["a"], {"n_best": "3"}),
        ("beam_size: 1001 cannot be used", ["a"], {"beam_size": 1001}),
        ("text_format: 'x' cannot be used", ["a"], {"text_format": "x"}),
        ("context: 'x' cannot be used", ["a"], {"context": "x"}),
        ("terms: 5 cannot be used", ["a"], {"terms": 5}),
        ("terms: 6 cannot be used", ["a"], {"terms": {"a": 6}}),
        ("terms: 'a': ' ' is not a term", ["a"], {"terms": {"a": " "}}),
        ("context: the model was not trained on paragraphs", ["a"], {"context": "paragraph"}),
    ],
)
def test_bad_texts_and_options_are_named(words: str, texts: Any, options: Any) -> None:
    with dragoman.Translator(small_run()) as translator:
        with pytest.raises(dragoman.ConfigError, match=words):
            translator.translate(texts, **options)
        with pytest.raises(dragoman.ConfigError, match="texts: is one text"):
            list(translator.stream("Hello"))
    with pytest.raises(dragoman.ConfigError, match="is closed"):
        translator.translate(["a"])


@pytest.mark.system
def test_an_error_of_several_ranks_has_the_class_of_one(tiny: dragoman.Recipe) -> None:
    with pytest.raises(dragoman.TrainingError):
        dragoman.train(
            dragoman.load_recipe("tiny.toml", ["schedule.peak_learning_rate=1e9"]), ranks=2
        )
