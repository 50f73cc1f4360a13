"""Writes a checkpoint of a run, or an imported model, in the formats of other programs.

An export is done only when it translates like our own search.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle, islice, zip_longest
from pathlib import Path

from dragoman.base.errors import CheckpointError, ConfigError, CorpusError, DragomanError
from dragoman.base.files import file_sha256
from dragoman.base.version import VERSION
from dragoman.corpus.directions import with_token, without_first_word
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.subword import VOCABULARIES, Subword, read_vocabulary
from dragoman.distributed.world import World
from dragoman.evaluation.confidence import read_confidence, write_confidence
from dragoman.evaluation.validate import read_lines
from dragoman.formats.bundle import (
    CARD_FILE,
    INFO_FILE,
    NUM_SENTENCES,
    Bundle,
    BundleInfo,
    BundleScore,
    Verified,
    check_place,
    default_name,
    directions_of,
    is_bundle,
)
from dragoman.formats.card import model_card
from dragoman.formats.check import check_equal, compare
from dragoman.formats.export_job import ExportJob, Request, Writer, greedy
from dragoman.formats.kinds import FORMATS, NOT_STATED
from dragoman.formats.load import load_translation_model
from dragoman.formats.public import public_manifest, public_recipe
from dragoman.formats.scores import scores_of
from dragoman.formats.trained_model import TranslationModel, checkpoint_path
from dragoman.recipe.recipe import check_sections, dump_toml, load_recipe
from dragoman.recipe.run_directory import RunDirectory
from dragoman.training.durable import DIGESTS_FILE, publish


@dataclass(frozen=True, slots=True)
class Exported:
    """The place of the export, and the result of its check."""

    path: Path
    size_bytes: int
    verified: Verified


def export(origin: RunDirectory | Bundle, request: Request, world: World) -> Exported:
    """Write one checkpoint's weights in a format, and check its translations against ours.

    origin: a run, or an imported model.
    Raises ConfigError if the format cannot express the model or has no such option, CheckpointError
    if the export differs from our own search or its place is taken, CorpusError if no sentence
    fits the model, MachineError if a library is missing. Nothing is left behind then.
    """
    check_sections(request.overrides, ("search",))
    _check_search(request)
    _check_bits(request)
    recorded = load_recipe(origin.path / "recipe.toml", request.overrides, is_recorded=True)
    recipe = public_recipe(recorded.with_languages(request.languages))
    FORMATS[request.to].check_packages()
    FORMATS[request.to].load_writer().check_recipe(recipe)
    if isinstance(origin, Bundle):
        _check_imported(origin, request)
    output = request.output or origin.path / "export" / default_name(request.to, request.bits)
    check_place(output, source=origin.path)
    if isinstance(origin, RunDirectory):
        checkpoint = checkpoint_path(origin, request.checkpoint, recorded)
        model = TranslationModel.load(origin, [str(checkpoint)], world)
    else:
        checkpoint = origin.path
        model = load_translation_model(origin.path, ["best"], world)
    if request.target and not FORMATS[request.to].has_one_direction:
        raise ConfigError(
            "such an export has all languages of the model",
            place=f"target language {request.target}",
            remedy="leave it out; a package for Argos Translate has one",
        )
    manifest = public_manifest(Manifest.load(origin.path))
    if request.languages:
        corrected = manifest.config.with_languages(recipe.corpus.directions[0])
        manifest = manifest.model_copy(update={"config": corrected})
    job = ExportJob(origin, checkpoint, recipe, manifest, model, request)
    writer = FORMATS[request.to].load_writer()(job)
    writer.check()
    texts = _sentences(job)
    found: list[Verified] = []
    size_bytes = publish(output, lambda draft: found.append(_fill(writer, texts, draft)))
    return Exported(output, size_bytes, found[0])


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


def _fill(writer: Writer, texts: list[str], draft: Path) -> Verified:
    """Write every file of the export; returns what its check found."""
    job = writer.job
    for name in VOCABULARIES:
        (draft / name).write_bytes(read_vocabulary(job.origin.path / name))
    (draft / "recipe.toml").write_text(dump_toml(job.recipe), encoding="utf-8")
    (draft / "manifest.json").write_text(job.manifest.model_dump_json(indent=1), encoding="utf-8")
    theirs = writer.write(texts, draft)
    form = FORMATS[job.request.to]
    if form.search_keys is None and not job.request.overrides:  # as it was calibrated
        _copy_confidence(job, draft)
    search = greedy(job.recipe.search) if form.is_greedy else job.recipe.search
    verified = compare(job.ours(texts, search), theirs)
    their_search = writer.search()
    # If other programs search by their own rules, only the weights are compared.
    if job.request.bits == "float32" and their_search is not None:
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
        licence = job.origin.info.licence if licence == NOT_STATED else licence
    info = BundleInfo(
        kind=request.to,
        name=recipe.name,
        dragoman_version=VERSION,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source_language=job.direction.source,
        target_language=job.direction.target,
        directions=() if form.has_one_direction else directions_of(recipe.corpus),
        licence=licence,
        run=run,
        checkpoint="" if imported else job.checkpoint.name,
        step=step,
        num_parameters=sum(weight.numel() for weight in job.transformer.parameters()),
        quantization=request.bits,
        vocabularies=job.digests,
        imported=imported,
        scores=scores,
        verified=verified,
    )
    (draft / INFO_FILE).write_text(info.model_dump_json(indent=1), encoding="utf-8")
    card = model_card(info, recipe, job.manifest, first_piece=job.first_piece)
    (draft / CARD_FILE).write_text(card, encoding="utf-8")
    writer.finish(draft, info, card)
    return verified


def exports_of(folder: Path, checkpoint: str) -> list[Path]:
    """The exports in a folder that hold this checkpoint and are searched as the run is."""
    bundles = []
    for path in filter(is_bundle, sorted(folder.glob("*"))):
        with suppress(CheckpointError):  # damaged, or of another version: it is for nobody
            bundles.append(Bundle.open(path))
    return [
        bundle.path
        for bundle in bundles
        if bundle.info.checkpoint == checkpoint and FORMATS[bundle.info.kind].search_keys is None
    ]


def _copy_confidence(job: ExportJob, draft: Path) -> None:
    """Copy what the model's confidence was fitted to, if it belongs to these weights."""
    found = read_confidence(job.origin.path)
    is_run = isinstance(job.origin, RunDirectory)
    if found is not None and (
        not is_run or found.checkpoint == file_sha256(job.checkpoint / DIGESTS_FILE)
    ):
        write_confidence(found.model_copy(update={"checkpoint": ""}), draft)


def _check_search(request: Request) -> None:
    """Raises ConfigError for an option or an override that the format does not read."""
    if request.to != "web" and request.onnxruntime_web is not None:
        raise ConfigError(
            f"{request.to} has no use for onnxruntime-web",
            place=request.onnxruntime_web,
            remedy="leave it out, or export to web",
        )
    keys = FORMATS[request.to].search_keys
    if keys is None:
        return
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
    has = FORMATS[request.to].quantizations
    if request.bits not in has:
        raise ConfigError(
            f"{request.to} exports are written in {' or '.join(has)}, not in {request.bits}",
            place="quantization",
            remedy="export to ctranslate2, or leave it out",
        )


def _sentences(job: ExportJob) -> list[str]:
    """Up to NUM_SENTENCES that fit the model.

    Raises CorpusError if there are none, CheckpointError if the run has no prepared dev set.
    """
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
    if isinstance(subword, Subword):
        lines = _for_every_tag(lines, subword.tags, job.tokens)
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
    """Lines that begin with these tokens, each in turn; if none does, each gets a token in turn."""
    if not tokens:
        return lines
    own = [[line for line in lines if line.partition(" ")[0] == token] for token in tokens]
    if any(own):
        return [line for group in zip_longest(*own) for line in group if line is not None]
    return [with_token(token, line) for token, line in zip(cycle(tokens), lines, strict=False)]


def _for_every_tag(lines: list[str], tags: Sequence[str], tokens: Sequence[str]) -> list[str]:
    """Lines without a tag and with each of these, in turn; a tag follows a language token.

    An export that splits tags differently then translates so many sentences differently that its
    check fails.
    """
    if not tags:
        return lines
    tagged = []
    for line, tag in zip(lines, cycle(("", *tags)), strict=False):
        plain = without_first_word(line, tokens)
        token = line.removesuffix(plain).rstrip(" ")
        tagged.append(with_token(token, with_token(tag, without_first_word(plain, tags))))
    return tagged
