"""A checkpoint of a run, written for others and checked before it is called done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from safetensors.torch import save_file

from dragoman import __version__
from dragoman.base.errors import CheckpointError, ConfigError, CorpusError, DragomanError
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.normalize import normalize
from dragoman.corpus.subword import VOCABULARIES, read_vocabulary, vocabulary_digests
from dragoman.distributed.world import World
from dragoman.evaluate.validate import read_lines
from dragoman.export.bundle import (
    CARD_FILE,
    INFO_FILE,
    BundleInfo,
    Kind,
    Quantization,
    Verified,
    default_name,
)
from dragoman.export.card import model_card
from dragoman.export.ctranslate2 import write_ctranslate2
from dragoman.export.ctranslate2_engine import CTranslate2Engine, fitting_cells
from dragoman.export.huggingface import (
    check_expressible,
    translate_with_huggingface,
    write_huggingface,
)
from dragoman.export.load import fill_from
from dragoman.export.onnx import translate_with_onnx, write_onnx
from dragoman.export.public import public_manifest, public_recipe
from dragoman.export.scores import scores_of
from dragoman.export.verify import NUM_SENTENCES, check_equal, check_near, compare
from dragoman.inference.translation import TranslationModel, checkpoint_path, new_model
from dragoman.model.config import SearchConfig, power_search
from dragoman.model.search import Hypothesis, translate_batch
from dragoman.recipe.recipe import Recipe, dump_toml
from dragoman.recipe.run_directory import RunDirectory
from dragoman.train.durable import DIGESTS_FILE, publish


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be exported.

    licence: of the model, in words for its card.
    sentences: a file of source text to check the export on; the run's dev set where it is None.
    """

    to: Kind
    checkpoint: str = "best"
    output: Path | None = None
    quantization: Quantization = "float32"
    licence: str = "Not stated."
    sentences: Path | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """Where the export lies, and what its check found."""

    path: Path
    size_bytes: int
    verified: Verified


@dataclass(frozen=True, slots=True)
class _Job:
    """What the writers need; recipe: what of it goes out."""

    run: RunDirectory
    checkpoint: Path
    recipe: Recipe
    model: TranslationModel
    request: Request

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Their pieces."""
        return self.model.subwords[0].encode([self.normalized(text) for text in texts])

    def hypotheses(self, texts: list[str], search: SearchConfig) -> list[Hypothesis]:
        """The best of our own search."""
        return [best for best, *_ in translate_batch(self.model.models, self.ids(texts), search)]

    def ours(self, texts: list[str], search: SearchConfig) -> list[str]:
        """Translations by our own search."""
        return self.decoded([found.ids for found in self.hypotheses(texts, search)])

    def decoded(self, ids: list[list[int]]) -> list[str]:
        """The text of translations."""
        return self.model.subwords[1].decode(ids)

    def normalized(self, text: str) -> str:
        """As training text was."""
        return normalize(text, lowercase=self.model.lowercase)


def export(run: RunDirectory, request: Request, world: World) -> Exported:
    """Write one checkpoint's weights in a format, and check its translations against ours.

    Raises ConfigError where the format cannot express the model, CheckpointError where the export
    translates otherwise than we do, or another directory is in its place. Nothing is left then.
    """
    recipe = public_recipe(run.recipe())
    if request.to == "huggingface":
        check_expressible(recipe)
    if request.quantization != "float32" and request.to != "ctranslate2":
        raise ConfigError(
            f"only CTranslate2 exports are written in {request.quantization}",
            place="--quantization",
            remedy="export --to ctranslate2, or leave it out",
        )
    name = default_name(request.to, request.quantization)
    output = request.output or run.path / "export" / name
    _check_free(output)
    checkpoint = checkpoint_path(run, request.checkpoint, recipe)
    model = TranslationModel.load(run, [str(checkpoint)], world)
    job = _Job(run, checkpoint, recipe, model, request)
    texts = _sentences(job)
    found: list[Verified] = []
    size_bytes = publish(output, lambda draft: found.append(_fill(job, texts, draft)))
    return Exported(output, size_bytes, found[0])


def _fill(job: _Job, texts: list[str], draft: Path) -> Verified:
    """Write every file of the export; returns what its check found."""
    write, translate = {
        "bundle": (_write_bundle, _translate_bundle),
        "ctranslate2": (_write_ctranslate2, _translate_ctranslate2),
        "huggingface": (_write_huggingface, _translate_huggingface),
        "onnx": (_write_onnx, _translate_onnx),
    }[job.request.to]
    for name in VOCABULARIES:
        (draft / name).write_bytes(read_vocabulary(job.run.path / name))
    (draft / "recipe.toml").write_text(dump_toml(job.recipe), encoding="utf-8")
    (draft / "manifest.json").write_text(
        _manifest(job.run).model_dump_json(indent=1), encoding="utf-8"
    )
    write(job, draft)
    search, theirs = _checked_search(job), translate(job, texts, draft)
    verified = compare(job.ours(texts, search), theirs)
    if job.request.quantization == "float32":
        same_penalty = _power_search(job) if job.request.to == "huggingface" else search
        fair = (
            verified if same_penalty == search else compare(job.ours(texts, same_penalty), theirs)
        )
        check_equal(fair, place=job.checkpoint)
    _describe(job, verified, draft)
    return verified


def _describe(job: _Job, verified: Verified, draft: Path) -> None:
    """The export's description, for programs and for people."""
    recipe, request = job.recipe, job.request
    scores, step = scores_of(job.run, job.checkpoint)
    info = BundleInfo(
        kind=request.to,
        name=recipe.name,
        dragoman_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source_language=recipe.corpus.source_language,
        target_language=recipe.corpus.target_language,
        licence=request.licence,
        run=job.run.path.resolve().name,
        checkpoint=job.checkpoint.name,
        step=step,
        num_parameters=sum(weight.numel() for weight in job.model.models[0].parameters()),
        quantization=request.quantization,
        vocabularies=vocabulary_digests(job.run.path),
        scores=scores,
        verified=verified,
    )
    (draft / INFO_FILE).write_text(info.model_dump_json(indent=1), encoding="utf-8")
    card = model_card(info, recipe, _manifest(job.run))
    (draft / CARD_FILE).write_text(card, encoding="utf-8")


def _write_bundle(job: _Job, draft: Path) -> None:
    weights = {
        name: weight.detach().float().cpu().contiguous()
        for name, weight in job.model.models[0].named_parameters()
    }
    save_file(weights, draft / "model.safetensors", metadata=vocabulary_digests(job.run.path))


def _translate_bundle(job: _Job, texts: list[str], draft: Path) -> list[str]:
    read = new_model(job.recipe, _manifest(job.run))
    fill_from(draft / "model.safetensors", read)
    model = replace(job.model, models=(read.to(job.model.world.device).eval(),))
    return replace(job, model=model).ours(texts, job.recipe.search)


def _write_ctranslate2(job: _Job, draft: Path) -> None:
    write_ctranslate2(
        job.model.models[0],
        job.model.subwords,
        draft,
        quantization=job.request.quantization,
    )


def _translate_ctranslate2(job: _Job, texts: list[str], draft: Path) -> list[str]:
    cells = fitting_cells(job.recipe.model)
    engine = CTranslate2Engine(draft, job.model.subwords, batch_cells=cells)
    ids = job.ids(texts)
    if job.request.quantization != "float32":
        hypotheses = job.hypotheses(texts, job.recipe.search)
        scored = engine.log_probabilities(ids, [found.ids for found in hypotheses])
        check_near(hypotheses, scored, place=job.checkpoint)
    return job.decoded([best.ids for best, *_ in engine.search(ids, job.recipe.search)])


def _write_huggingface(job: _Job, draft: Path) -> None:
    pieces = job.model.subwords[0].scored_pieces()
    write_huggingface(job.model.models[0], job.recipe, _power_search(job), pieces, draft)


def _translate_huggingface(job: _Job, texts: list[str], draft: Path) -> list[str]:
    return translate_with_huggingface(draft, texts, job.recipe.search)


def _write_onnx(job: _Job, draft: Path) -> None:
    write_onnx(job.model.models[0], draft, metadata=vocabulary_digests(job.run.path))


def _translate_onnx(job: _Job, texts: list[str], draft: Path) -> list[str]:
    return job.decoded(translate_with_onnx(draft, job.ids(texts), job.recipe.search))


def _checked_search(job: _Job) -> SearchConfig:
    """The search of our own that the export's translations are held against."""
    search = job.recipe.search
    if job.request.to == "onnx":  # search is left to who uses the graphs
        return search.model_copy(update={"beam_size": 1})
    return search


def _power_search(job: _Job) -> SearchConfig:
    """The recipe's search as transformers can do it."""
    return power_search(job.recipe.search, _manifest(job.run).train.mean_target_tokens)


def _sentences(job: _Job) -> list[str]:
    """Up to NUM_SENTENCES that the model takes in one go; CorpusError where there are none."""
    file = job.request.sentences
    if file is None:
        try:
            file = job.run.prepared() / "valid" / "source.txt"
        except DragomanError as error:
            raise CheckpointError(
                f"no sentences to check the export on: {error.problem}",
                place=error.place,
                remedy="name some source text: --sentences FILE",
            ) from error
    try:
        lines = read_lines(file)
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(
            "cannot be read as UTF-8 text", place=file, remedy="name another file"
        ) from error
    subword, longest = job.model.subwords[0], job.model.max_source_pieces
    fitting = (
        line for line in lines if 0 < len(subword.encode([job.normalized(line)])[0]) <= longest
    )
    chosen = list(islice(fitting, NUM_SENTENCES))
    if not chosen:
        raise CorpusError(
            f"has no sentence of 1 to {longest} pieces to check the export on",
            place=file,
            remedy="name other source text: --sentences FILE",
        )
    return chosen


def _manifest(run: RunDirectory) -> Manifest:
    return public_manifest(Manifest.load(run.path))


def _check_free(output: Path) -> None:
    """An older export may be replaced; nothing else is ever removed."""
    # Checkpoints and averages have digests too, but no card.
    ours = all((output / name).is_file() for name in (DIGESTS_FILE, CARD_FILE))
    taken = output.exists() and not ours
    if taken and not (output.is_dir() and not any(output.iterdir())):
        raise CheckpointError(
            "is there already and is no export",
            place=output,
            remedy="name another place with --output",
        )
