"""M2M100 and NLLB: the same tokens, logits and translations as in transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.base.errors import ConfigError
from dragoman.cli import main
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.normalize import normalize
from dragoman.formats.huggingface import write_folder
from dragoman.formats.load import Origin
from dragoman.formats.onnx import translate_with_onnx, write_onnx
from dragoman.importing.folder import read_folder
from dragoman.importing.tokenizer import Languages
from dragoman.inference.translator import EngineName, open_translator
from dragoman.model.search import translate_batch
from dragoman.recipe.recipe import load_recipe
from foreign_models import NUM_SENTENCES, m2m100_folder, trained_spm
from real_text import real_lines, write_real_text
from trained_model import batch_of

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
LATIN = ["--source-language", "eng_Latn", "--target-language", "deu_Latn"]
LANGUAGES = {False: Languages("en", "de"), True: Languages("eng_Latn", "deu_Latn")}
VARIANTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "m2m100": (False, {}),
    "nllb": (True, {}),
    "gelu, no scale, unequal depths": (
        False,
        {"activation_function": "gelu", "scale_embedding": False, "encoder_layers": 1},
    ),
    "output alone": (True, {"tie_word_embeddings": False}),
    "swish": (True, {"activation_function": "swish", "decoder_layers": 3}),
}


NO_TRAINING = """
schedule.peak_learning_rate = 1e-12
train.validate_at_start = false
train.max_steps = 1
evaluate.bleu_pairs = 0
[corpus]
train = [{source = "train.en", target = "train.de"}]
valid = [{source = "valid.en", target = "valid.de"}]
[search]
length_penalty = "power"
length_penalty_alpha = 1.0
"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "nllb" else [pytest.mark.slow]) for name in VARIANTS],
)
def test_tokens_logits_and_beams_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    nllb, options = VARIANTS[name]
    folder, tokenizer = m2m100_folder(tmp_path / "model", nllb=nllb, options=options)
    imported = read_folder(folder, LANGUAGES[nllb])
    source, target = (
        ImportedVocabulary.parse(content, place=folder) for content in imported.vocabularies
    )
    for language in ("en", "de"):
        texts = real_lines("test", "en" if language == "en" else "de")
        for vocabulary, asked in (
            (source, tokenizer(texts)["input_ids"]),
            (target, tokenizer(text_target=texts)["input_ids"]),
        ):
            theirs_of = vocabulary.file.their_ids
            found = [[theirs_of[one] for one in ids] + [2] for ids in vocabulary.encode(texts)]
            assert sum(map(list.__eq__, found, asked)) == len(texts) == 500
        plain = [ids[1:-1] for ids in tokenizer(texts)["input_ids"]]
        assert target.decode(target.encode(texts)) == tokenizer.batch_decode(
            plain, skip_special_tokens=True
        )
    theirs = transformers.M2M100ForConditionalGeneration.from_pretrained(folder).eval()
    texts, references = real_lines("test", "en")[:12], real_lines("test", "de")[:12]
    asked = tokenizer(texts, text_target=references, padding=True, return_tensors="pt")
    labels = asked["labels"]
    inputs = torch.cat([torch.full((len(labels), 1), 2), labels[:, :-1]], dim=1)
    with torch.no_grad():
        wanted = theirs(
            input_ids=asked["input_ids"], attention_mask=asked["attention_mask"],
            decoder_input_ids=inputs,
        ).logits  # fmt: skip
        ids = target.encode(references)
        logits = imported.model.logits(batch_of(source.encode(texts), ids))
    order = torch.tensor(target.file.their_ids)
    for row, pieces in enumerate(ids):
        length = len(pieces) + 1
        expected = wanted[row, :length][:, order]
        torch.testing.assert_close(logits[row, :length], expected, rtol=0, atol=1e-5)
    texts = real_lines("test", "en")[:100]
    best = [
        [target.file.their_ids[one] for one in row[0].ids]
        for row in translate_batch([imported.model], source.encode(texts), imported.recipe.search)
    ]
    assert sum(map(list.__eq__, best, _beams(theirs, tokenizer, texts))) == 100
    assert len(set(map(tuple, best))) > 20
    write_onnx(imported.model, tmp_path, metadata={})
    ids = translate_with_onnx(
        tmp_path,
        source.encode(texts),
        imported.recipe.search,
        start_ids=imported.recipe.model.start_ids,
    )
    greedy = [[target.file.their_ids[one] for one in row] for row in ids]
    assert greedy == _beams(theirs, tokenizer, texts, num_beams=1, early_stopping=False)


@pytest.mark.slow
@pytest.mark.parametrize("nllb", [False, True])
def test_a_thousand_sentences_of_four_languages_have_the_same_tokens(
    tmp_path: Path, shared_data: Path, nllb: bool
) -> None:
    folder, tokenizer = m2m100_folder(tmp_path / "model", nllb=nllb)
    source, target = (
        ImportedVocabulary.parse(content, place=folder)
        for content in read_folder(folder, LANGUAGES[nllb]).vocabularies
    )
    for language in ("en", "de", "fr", "cs"):
        lines = (shared_data / "multi30k" / f"train.{language}").read_text("utf-8").splitlines()
        texts = lines[-1000:]
        for vocabulary, asked in (
            (source, tokenizer(texts)["input_ids"]),
            (target, tokenizer(text_target=texts)["input_ids"]),
        ):
            ids = vocabulary.encode([normalize(text) for text in texts])
            order = vocabulary.file.their_ids
            assert [[order[one] for one in row] + [2] for row in ids] == asked
            plain = [row[1:-1] for row in asked]
            written = tokenizer.batch_decode(plain, skip_special_tokens=True)
            # NLLB's leaves a space before an unknown last piece, which no line of ours ends with.
            assert vocabulary.decode(ids) == [text.strip() for text in written]


def _beams(theirs: Any, tokenizer: Any, texts: list[str], **options: Any) -> list[list[int]]:
    """Their ids without start, language, end and padding."""
    language = tokenizer.convert_tokens_to_ids(
        "deu_Latn" if isinstance(tokenizer, transformers.NllbTokenizer) else "__de__"
    )
    found = theirs.generate(
        **tokenizer(texts, padding=True, return_tensors="pt"),
        forced_bos_token_id=language,
        **options,
    )
    return [[one for one in row[2:] if one not in (1, 2)] for row in found.tolist()]


@pytest.mark.slow
def test_the_command_translates_with_both_engines(tmp_path: Path) -> None:
    """CTranslate2 as with its own converter's files and the language as target prefix."""
    ctranslate2 = pytest.importorskip("ctranslate2")
    folder, tokenizer = m2m100_folder(tmp_path / "model", nllb=True)
    bundle, lines, out = tmp_path / "bundle", tmp_path / "in.txt", tmp_path / "out.txt"
    arguments = ["import", str(folder), "--to", str(bundle)]
    assert main([*arguments, *LATIN]) == 0
    texts = real_lines("test", "en")[:100]
    lines.write_text("\n".join(texts) + "\n")
    found = {}
    for engine in ("torch", "ctranslate2"):
        out.unlink(missing_ok=True)
        arguments = ["translate", str(bundle), "--input", str(lines), "--output", str(out)]
        assert main([*arguments, "--engine", engine]) == 0
        found[engine] = out.read_text().splitlines()
    converter = ctranslate2.converters.TransformersConverter(str(folder))
    converter.convert(str(tmp_path / "converted"))
    model = ctranslate2.Translator(str(tmp_path / "converted"), inter_threads=1, intra_threads=1)
    pieces = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
    results = model.translate_batch(
        pieces, target_prefix=[["deu_Latn"]] * len(texts), beam_size=4, length_penalty=1.0,
        max_decoding_length=39, min_decoding_length=0,
    )  # fmt: skip
    spoken = [tokenizer.convert_tokens_to_ids(one.hypotheses[0][1:]) for one in results]
    expected = tokenizer.batch_decode(spoken, skip_special_tokens=True)
    assert sum(map(str.__eq__, found["ctranslate2"], expected)) == 100
    assert sum(map(str.__eq__, found["torch"], found["ctranslate2"])) >= 99


def check_the_same(back: Path, run: Path) -> None:
    """An export, imported again, has the weights and vocabularies of its run."""
    again, origin = Origin.open(back), Origin.open(run)
    weights = dict(again.model.named_parameters())
    assert all(torch.equal(weights[key], one) for key, one in origin.model.named_parameters())
    for side in (0, 1):
        files = [json.loads(one.vocabulary[side]) for one in (again, origin)]
        assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(VARIANTS))
def test_an_import_that_is_exported_is_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Hardly trained on, it has the logits, tokens and translations of the first folder."""
    monkeypatch.chdir(tmp_path)
    nllb, options = VARIANTS[name]
    folder, tokenizer = m2m100_folder(tmp_path / "model", nllb=nllb, options=options)
    languages = LANGUAGES[nllb]
    chosen = ["--source-language", languages.source, "--target-language", languages.target]
    assert main(["import", str(folder), "--to", "bundle", *chosen]) == 0
    write_real_text(tmp_path, "train", 40)
    write_real_text(tmp_path, "valid", 30)
    Path("new.toml").write_text(NO_TRAINING)
    assert main(["train", "new.toml", "--from", "bundle", "--workers", "1"]) == 0
    (run,) = Path("runs").iterdir()
    assert main(["export", str(run), "--to", "huggingface", "--output", "back"]) == 0
    check_the_same(Path("back"), run)
    models = [
        transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval() for path in (folder, "back")
    ]
    texts, references = real_lines("test", "en")[:12], real_lines("test", "de")[:12]
    asked = tokenizer(texts, text_target=references, padding=True, return_tensors="pt")
    with torch.no_grad():
        before, after = (model(**asked).logits for model in models)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    loaded = transformers.AutoTokenizer.from_pretrained("back")
    assert type(loaded) is type(tokenizer)
    for language in ("en", "de"):
        texts = real_lines("test", "en" if language == "en" else "de")
        for given in ({"text": texts}, {"text_target": texts}):
            assert loaded(**given)["input_ids"] == tokenizer(**given)["input_ids"]
    found = []
    texts = real_lines("test", "en")[:100]
    for beam_size in (1, 4):
        for model in models:  # the first folder does not say which language is the target
            model.generation_config.num_beams = beam_size
            model.generation_config.early_stopping = beam_size > 1
            model.generation_config.max_length = 40
            found.append(_beams(model, tokenizer, texts))
        assert sum(map(list.__eq__, found[-2], found[-1])) == 100
    assert models[1].generation_config.forced_bos_token_id == loaded.convert_tokens_to_ids(
        languages.target if nllb else f"__{languages.target}__"
    )


def test_training_on_takes_the_languages_of_the_recipe(tmp_path: Path) -> None:
    folder, _ = m2m100_folder(tmp_path / "model")
    file = folder / "tokenizer_config.json"
    own = {"src_lang": "it", "tgt_lang": "pl"}
    file.write_text(json.dumps(json.loads(file.read_bytes()) | own))
    text = {"source": "a", "target": "b"}
    named = {"source_language": "fr", "target_language": "cs"}
    for section, entry, expected in (
        (named, {}, "__fr__ __cs__"),
        ({}, named, "__fr__ __cs__"),
    ):
        train = [text | entry]
        recipe = load_recipe({"corpus": {"train": train, "valid_pairs": 9, **section}})
        vocabularies = [
            ImportedVocabulary.parse(content, place=folder)
            for content in Origin.open(folder, recipe).vocabulary
        ]
        found = [piece for one in vocabularies for piece in one.pieces([*one.file.prefix])]
        assert " ".join(found) == expected
    unknown = {"source_language": "fr", "target_language": "tlh"}
    recipe = load_recipe({"corpus": {"train": [text], "valid_pairs": 9, **unknown}})
    with pytest.raises(ConfigError, match="has no language 'tlh'"):
        Origin.open(folder, recipe)


def test_languages_before_the_mask_keep_their_ids(tmp_path: Path) -> None:
    """As published; transformers gives the mask an id first if nobody names one."""
    folder, _ = m2m100_folder(tmp_path / "model", nllb=True)
    file = folder / "tokenizer.json"
    fast = json.loads(file.read_bytes())
    numbers = {"deu_Latn": 801, "eng_Latn": 802, "fra_Latn": 803, "<mask>": 804}
    for token in fast["added_tokens"]:
        token["id"] = numbers.get(token["content"], token["id"])
    fast["added_tokens"].sort(key=lambda token: token["id"])
    fast["post_processor"] = None
    file.write_text(json.dumps(fast))
    imported = read_folder(folder, LANGUAGES[True])
    back = tmp_path / "back"
    back.mkdir()
    write_folder(imported.model, imported.recipe, 0.0, imported.vocabularies, back)
    tokenizers = [transformers.AutoTokenizer.from_pretrained(path) for path in (folder, back)]
    texts = real_lines("test", "en")[:100]
    first, second = (one(texts)["input_ids"] for one in tokenizers)
    assert first == second
    assert {name: tokenizers[1].convert_tokens_to_ids(name) for name in numbers} == numbers


def test_models_that_cannot_be_imported_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {nllb: m2m100_folder(tmp_path / f"good{nllb}", nllb=nllb)[0] for nllb in (False, True)}

    def change(folder: Path, name: str, **values: Any) -> None:
        content = json.loads((folder / name).read_bytes()) | values
        (folder / name).write_text(json.dumps(content))

    def other_pieces(folder: Path) -> None:
        lines = tuple(real_lines("train", "de")[:NUM_SENTENCES])
        (folder / "sentencepiece.bpe.model").write_bytes(trained_spm(lines, 500))

    english = ["--source-language", "en", "--target-language", "de"]
    cases: list[tuple[bool, Any, list[str], str]] = [
        (False, lambda folder: None, [*english[:3], "tlh"], "has no language 'tlh'"),
        (True, lambda folder: None, [*LATIN[:3], "ru"], "has no language 'ru'"),
        (False, lambda folder: (folder / "sentencepiece.bpe.model").unlink(), english, "missing"),
        (
            True,
            lambda folder: (folder / "tokenizer.json").unlink(),
            LATIN,
            "tokenizer.json: is miss",
        ),
        (False, lambda folder: (folder / "vocab.json").unlink(), english, "vocab.json: is missing"),
        (True, other_pieces, LATIN, "tokenizer.json: gives "),
        (
            False,
            lambda folder: change(folder, "tokenizer_config.json", language_codes=["x"]),
            english,
            """"language_codes" is ['x'], not""",
        ),
        (
            True,
            lambda folder: change(folder, "tokenizer_config.json", legacy_behaviour=True),
            LATIN,
            '"legacy_behaviour" is true: the language token would come after the text',
        ),
        (
            False,
            lambda folder: change(folder, "config.json", decoder_start_token_id=1),
            english,
            '"decoder_start_token_id" is 1',
        ),
        (
            True,
            lambda folder: change(folder, "generation_config.json", forced_bos_token_id=7),
            LATIN,
            '"forced_bos_token_id" is 7',
        ),
        (
            False,
            lambda folder: change(folder, "tokenizer_config.json", language_codes="mine"),
            english,
            "\"language_codes\" is 'mine'",
        ),
        (
            False,
            lambda folder: change(folder, "tokenizer_config.json", language_codes=["mine"]),
            english,
            "\"language_codes\" is ['mine']",
        ),
        (
            False,
            lambda folder: change(folder, "config.json", pad_token_id=2_000_000),
            english,
            '"pad_token_id" is 2000000',
        ),
    ]
    for number, (nllb, break_, languages, expected) in enumerate(cases):
        folder = shutil.copytree(good[nllb], tmp_path / f"bad{number}")
        break_(folder)
        capsys.readouterr()
        arguments = ["import", str(folder), "--to", str(tmp_path / "bundle"), *languages]
        assert main(arguments) in (1, 2)
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert expected in said, said
        assert not (tmp_path / "bundle").exists()


@pytest.mark.slow
def test_ctranslate2_begins_with_the_language_and_leaves_it_out(tmp_path: Path) -> None:
    """Pieces, scores and alignments are of the translation alone, as in our own search."""
    from dragoman.formats.ctranslate2 import write_ctranslate2
    from dragoman.formats.ctranslate2_engine import CTranslate2Engine

    folder, _ = m2m100_folder(tmp_path / "model", nllb=True)
    imported = read_folder(folder, LANGUAGES[True])
    source, target = (
        ImportedVocabulary.parse(content, place=folder) for content in imported.vocabularies
    )
    written = tmp_path / "ctranslate2"
    written.mkdir()
    write_ctranslate2(imported.model, (source, target), written, quantization="float32")
    engine = CTranslate2Engine(written, (source, target), batch_cells=100_000)
    ids = source.encode(real_lines("test", "en")[:40])
    search = imported.recipe.search
    ours = translate_batch([imported.model], ids, search, num_hypotheses=3)
    theirs = engine.search(ids, search, num_hypotheses=3)
    for mine, other in zip(ours, theirs, strict=True):
        assert [one.ids for one in mine] == [one.ids for one in other]
        assert [one.score for one in mine] == pytest.approx([one.score for one in other], abs=1e-4)
    scored = engine.log_probabilities(ids, [best.ids for best, *_ in ours])
    for (best, *_), found in zip(ours, scored, strict=True):
        assert len(found) == len(best.ids) + 1
        sums = (sum(found), sum(found[:-1]))  # of one that was cut off, without its end
        assert min(abs(one - best.log_probability) for one in sums) < 1e-3
    alignment = engine.align(ids[0], ours[0][0].ids[:6])
    assert alignment.target == target.pieces(ours[0][0].ids[:6])
    assert len(alignment.weights) == 6


def test_a_limit_of_its_own_counts_the_language(tmp_path: Path) -> None:
    """A short row beside a long one ends where it ends alone, with scores or without."""
    pytest.importorskip("ctranslate2")
    bundle, folder = tmp_path / "bundle", tmp_path / "model"
    m2m100_folder(folder, nllb=True)
    assert main(["import", str(folder), "--to", str(bundle), *LATIN]) == 0
    search = ["search.beam_size=1", "search.max_length_ratio=1", "search.max_length_extra=0"]
    found = {}
    ways: list[tuple[EngineName, bool]] = [
        ("ctranslate2", False), ("ctranslate2", True), ("torch", True),
    ]  # fmt: skip
    for engine, scored in ways:
        with open_translator(
            bundle, checkpoints=["best"], overrides=search, engine=engine, threads=1
        ) as opened:
            rows = opened.translator.encode(real_lines("test", "en")[:40], "line").rows
            results = opened.translator.engine.submit(rows, opened.recipe.search, scored=scored)
            found[engine, scored] = [best.ids for best, *_ in results()]
    assert found["ctranslate2", False] == found["ctranslate2", True] == found["torch", True]
    lengths = [len(ids) for ids in found["torch", True]]
    at_limit = [length for length, row in zip(lengths, rows, strict=True) if length > len(row) - 3]
    assert len(set(at_limit)) > 5, "rows of several lengths have met their limits"


@pytest.mark.parametrize(
    ("nllb", "asked"), [(True, ("EN", "de-AT")), (True, ("eng", "deu")), (False, ("eng", "DE"))]
)
def test_a_language_may_be_written_in_any_usual_way(
    nllb: bool, asked: tuple[str, str], tmp_path: Path
) -> None:
    folder, _ = m2m100_folder(tmp_path / "model", nllb=nllb, options={})
    same = read_folder(folder, LANGUAGES[nllb])
    found = read_folder(folder, Languages(*asked))
    assert found.recipe.corpus == same.recipe.corpus
    assert found.vocabularies == same.vocabularies
