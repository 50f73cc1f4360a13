"""Exports of a real run: read back, checked against our search, and noticed when damaged."""

from __future__ import annotations

import hashlib
import json
import pickletools
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dragoman.base.errors import CheckpointError, ConfigError, CorpusError
from dragoman.cli import main
from dragoman.corpus.manifest import Manifest
from dragoman.distributed.world import World, join_world
from dragoman.formats import ctranslate2_engine
from dragoman.formats.bundle import Bundle
from dragoman.formats.check import check_equal, check_near, compare
from dragoman.formats.ctranslate2_engine import Candidate, CTranslate2Engine
from dragoman.formats.export import Exported, export
from dragoman.formats.export_job import Request
from dragoman.formats.huggingface import translate_with_huggingface
from dragoman.formats.kinds import Kind
from dragoman.formats.load import load_translation_model
from dragoman.formats.trained_model import TranslationModel
from dragoman.inference.translator import translator_of
from dragoman.model.config import SearchConfig, power_search
from dragoman.model.search import Hypothesis
from dragoman.recipe.run_directory import RunDirectory
from dragoman.training.durable import verify
from small_run import small_run

LINES = ["A man in a red shirt.", "Two dogs run through the snow.", "", "A woman is singing."]


@pytest.fixture
def run() -> RunDirectory:
    return small_run()


def exported(run: RunDirectory, to: Kind, output: Path, **options: object) -> Exported:
    with join_world() as world:
        return export(run, Request(to=to, output=output, **options), world)  # type: ignore[arg-type]


def ours(run: RunDirectory, world: World) -> list[str]:
    model = TranslationModel.load(run, ["best"], world)
    return model.translate(LINES, run.recipe().search)


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Exported]:
    """One export of a kind for all tests, which change nothing in it."""
    folder = tmp_path_factory.mktemp("exports")
    return cache(lambda kind: exported(small_run(), kind, folder / kind))


@pytest.fixture
def bundle(exports: Callable[[Kind], Exported], tmp_path: Path) -> Path:
    """A copy to damage, as those below."""
    return shutil.copytree(exports("huggingface").path, tmp_path / "bundle")


@pytest.fixture
def for_ctranslate2(exports: Callable[[Kind], Exported], tmp_path: Path) -> Path:
    return shutil.copytree(exports("ctranslate2").path, tmp_path / "ct2")


@pytest.fixture
def every_kind(
    exports: Callable[[Kind], Exported], tmp_path: Path, bundle: Path, for_ctranslate2: Path
) -> list[Path]:
    others: list[Kind] = ["onnx", "argos"]
    return [
        bundle,
        for_ctranslate2,
        *(shutil.copytree(exports(kind).path, tmp_path / kind) for kind in others),
    ]


@pytest.mark.system
def test_every_format_translates_as_the_run_does(
    run: RunDirectory, exports: Callable[[Kind], Exported]
) -> None:
    with join_world() as world:
        expected = ours(run, world)
        path = exports("huggingface").path
        loaded = load_translation_model(path, ["best"], world)
        assert loaded.translate(LINES, run.recipe().search) == expected
        done = exports("ctranslate2")
        assert done.verified.sentences == 100
        assert done.verified.identical >= 97
        translator = translator_of(Bundle.open(done.path), threads=1)
        found = translator.translate(LINES, run.recipe().search, text_format="line")
        assert [best.text for best, *_ in found] == expected
        one_by_one = translator_of(Bundle.open(done.path), threads=1, batch_cells=1)
        again = one_by_one.translate(LINES, run.recipe().search, text_format="line")
        assert [best.text for best, *_ in again] == expected


def test_a_search_whose_scores_nobody_reads_finds_the_same(for_ctranslate2: Path) -> None:
    translator = translator_of(Bundle.open(for_ctranslate2), threads=1)
    for beam_size in (1, 3):
        search = SearchConfig(beam_size=beam_size)
        with_scores, without = (
            [best for (group,) in [list(found)] for best, *_ in group]
            for found in (
                translator.stream(LINES, search, text_format="line", scored=scored)
                for scored in (True, False)
            )
        )
        assert [one.text for one in with_scores] == [one.text for one in without]
        assert [one.score < 0 for one in with_scores] == [bool(line) for line in LINES]


@pytest.mark.parametrize(
    ("cells", "tokens", "scores", "cores", "most"),
    [
        (10**9, 10**9, 10**9, 1, 200),
        (2 * 11 * 7, 10**9, 10**9, 1, 7),
        (10**9, 11 * 6, 10**9, 1, 6),
        (10**9, 10**9, 2 * 5, 1, 5),
        (10**9, 10**9, 10**9, 2, 64),  # some for each core: the last ones are the shorter
        (10**9, 10**9, 10**9, 8, 32),
    ],
)
def test_batches_are_bounded_by_cells_tokens_scores_and_cores(
    for_ctranslate2: Path,
    monkeypatch: pytest.MonkeyPatch,
    cells: int,
    tokens: int,
    scores: int,
    cores: int,
    most: int,
) -> None:
    opened = Bundle.open(for_ctranslate2)
    pieces = len(opened.subwords()[1].all_pieces())
    monkeypatch.setattr(ctranslate2_engine, "BATCH_SCORES", scores * pieces)
    monkeypatch.setattr(ctranslate2_engine, "BATCH_TOKENS", tokens)
    monkeypatch.setattr(ctranslate2_engine, "cpu_cores", lambda: cores)
    engine = CTranslate2Engine(opened.path, opened.subwords(), threads=cores, batch_cells=cells)
    begun: list[int] = []
    search_batch = engine.search_batch

    def recorded(sources: list[list[int]], *rest: Any, **named: Any) -> list[list[Candidate]]:
        begun.append(len(sources))
        return search_batch(sources, *rest, **named)

    monkeypatch.setattr(engine, "search_batch", recorded)
    sources = [[5] * 10 for _ in range(200)]
    found = engine.search(sources, SearchConfig(beam_size=2))
    assert len(found) == 200
    assert begun[: 200 // most] == [most] * (200 // most)


def test_a_thread_may_translate_after_the_main_thread_has_ended(for_ctranslate2: Path) -> None:
    program = """
import sys, threading
from dragoman import Translator
translator = Translator(sys.argv[1], threads=1)
def work():
    threading.main_thread().join()
    print(len(translator.translate(["ein wort", "und noch eins"])))
threading.Thread(target=work).start()
"""
    command = [sys.executable, "-c", program, str(for_ctranslate2)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.stderr) == ("2\n", "")


@pytest.mark.system
@pytest.mark.parametrize("quantization", ["int8", "float16"])
def test_fewer_bits_stay_near(
    run: RunDirectory,
    exports: Callable[[Kind], Exported],
    tmp_path: Path,
    quantization: str,
) -> None:
    whole = exports("ctranslate2")
    small = exported(run, "ctranslate2", tmp_path / "small", quantization=quantization)
    assert small.size_bytes < 0.6 * whole.size_bytes
    assert small.verified.sentences == 100


@pytest.mark.system
def test_transformers_loads_it_without_code_of_ours(
    run: RunDirectory, exports: Callable[[Kind], Exported]
) -> None:
    done = exports("huggingface")
    assert done.verified.identical >= 97
    texts = [line for line in LINES if line]
    length = Manifest.load(run.path).train.mean_target_tokens
    search = power_search(run.recipe().search, length)
    with join_world() as world:
        expected = TranslationModel.load(run, ["best"], world).translate(texts, search)
    assert translate_with_huggingface(done.path, texts, search) == expected
    exponent = pytest.approx(0.6 * length / (5 + length), abs=1e-3)
    written = json.loads((done.path / "generation_config.json").read_bytes())["length_penalty"]
    assert written == search.length_penalty_alpha == exponent
    card = (done.path / "README.md").read_text("utf-8")
    assert f"the length penalty length^{written:g}. Training and scores used" in card
    assert not list(done.path.glob("*.py"))


def test_the_card_names_scores_and_corpora_but_no_local_path(
    bundle: Path, run: RunDirectory
) -> None:
    card = (bundle / "README.md").read_text("utf-8")
    scores = Bundle.open(bundle).info.scores
    assert scores
    for score in scores:
        assert f": {score.value:.2f}" in card
    assert "train.en" in card
    for file in bundle.iterdir():
        if file.suffix in (".json", ".toml", ".md"):
            assert str(run.path.parent) not in file.read_text("utf-8"), file


def test_onnx_runtime_translates_as_the_run_does(
    exports: Callable[[Kind], Exported], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = exports("onnx")
    assert (done.verified.sentences, done.verified.identical) == (100, 100)
    assert "memory_keys" in (done.path / "README.md").read_text("utf-8")
    (tmp_path / "in").write_text("A man.\n")
    capfd.readouterr()
    assert main(["translate", str(done.path), "--input", str(tmp_path / "in")]) == 1
    assert "export of kind onnx" in capfd.readouterr().err


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime"])
def test_without_its_libraries_onnx_is_one_line(
    run: RunDirectory,
    tmp_path: Path,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    capfd.readouterr()
    output = tmp_path / "onnx"
    assert main(["export", str(run.path), "--to", "onnx", "--output", str(output)]) != 0
    assert capfd.readouterr().err == (
        f"dragoman: {missing} is not installed; install it: pip install 'dragoman[onnx]'\n"
    )
    assert not output.exists()


def test_a_flipped_byte_is_noticed_in_every_file(every_kind: list[Path]) -> None:
    for directory in every_kind:
        for file in sorted(directory.iterdir()):
            whole = file.read_bytes()
            torn = bytearray(whole)
            torn[len(torn) // 2] ^= 1
            file.write_bytes(bytes(torn))
            with pytest.raises(CheckpointError) as caught:
                Bundle.open(directory)
            assert "\n" not in str(caught.value)
            file.write_bytes(whole)
        Bundle.open(directory)


def test_a_damaged_list_of_digests_is_not_blamed_on_a_file_alone(bundle: Path) -> None:
    digests = json.loads((bundle / "digests.json").read_bytes())
    digests["model.safetensors"]["sha256"] = digests["README.md"]["sha256"]
    (bundle / "digests.json").write_text(json.dumps(digests))
    with pytest.raises(CheckpointError, match=r"either model\.safetensors or digests\.json"):
        Bundle.open(bundle)


def test_a_missing_part_is_noticed(every_kind: list[Path]) -> None:
    for directory in every_kind:
        for file in sorted(directory.iterdir()):
            aside = directory.parent / "aside"
            file.rename(aside)
            with pytest.raises(CheckpointError, match=r"\S"):
                Bundle.open(directory)
            # Some files of transformers are for comfort, and CTranslate2 asks for its list of
            # pieces itself; the others are asked for by name.
            if file.name not in (
                "digests.json",
                "generation_config.json",
                "shared_vocabulary.json",
            ):  # nor if it is missing in the list of files as well
                forget(directory, file.name)
                with pytest.raises(CheckpointError):
                    Bundle.open(directory)
            aside.rename(file)
            redo_digests(directory)


def test_the_command_says_it_in_one_line(
    bundle: Path, run: RunDirectory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(bundle), "--output", str(out)]) == 1
    assert "is an export; name the run" in capfd.readouterr().err
    (bundle / "target.model").unlink()
    (tmp_path / "in").write_text("A man.\n")
    code = main(["translate", str(bundle), "--input", str(tmp_path / "in"), "--output", str(out)])
    assert code == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "target.model" in error
    assert not out.exists()
    assert main(["export", str(run.path), "--output", str(tmp_path / "in")]) == 1
    assert (tmp_path / "in").read_text() == "A man.\n", "nothing but an export is replaced"


def test_a_recipe_that_transformers_lacks_is_refused_before_a_model_is_looked_for(
    run: RunDirectory, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run.path, other, ignore=shutil.ignore_patterns("checkpoints"))
    recipe = (other / "recipe.toml").read_text(encoding="utf-8")
    assert "[model]\n" in recipe
    recipe = re.sub(r"(?m)^positions = .*\n", "", recipe)
    changed = recipe.replace("[model]\n", '[model]\npositions = "marian"\n')
    (other / "recipe.toml").write_text(changed, encoding="utf-8")
    with pytest.raises(ConfigError, match="positions"):
        exported(RunDirectory(other), "huggingface", tmp_path / "no")


def test_impossible_exports_are_refused_and_leave_nothing(
    run: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="huggingface exports are written in float32, not in int8"
    ):
        exported(run, "huggingface", tmp_path / "no", quantization="int8")
    with pytest.raises(CorpusError, match="cannot be read"):
        exported(run, "huggingface", tmp_path / "no", sentences=tmp_path / "none.txt")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("text", ["\n", " \n\t\n", "A man. " * 500 + "\n"])
def test_an_export_that_nothing_checked_is_not_called_done(
    run: RunDirectory, tmp_path: Path, text: str
) -> None:
    (tmp_path / "in").write_text(text)
    with pytest.raises(CorpusError, match="no sentence of 1 to 60 pieces"):
        exported(run, "huggingface", tmp_path / "no", sentences=tmp_path / "in")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_no_pickle_is_written_or_read(
    bundle: Path,
    for_ctranslate2: Path,
    every_kind: list[Path],
    run: RunDirectory,
    tmp_path: Path,
) -> None:
    written = [*every_kind, run.path.parent.parent]  # with checkpoints, shards and the text
    files = [file for folder in written for file in folder.rglob("*") if file.is_file()]
    assert {".npy", ".safetensors", ".json", ".onnx", ".jsonl"} <= {file.suffix for file in files}
    for file in files:
        assert not is_pickle(file.read_bytes()), file
        if file.suffix == ".argosmodel":
            with zipfile.ZipFile(file) as package:
                assert not any(is_pickle(package.read(name)) for name in package.namelist())
        else:
            assert not zipfile.is_zipfile(file), file
    (tmp_path / "in").write_text("A man.\n")
    program = """
import pickle, sys
from dragoman.cli import main
from dragoman.inference import translate as translate_command
from dragoman.formats import load
def forbid(*arguments, **options):
    raise RuntimeError("a pickle is read or written")
for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
    setattr(pickle, name, forbid)
for path in sys.argv[2:]:
    assert main(["translate", path, "--input", sys.argv[1]]) == 0
"""
    paths = [str(path) for path in (tmp_path / "in", bundle, for_ctranslate2, run.path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 3


def is_pickle(content: bytes) -> bool:
    """Whether Python's unpickler would run through it."""
    try:
        return bool(list(pickletools.genops(content)))  # which ends where a pickle ends
    except Exception:  # whatever is wrong with it as a program
        return content[:1] == b"\x80" and content[1:2] <= b"\x05"


def forget(directory: Path, name: str) -> None:
    file = directory / "digests.json"
    digests = json.loads(file.read_bytes())
    digests.pop(name, None)
    file.write_text(json.dumps(digests))


def redo_digests(directory: Path) -> None:
    digests = {
        file.name: {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "bytes": file.stat().st_size,
        }
        for file in directory.iterdir()
        if file.name != "digests.json"
    }
    (directory / "digests.json").write_text(json.dumps(digests))


def test_an_older_export_is_replaced(bundle: Path, run: RunDirectory) -> None:
    before = (bundle / "bundle.json").read_bytes()
    exported(run, "huggingface", bundle, licence="MIT")
    assert (bundle / "bundle.json").read_bytes() != before


@pytest.mark.parametrize("name", ["notes/todo.txt", "README.md", "digests.json"])
def test_files_that_a_user_put_into_an_export_are_kept(
    bundle: Path, run: RunDirectory, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("my own words")
    files = sorted(bundle.rglob("*"))
    arguments = ["export", str(run.path), "--output", str(bundle)]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert name.partition("/")[0] in error
    assert "move this one elsewhere" in error
    assert sorted(bundle.rglob("*")) == files
    assert (bundle / name).read_text() == "my own words"


def test_a_checkpoint_is_not_taken_for_an_older_export(run: RunDirectory) -> None:
    (checkpoint,) = run.checkpoints.glob("step-*")
    with pytest.raises(CheckpointError, match="is not an export"):
        exported(run, "huggingface", checkpoint)
    verify(checkpoint)


def test_another_model_is_not_called_done(run: RunDirectory) -> None:
    far = Hypothesis([5, 6], -1.0, -1.0)
    with pytest.raises(CheckpointError, match="nats per token"):
        check_near([far], [[-9.0, -9.0, -9.0]], place=run.path)
    check_near([far], [[-0.5, -0.4, -0.1]], place=run.path)
    for theirs in (["another"] * 20, ["the same"] * 17 + ["another"] * 3):
        with pytest.raises(CheckpointError, match="differently from our own"):
            check_equal(compare(["the same"] * 20, theirs), place=run.path)


def test_another_search_goes_into_the_export(run: RunDirectory, tmp_path: Path) -> None:
    overrides = ["search.beam_size=1", "search.max_length_ratio=1.5"]
    done = exported(run, "ctranslate2", tmp_path / "out", overrides=overrides)
    opened = Bundle.open(done.path)
    assert opened.recipe.search.beam_size == 1
    assert opened.recipe.search.max_length_ratio == 1.5
    assert opened.recipe.model == run.recipe().model
    assert not opened.info.scores, "they were measured with another search"
    assert exported(run, "ctranslate2", tmp_path / "own").verified.sentences == 100
    assert Bundle.open(tmp_path / "own").info.scores


@pytest.mark.parametrize(
    ("to", "override", "problem"),
    [
        ("argos", "search.beam_size=1", "argos has a search of its own"),
        ("onnx", "search.beam_size=1", "onnx has a search of its own"),
        ("web", "search.beam_size=2", "web has a search of its own, which reads max_length_ratio"),
        ("huggingface", "model.d_model=96", "can be used with other search only"),
        ("huggingface", "search.beam=1", "did you mean beam_size?"),
    ],
)
def test_a_setting_that_the_export_cannot_have_is_refused(
    run: RunDirectory, tmp_path: Path, to: Kind, override: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        exported(run, to, tmp_path / "out", overrides=[override])
    assert not (tmp_path / "out").exists()


def test_a_package_for_browsers_is_refused_for_another_format(
    run: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="huggingface has no use for onnxruntime-web"):
        exported(run, "huggingface", tmp_path / "out", onnxruntime_web=tmp_path / "package.tgz")
    assert not (tmp_path / "out").exists()
