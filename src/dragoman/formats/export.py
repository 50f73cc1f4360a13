"""Writes a checkpoint of a run, or an imported model, in the formats of other programs.

An export is done only when it translates like our own search.

To add a format: enter it in `Kind`, `_WEIGHTS` and `_OWN` (formats/bundle.py), and in `_USES`
(formats/card.py); write its module beside this file; call it in `_write_weights`, which returns the
translations by the exported model. `_fill` compares them with ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle, islice, zip_longest
from pathlib import Path
from typing import Final

from safetensors.torch import save_file

from dragoman.base.errors import CheckpointError, ConfigError, CorpusError, DragomanError
from dragoman.base.version import VERSION
from dragoman.corpus.directions import (
    Direction,
    language_token,
    token_for,
    with_token,
    without_first_word,
)
from dragoman.corpus.imported_vocabulary import ImportedVocabulary
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.corpus.subword import VOCABULARIES, Subword, read_vocabulary, vocabulary_digests
from dragoman.corpus.vocabulary import Vocabulary
from dragoman.distributed.world import World
from dragoman.evaluation.metrics import chrf
from dragoman.evaluation.validate import read_lines
from dragoman.formats.argos import (
    MODEL_FOLDER,
    check_for_argos,
    pack,
    translate_as_argos,
    write_argos,
)
from dragoman.formats.bundle import (
    CARD_FILE,
    INFO_FILE,
    NUM_SENTENCES,
    Bundle,
    BundleDirection,
    BundleInfo,
    BundleScore,
    Kind,
    Verified,
    check_place,
    default_name,
)
from dragoman.formats.card import model_card, scores_of
from dragoman.formats.ctranslate2 import Quantization, write_ctranslate2
from dragoman.formats.ctranslate2_engine import CTranslate2Engine, fitting_cells
from dragoman.formats.huggingface import (
    check_expressible,
    translate_with_huggingface,
    write_huggingface,
)
from dragoman.formats.imported_form import write_imported
from dragoman.formats.int8_onnx import rounded
from dragoman.formats.load import fill_from, load_translation_model
from dragoman.formats.onnx import translate_with_onnx, write_onnx
from dragoman.formats.onnxruntime_web import runtime_files
from dragoman.formats.public import public_manifest, public_recipe
from dragoman.formats.web import SEARCH_KEYS, check_for_web, write_web
from dragoman.inference.translation import TranslationModel, checkpoint_path, new_model
from dragoman.model.config import SearchConfig, power_search
from dragoman.model.search import Hypothesis, translate_batch
from dragoman.recipe.recipe import Recipe, check_sections, dump_toml, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.training.durable import publish

_NOT_STATED: Final = "Not stated."
_UNPACKED: Final = "package"
"""The folder in a draft that a package for Argos Translate is made of."""
_OWN_SEARCH: Final = {"argos": (), "onnx": (), "web": SEARCH_KEYS}
"""Formats with a search of their own, and the keys of the recipe's search that it reads."""
_LEAST_IDENTICAL: Final = 0.9
_TRAINED_IDENTICAL: Final = 0.99
_LEAST_CHRF: Final = 98.0
_MOST_NATS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Request:
    """The options of an export.

    output: None: in the run; an imported model needs one.
    quantization: of the weights; None: int8 for Argos Translate and browsers, else float32.
    licence: of the model, in words for its card.
    sentences: a file of source text to check the export on; the run's dev set if it is None.
    target: the language of a package for Argos Translate, of a model of several.
    overrides: of the recipe's section search, such as "search.beam_size=2".
    onnxruntime_web: the package of that name for browsers; None: npm fetches it.
    """

    to: Kind
    checkpoint: str = "best"
    output: Path | None = None
    quantization: Quantization | None = None
    licence: str = _NOT_STATED
    sentences: Path | None = None
    target: str = ""
    overrides: Sequence[str] = ()
    onnxruntime_web: Path | None = None

    @property
    def bits(self) -> Quantization:
        """The wanted quantization, or the default of the format."""
        return self.quantization or ("int8" if self.to in ("argos", "web") else "float32")


@dataclass(frozen=True, slots=True)
class Exported:
    """The place of the export, and the result of its check.

    fewer_bits: whether the weights have fewer bits than those of the checkpoint.
    """

    path: Path
    size_bytes: int
    verified: Verified
    fewer_bits: bool


@dataclass(frozen=True, slots=True)
class _ExportJob:
    """An export under way.

    checkpoint: its directory, or an imported model's bundle.
    recipe, manifest: as far as they are written into it. runtime: the files of onnxruntime-web.
    tokens: of the target languages that it is for.
    """

    origin: RunDirectory | Bundle
    checkpoint: Path
    recipe: Recipe
    manifest: Manifest
    model: TranslationModel
    request: Request
    runtime: dict[str, bytes]
    tokens: tuple[str, ...]

    @property
    def direction(self) -> Direction:
        """The first direction that the export is for."""
        directions = self.recipe.corpus.directions
        fitting = (one for one in directions if self.request.target in ("", one.target))
        return next(fitting)

    def ids(self, texts: list[str]) -> list[list[int]]:
        """The ids of the texts, normalised."""
        return self.model.subwords[0].encode([self.normalized(text) for text in texts])

    def hypotheses(self, texts: list[str], search: SearchConfig) -> list[Hypothesis]:
        """The best hypothesis of our own search for each text."""
        return [best for best, *_ in translate_batch(self.model.models, self.ids(texts), search)]

    def ours(self, texts: list[str], search: SearchConfig) -> list[str]:
        """Translations by our own search."""
        return self.decoded([found.ids for found in self.hypotheses(texts, search)])

    def power_search(self) -> SearchConfig:
        """The recipe's search in the form that transformers has."""
        length = self.manifest.train.mean_target_tokens
        return power_search(self.recipe.search.without_guard(), length)

    def decoded(self, ids: list[list[int]]) -> list[str]:
        """The text of translations."""
        return self.model.subwords[1].decode(ids)

    def normalized(self, text: str) -> str:
        """The text in the form of training text."""
        return normalize(text, lowercase=self.model.lowercase)


def export(origin: RunDirectory | Bundle, request: Request, world: World) -> Exported:
    """Write one checkpoint's weights in a format, and check its translations against ours.

    origin: a run, or the bundle of an imported model.
    Raises ConfigError if the format cannot express the model, CheckpointError if the export
    differs from our own search, or if its place is taken. Nothing is left behind then.
    """
    check_sections(request.overrides, ("search",))
    _check_search(request)
    if request.to != "web" and request.onnxruntime_web is not None:
        raise ConfigError(
            f"{request.to} has no use for onnxruntime-web",
            place=request.onnxruntime_web,
            remedy="leave it out, or export to web",
        )
    recipe = public_recipe(load_recipe(origin.path / "recipe.toml", request.overrides))
    if request.to == "huggingface":
        check_expressible(recipe)
    _check_bits(request)
    if isinstance(origin, Bundle):
        _check_imported(origin, request)
    output = request.output or origin.path / "export" / default_name(request.to, request.bits)
    check_place(output, source=origin.path)
    if isinstance(origin, RunDirectory):
        checkpoint = checkpoint_path(origin, request.checkpoint, recipe)
        model = TranslationModel.load(origin, [str(checkpoint)], world)
    else:
        checkpoint = origin.path
        model = load_translation_model(origin.path, ["best"], world)
    tokens = recipe.corpus.language_tokens
    runtime: dict[str, bytes] = {}
    if request.to == "argos":
        check_for_argos(model.subwords)
        directions = recipe.corpus.directions
        token = token_for(request.target, directions, tokens)
        tokens = (token,) if token else ()
    elif request.target:
        raise ConfigError(
            "such an export has all languages of the model",
            place=f"target language {request.target}",
            remedy="leave it out; a package for Argos Translate has one",
        )
    if request.to == "web":
        for file in (origin.path / name for name in VOCABULARIES):
            check_for_web(read_vocabulary(file), place=file)
        runtime = runtime_files(request.onnxruntime_web)
    manifest = public_manifest(Manifest.load(origin.path))
    job = _ExportJob(origin, checkpoint, recipe, manifest, model, request, runtime, tokens)
    texts = _sentences(job)
    found: list[Verified] = []
    size_bytes = publish(output, lambda draft: found.append(_fill(job, texts, draft)))
    return Exported(output, size_bytes, found[0], fewer_bits=request.bits != "float32")


def _check_imported(bundle: Bundle, request: Request) -> None:
    """Raises ConfigError that names what an imported model lacks and a run would have."""
    lacking = remedy = ""
    if request.checkpoint != "best":
        lacking, remedy = f"checkpoint {request.checkpoint}", "leave it out"
    elif request.output is None:
        lacking, remedy = "place for exports", "name a new folder as the output"
    elif request.sentences is None:
        lacking, remedy = "dev set", "name a file of source sentences to check the export on"
    if lacking:
        raise ConfigError(f"an imported model has no {lacking}", place=bundle.path, remedy=remedy)


def _fill(job: _ExportJob, texts: list[str], draft: Path) -> Verified:
    """Write every file of the export; returns what its check found."""
    for name in VOCABULARIES:
        (draft / name).write_bytes(read_vocabulary(job.origin.path / name))
    (draft / "recipe.toml").write_text(dump_toml(job.recipe), encoding="utf-8")
    (draft / "manifest.json").write_text(job.manifest.model_dump_json(indent=1), encoding="utf-8")
    theirs = _write_weights(job, texts, draft)
    search = job.recipe.search
    if job.request.to in ("onnx", "web"):  # the graphs alone are checked
        search = _greedy(search)
    verified = compare(job.ours(texts, search), theirs)
    # If other programs search by their own rules, only the weights are compared.
    if job.request.bits == "float32" and job.request.to != "argos":
        their_search = search
        if job.request.to == "huggingface":
            their_search = job.power_search()
        elif job.request.to == "ctranslate2":
            their_search = search.as_in_ctranslate2()
        fair = verified
        if their_search != search:
            fair = compare(job.ours(texts, their_search), theirs)
        check_equal(fair, place=job.checkpoint)
    recipe, request, licence = job.recipe, job.request, job.request.licence
    scores: tuple[BundleScore, ...] = ()
    step, run, imported = None, "", ""
    if isinstance(job.origin, RunDirectory):
        scores, step = scores_of(job.origin, job.checkpoint, request.overrides)
        run = job.origin.path.resolve().name
    else:
        imported = job.origin.info.imported
        licence = job.origin.info.licence if licence == _NOT_STATED else licence
    directions = recipe.corpus.directions if request.to != "argos" else ()
    if len(directions) == 1 and not job.tokens:
        directions = ()
    info = BundleInfo(
        kind=request.to,
        name=recipe.name,
        dragoman_version=VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source_language=job.direction.source,
        target_language=job.direction.target,
        directions=tuple(
            BundleDirection(
                source=one.source,
                target=one.target,
                token=language_token(one.target) if job.tokens else "",
                zero_shot=one not in recipe.corpus.train_directions,
            )
            for one in directions
        ),
        licence=licence,
        run=run,
        checkpoint="" if imported else job.checkpoint.name,
        step=step,
        num_parameters=sum(weight.numel() for weight in job.model.models[0].parameters()),
        quantization=request.bits,
        vocabularies=vocabulary_digests(job.origin.path),
        imported=imported,
        scores=scores,
        verified=verified,
    )
    (draft / INFO_FILE).write_text(info.model_dump_json(indent=1), encoding="utf-8")
    first_piece = _code_of(job.model.subwords[0])
    card = model_card(info, recipe, job.manifest, first_piece=first_piece)
    (draft / CARD_FILE).write_text(card, encoding="utf-8")
    if request.to == "argos":
        (draft / _UNPACKED / CARD_FILE).write_text(card, encoding="utf-8")
        pack(draft / _UNPACKED, draft / info.weights_name)
    return verified


def _write_weights(job: _ExportJob, texts: list[str], draft: Path) -> list[str]:
    """Write the weights in the wanted format; returns translations by the exported model."""
    model, search = job.model.models[0], job.recipe.search
    digests = vocabulary_digests(job.origin.path)
    if job.request.to == "bundle":
        weights = {
            name: weight.detach().float().cpu().contiguous()
            for name, weight in model.named_parameters()
        }
        save_file(weights, draft / "model.safetensors", metadata=digests)
        read = new_model(job.recipe, job.manifest)
        fill_from(draft / "model.safetensors", read)
        read = read.to(job.model.world.device).eval()
        return replace(job, model=replace(job.model, models=(read,))).ours(texts, search)
    if job.request.to == "huggingface":
        subword, target = job.model.subwords
        if isinstance(subword, ImportedVocabulary) and isinstance(target, ImportedVocabulary):
            write_imported(model, job.recipe, job.power_search(), (subword, target), draft)
            if job.recipe.model.norm == "pre":
                return translate_with_huggingface(draft, texts, search)
            # The language that was chosen at import is a word of each text of MarianMT.
            code = _code_of(subword)
            return translate_with_huggingface(draft, [f"{code} {text}" for text in texts], search)
        assert isinstance(subword, Subword)
        pieces = subword.scored_pieces()
        write_huggingface(
            model, job.recipe, job.power_search(), pieces, draft, tokens=[*subword.tokens]
        )
        return translate_with_huggingface(draft, texts, search)
    ids = job.ids(texts)
    if job.request.to == "onnx":
        write_onnx(model, draft, metadata=digests)
        return job.decoded(translate_with_onnx(draft, ids, search, job.recipe.model.start_ids))
    if job.request.to == "web":
        return _write_web(job, texts, draft)
    subwords, bits = job.model.subwords, job.request.bits
    for_argos = job.request.to == "argos"
    folder, plain = draft, texts
    if for_argos:
        vocabulary = read_vocabulary(job.origin.path / VOCABULARIES[0])
        folder = draft / _UNPACKED / MODEL_FOLDER
        write_argos(
            model,
            subwords,
            vocabulary,
            draft / _UNPACKED,
            direction=job.direction,
            token=next(iter(job.tokens), ""),
            lowercase=job.recipe.corpus.lowercase,
            quantization=bits,
        )
        # CTranslate2 adds the prefix of a text itself there.
        plain = [without_first_word(text, job.tokens) for text in texts]
        ids = subwords[0].encode_plain([job.normalized(text) for text in plain])
    else:
        write_ctranslate2(model, subwords, folder, quantization=bits)
    engine = CTranslate2Engine(folder, subwords, batch_cells=fitting_cells(job.recipe.model))
    if bits != "float32" or for_argos:
        hypotheses = job.hypotheses(texts, search.without_guard())
        scored = engine.log_probabilities(ids, [found.ids for found in hypotheses])
        check_near(hypotheses, scored, place=job.checkpoint)
    if for_argos:
        return translate_as_argos(draft / _UNPACKED, plain)
    return job.decoded([best.ids for best, *_ in engine.search(ids, search)])


def _code_of(subword: Vocabulary) -> str:
    """The piece of a language that an imported vocabulary puts before each text, or ""."""
    if isinstance(subword, ImportedVocabulary):
        return "".join(subword.pieces([*subword.file.prefix]))
    return ""


def _write_web(job: _ExportJob, texts: list[str], draft: Path) -> list[str]:
    """Write the files for browsers; returns translations by their graphs.

    Raises CheckpointError if they are not those of our own search with the same rounded weights.
    """
    model, search = job.model.models[0], job.recipe.search
    digests = vocabulary_digests(job.origin.path)
    write_web(model, job.recipe, job.runtime, draft, metadata=digests)
    start_ids = job.recipe.model.start_ids
    found = job.decoded(translate_with_onnx(draft, job.ids(texts), search, start_ids))
    same = replace(job, model=replace(job.model, models=(rounded(model),)))
    check_equal(compare(same.ours(texts, _greedy(search)), found), place=job.checkpoint)
    return found


def _greedy(search: SearchConfig) -> SearchConfig:
    """The search of `translate_with_onnx`."""
    return search.without_guard().model_copy(update={"beam_size": 1, "end_at_limit": False})


def _check_search(request: Request) -> None:
    """Raises ConfigError for an override that the search of the format does not read."""
    if request.to not in _OWN_SEARCH:
        return
    keys = _OWN_SEARCH[request.to]
    for override in request.overrides:
        if override.partition("=")[0].partition(".")[2].strip() not in keys:
            reads = f", which reads {', '.join(keys)} alone" if keys else ""
            raise ConfigError(
                f"{request.to} has a search of its own{reads}",
                place=override,
                remedy="leave it out, or export to another format",
            )


def _check_bits(request: Request) -> None:
    """Raises ConfigError for a format that does not have such weights."""
    problem = ""
    if request.bits != "float32" and request.to not in ("ctranslate2", "argos", "web"):
        problem = f"only CTranslate2, Argos and web exports are written in {request.bits}"
    elif request.to == "web" and request.bits != "int8":
        problem = f"web exports are written in int8, not in {request.bits}"
    if problem:
        raise ConfigError(
            problem, place="quantization", remedy="export to ctranslate2, or leave it out"
        )


def _sentences(job: _ExportJob) -> list[str]:
    """Up to NUM_SENTENCES that fit the model; CorpusError if there are none."""
    file = job.request.sentences
    if file is None:
        assert isinstance(job.origin, RunDirectory)
        try:
            file = job.origin.prepared() / "valid" / "source.txt"
        except DragomanError as error:
            raise CheckpointError(
                f"no sentences to check the export on: {error.problem}",
                place=error.place,
                remedy="name a file of source sentences to check it on",
            ) from error
    lines = _for_every_language(read_lines(file), job.tokens)
    subword, longest = job.model.subwords[0], job.model.max_source_pieces
    fitting = (
        line for line in lines if 0 < len(subword.encode([job.normalized(line)])[0]) <= longest
    )
    chosen = list(islice(fitting, NUM_SENTENCES))
    if not chosen:
        raise CorpusError(
            f"has no sentence of 1 to {longest} pieces to check the export on",
            place=file,
            remedy="name another file of source sentences",
        )
    return chosen


def _for_every_language(lines: list[str], tokens: Sequence[str]) -> list[str]:
    """Lines that begin with these tokens, each in turn; they are put before lines of other text."""
    if not tokens:
        return lines
    own = [[line for line in lines if line.partition(" ")[0] == token] for token in tokens]
    if any(own):
        return [line for group in zip_longest(*own) for line in group if line is not None]
    return [with_token(token, line) for token, line in zip(cycle(tokens), lines, strict=False)]


def compare(ours: Sequence[str], theirs: Sequence[str]) -> Verified:
    """An export's translations beside our own of the same sentences."""
    identical = sum(a == b for a, b in zip(ours, theirs, strict=True))
    nearness = 100.0 if identical == len(ours) else chrf(theirs, ours).value
    return Verified(sentences=len(ours), identical=identical, chrf=round(nearness, 2))


def check_equal(verified: Verified, *, place: Path) -> None:
    """Check an export that has all bits of the weights.

    A line may differ if rounding decides a tie: one in a hundred with a trained model, more with
    one that has hardly learned. A wrong export (another norm, other positions) is far off.
    Raises CheckpointError if the translations are further apart than that.
    """
    few = verified.identical < _LEAST_IDENTICAL * verified.sentences
    if few or verified.chrf < _LEAST_CHRF:
        raise _wrong(
            f"translates {verified.sentences - verified.identical} of {verified.sentences} "
            f"sentences differently from our own search (chrF against it: {verified.chrf:.1f})",
            place,
        )


def warning_of(verified: Verified, *, fewer_bits: bool) -> str:
    """A warning for the user if more differs than rounding explains, else "".

    fewer_bits: whether the weights have fewer bits, which alone changes some translations.
    """
    others = verified.sentences - verified.identical
    if fewer_bits or verified.identical >= _TRAINED_IDENTICAL * verified.sentences:
        return ""
    return (
        f"warning: {others} of {verified.sentences} translations differ from our own search's; "
        "one in a hundred may if rounding decides, more if a model has hardly learned or its "
        "card names another length penalty; score the export on a test set before it is used"
    )


def check_near(
    hypotheses: Sequence[Hypothesis], log_probabilities: Sequence[Sequence[float]], *, place: Path
) -> None:
    """Check an export with fewer bits by the probability that it gives our own translations.

    Its own translations may differ much if the model has hardly learned.
    log_probabilities: the export's, for each piece of the hypotheses and for their end.
    Raises CheckpointError if they are over 0.2 nats a token away from ours.
    """
    distances = []
    for hypothesis, theirs in zip(hypotheses, log_probabilities, strict=True):
        # A translation that was cut off has no end, so one of two sums is the right one.
        whole, cut = sum(theirs), sum(theirs[:-1])
        distance = min(abs(total - hypothesis.log_probability) for total in (whole, cut))
        distances.append(distance / len(theirs))
    mean = sum(distances) / max(1, len(distances))
    if not mean <= _MOST_NATS:
        raise _wrong(f"is {mean:.2f} nats a token away from the model", place)


def _wrong(problem: str, place: Path) -> CheckpointError:
    return CheckpointError(
        f"the export {problem}; nothing was written",
        place=place,
        remedy="export it to another format, and report this",
    )
