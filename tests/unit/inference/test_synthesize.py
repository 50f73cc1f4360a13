"""Pairs made of monolingual text: what is written, what is dropped, what goes on."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import zstandard

import dragoman
from dragoman.base.errors import ConfigError, CorpusError
from dragoman.base.line_files import input_lines
from dragoman.cli import main
from dragoman.evaluation.validate import read_lines
from dragoman.formats.ctranslate2_engine import Sampling
from dragoman.inference.synthesize import SynthesisDirection, fault
from known_ends import known_sentences
from parallel_text import sentences, write_pairs
from real_text import real_lines
from small_run import small_run
from tiny_recipe import TINY


@pytest.mark.parametrize(
    ("text", "translation", "reason"),
    [
        ("a house", "ein Haus", None),
        ("", "ein Haus", "empty"),
        ("a house", "", "empty"),
        ("A House", "a house", "copied"),
        ("a house", "ein ein ein ein", "repeating"),
        ("a house", "ein ein ein", None),
        ("a house", "x der Hund der Hund der Hund der Hund", "repeating"),
        ("a house", "a b c d a b c d a b c d a b c d", "repeating"),
        ("no no no no", "nein nein nein nein", None),
        ("a dog", "我喜欢狗，我喜欢狗，我喜欢狗，我喜欢狗，", "repeating"),
        ("a dog", "我喜欢狗，狗喜欢我，10000 元。", None),
    ],
)
def test_translations_that_teach_nothing_have_a_reason(
    text: str, translation: str, reason: str | None
) -> None:
    assert fault(text, translation) == reason


def test_text_of_another_script_is_counted_and_makes_no_pair(tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    lines = [*known_sentences()["hi"], *known_sentences()["zh"], "\x0c", "\U0001f600", "", "A dog."]
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    made = dragoman.synthesize(small_run(), text, output)
    (pair,) = output.read_text("utf-8").splitlines()
    assert pair.endswith("\tA dog.")
    assert (made.dropped["copied"], made.dropped["empty"]) == (len(lines) - 2, 1)


@pytest.mark.parametrize("direction", ["back", "forward"])
def test_pairs_are_the_translations_and_their_texts(
    direction: SynthesisDirection, tmp_path: Path
) -> None:
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    lines = [line.replace("\t", " ") for line in real_lines("train", "en")[:3000]]
    lines[5] = ""
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    made = dragoman.synthesize(
        small_run(),
        text,
        output,
        direction=direction,
        overrides=["search.beam_size=1"],
    )
    with dragoman.Translator(small_run(), overrides=["search.beam_size=1"]) as translator:
        translated = translator.translate(lines)
    expected, dropped = [], 0
    for line, translation in zip(lines, translated, strict=True):
        source, target = line.strip(), translation.strip()
        if fault(source, target):
            dropped += 1
            continue
        pair = (target, source) if direction == "back" else (source, target)
        expected.append("\t".join(pair))
    assert output.read_text(encoding="utf-8").splitlines() == expected
    assert (made.lines, made.pairs) == (3000, len(expected))
    assert sum(made.dropped.values()) == dropped >= 1
    assert made.dropped["empty"] >= 1


def test_several_translations_and_samples(tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    lines = real_lines("valid", "en")[:50]
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    made = dragoman.synthesize(small_run(), text, output, n_best=2)
    pairs = [line.split("\t") for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(pairs) == made.pairs
    assert made.pairs + sum(made.dropped.values()) == 100
    assert len({target for _, target in pairs}) <= 50 < len({source for source, _ in pairs})
    drawn = []
    for name in ("one", "two"):
        dragoman.synthesize(small_run(), text, tmp_path / name, sample="all", temperature=2.0)
        drawn.append((tmp_path / name).read_text(encoding="utf-8"))
    assert drawn[0] != drawn[1]


def test_several_runs_are_an_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model beside its own copy translates as it does alone."""
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(small_run().path, copy)
    lines = [line.replace("\t", " ") for line in real_lines("train", "en")[:20]]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    words = ["--input", "text", "--direction", "forward"]
    model = ["synthesize", str(small_run().path), *words]
    together = ["--checkpoint", f"best,{copy}"]
    assert main([*model, *together, "--output", "0.tsv"]) == 0
    assert main(["synthesize", str(copy), *words, "--output", "1.tsv"]) == 0
    ensemble, alone = (Path(f"{number}.tsv").read_text(encoding="utf-8") for number in (0, 1))
    assert len(ensemble.splitlines()) > 5
    assert ensemble == alone
    shutil.rmtree(copy / "checkpoints")
    capsys.readouterr()
    assert main([*model, *together, "--output", "2.tsv"]) == 1
    assert "copy/checkpoints" in capsys.readouterr().err
    (copy / "bundle.json").touch()
    assert main([*model, *together, "--output", "2.tsv"]) == 1
    assert "copy: is an export" in capsys.readouterr().err


@pytest.mark.system
def test_an_export_needs_no_pytorch(tmp_path: Path) -> None:
    export = dragoman.export(small_run(), to="ctranslate2", output=tmp_path / "export").path
    (tmp_path / "text").write_text("a house\n", encoding="utf-8")
    program = (
        "import sys; sys.modules['torch'] = None\n"  # whoever imports it fails
        "import dragoman; dragoman.synthesize(*sys.argv[1:])"
    )
    words = [str(export), str(tmp_path / "text"), str(tmp_path / "pairs.tsv")]
    subprocess.run([sys.executable, "-c", program, *words], check=True, timeout=120)
    assert (tmp_path / "pairs.tsv").is_file()


def test_work_of_another_engine_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, after --ray another machine may translate with PyTorch alone."""
    monkeypatch.setattr("dragoman.inference.translator.LINES_AT_A_TIME", 20)
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    text.write_bytes(b"".join(f"{one}\n".encode() for one in real_lines("train", "en")[:70]))
    with text.open("ab") as file:
        file.write(b"\xff\n")  # ends the attempt after some groups
    with pytest.raises(CorpusError, match="line 71: is not UTF-8"):
        dragoman.synthesize(small_run(), text, output)
    draft = output.with_name(".pairs.tsv.partial")
    made = draft.read_bytes()
    assert made
    monkeypatch.setattr("dragoman.inference.translator.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"CTranslate2 has made the \d+ finished lines"):
        dragoman.synthesize(small_run(), text, output)
    assert draft.read_bytes() == made


def test_packed_and_wide_text_has_its_own_remedy(tmp_path: Path) -> None:
    text = tmp_path / "text"
    plain = b"a house\n" * 20

    def complaint() -> str:
        with pytest.raises(CorpusError) as caught, input_lines(text) as reader:
            list(reader.text())
        with pytest.raises(CorpusError, match=r"is packed|is not UTF-8"):
            read_lines(text)
        return str(caught.value)

    packed = {
        "gzip": gzip.compress(plain), "bzip2": bz2.compress(plain), "xz": lzma.compress(plain),
        "zstd": zstandard.compress(plain),
    }  # fmt: skip
    for name, content in packed.items():
        text.write_bytes(content)
        assert complaint() == f"{text}: is packed; unpack it: {name} -dc FILE > TEXT"
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("é" * 50, plain + b"\xff\n")  # its first lines are UTF-8
    assert complaint() == f"{text}: is packed; unpack it: unzip -p FILE > TEXT"
    text.write_text("a house\n", encoding="utf-16")
    assert complaint().endswith("line 1: is not UTF-8; convert it, for example with: "
                                "iconv -f utf-16 -t utf-8")  # fmt: skip


def test_text_in_the_other_language_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("py3langid")
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    text.write_text("".join(f"{line}\n" for line in real_lines("train", "de")[:20]), "utf-8")
    words = ["synthesize", str(small_run().path), "--input", str(text), "--output", str(output)]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{text}: seems to be in de, but the model translates en to de; name another" in said
    assert "or allow any language if the guess is wrong" in said
    with pytest.raises(ConfigError, match="or allow any language if the guess is wrong"):
        dragoman.synthesize(small_run(), text, output)
    assert not output.exists()
    assert main([*words, "--any-language"]) == 0
    assert output.exists()


def test_text_in_a_third_language_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    text.write_text(
        "Un homme en bleu est debout sur une échelle et nettoie la fenêtre.\n"
        "Deux hommes au fourneau préparent à manger pour leurs enfants.\n"
        "Une petite fille grimpe dans une maisonnette en bois près de la rivière.\n"
        "Les voisins regardent le match à la télévision jusqu'à minuit.\n",
        "utf-8",
    )
    with pytest.raises(ConfigError, match="seems to be in fr, but the model translates en to de;"):
        dragoman.synthesize(small_run(), text, output)
    assert not output.exists()


@pytest.mark.system
def test_text_in_the_wanted_target_language_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of both directions translates from its target language, too."""
    pytest.importorskip("py3langid")
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "train", sentences(60))
    files = '{source = "train.en", target = "train.de", source_language'
    back = '{source = "train.de", target = "train.en", source_language'
    Path("both.toml").write_text(
        TINY.replace(
            'train = [{source = "train.en", target = "train.de"}]',
            f'train = [{files} = "en", target_language = "de"}}, '
            f'{back} = "de", target_language = "en"}}]',
        )
    )
    settings = ["train.max_steps=1", "data.batch_tokens=256", "corpus.subword.vocab_size=80"]
    run = dragoman.train(dragoman.load_recipe("both.toml", settings))
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in real_lines("train", "de")[:20]), "utf-8")
    with pytest.raises(ConfigError, match="seems to be in de, but the model translates en to de;"):
        dragoman.synthesize(run, text, tmp_path / "pairs", target_language="de")
    dragoman.synthesize(run, text, tmp_path / "pairs", target_language="en")


def test_a_synthesis_needs_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a house\n")
    for none in ([], "", [""]):
        with pytest.raises(ConfigError, match=r"^checkpoint: is empty; give "):
            dragoman.synthesize(small_run(), tmp_path / "text", tmp_path / "out", checkpoint=none)


def test_a_beam_beside_sampling_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    text.write_text("A man.\n")
    beam = ["--set", "search.beam_size=4"]
    asked = ["synthesize", str(small_run().path), "--input", str(text), "--output", str(output)]
    capfd.readouterr()
    assert main([*asked, "--sample", "all", *beam]) == 2
    assert capfd.readouterr().err == (
        "dragoman: search.beam_size=4: has no effect: sampling draws one translation "
        "without a beam; leave it or sample out\n"
    )
    for override in ("search.candidates=8", "search.beam_size = 4", "search.beam_size="):
        with pytest.raises(ConfigError, match=rf"^{override}: has no effect: .*it or sample out"):
            dragoman.synthesize(small_run(), text, output, sample="all", overrides=[override])
    assert not output.exists()
    made = dragoman.synthesize(
        small_run(), text, output, sample="all", overrides=["search.beam_size=1"]
    )
    assert made.lines == 1


def test_bad_input_is_named(tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "pairs.tsv"
    text.write_text("")
    with pytest.raises(CorpusError, match="is empty"):
        dragoman.synthesize(small_run(), text, output)
    text.write_bytes(b"fine\n\xff\n")
    with pytest.raises(CorpusError, match=r"line 2: is not UTF-8; .* iconv -f latin1"):
        dragoman.synthesize(small_run(), text, output)
    text.write_text("fine\n")
    with pytest.raises(ConfigError, match="a beam of 4 cannot give 9"):
        dragoman.synthesize(small_run(), text, output, n_best=9)
    with pytest.raises(ConfigError, match="501 is more than the 500 pieces"):
        dragoman.synthesize(small_run(), text, output, sample=501)
    for top_k, temperature in ((-1, 1.0), (True, 1.0), (0, 0.0), (0, float("nan"))):
        with pytest.raises(ConfigError, match=r"is not a (number of pieces|temperature)"):
            Sampling(top_k, temperature)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"^-: does not stand for the standard output; name a"):
        dragoman.synthesize(small_run(), text, "-")
    with pytest.raises(ConfigError, match="pipe: is a device or a pipe"):
        dragoman.synthesize(small_run(), text, tmp_path / "pipe")
    with pytest.raises(ConfigError, match="the input too"):
        dragoman.synthesize(small_run(), text, text)
    packed = tmp_path / "pairs.tsv.GZ"
    problem = r"should not end in \.GZ; name .*/pairs\.tsv as the output, and pack that"
    with pytest.raises(ConfigError, match=problem):
        dragoman.synthesize(small_run(), text, packed)
    assert not output.exists()
    assert not packed.exists()
    output.write_text("The work of a night.\n")
    for command in (dragoman.synthesize, dragoman.score):
        with pytest.raises(ConfigError, match=r"exists already; name another file as the output"):
            command(small_run(), text, output)
    assert output.read_text() == "The work of a night.\n"
