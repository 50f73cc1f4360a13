"""A checkpoint's weights in each of the export formats."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dragoman.corpus.directions import without_first_word
from dragoman.corpus.subword import VOCABULARIES, read_vocabulary
from dragoman.formats.argos import (
    MODEL_FOLDER,
    check_for_argos,
    pack,
    translate_as_argos,
    write_argos,
)
from dragoman.formats.bundle import CARD_FILE, BundleInfo
from dragoman.formats.check import check_equal, check_near, compare
from dragoman.formats.ctranslate2 import write_ctranslate2
from dragoman.formats.ctranslate2_engine import CTranslate2Engine, fitting_cells
from dragoman.formats.export_job import ExportJob, Writer, greedy
from dragoman.formats.huggingface import (
    check_expressible,
    read_written,
    translate_with_huggingface,
    write_folder,
)
from dragoman.formats.int8_onnx import rounded
from dragoman.formats.onnx import translate_with_onnx, write_onnx
from dragoman.formats.onnxruntime_web import runtime_files
from dragoman.formats.web import check_for_web, write_web
from dragoman.model.config import SearchConfig
from dragoman.recipe.recipe import Recipe

_UNPACKED: Final = "package"
"""The folder in a draft from which a package for Argos Translate is made."""


class CTranslate2Writer(Writer):
    """A folder for CTranslate2."""

    def write(self, texts: list[str], draft: Path) -> list[str]:
        """Write the folder; returns translations by CTranslate2."""
        job = self.job
        write_ctranslate2(job.transformer, job.model.subwords, draft, quantization=job.request.bits)
        engine = engine_of(job, draft)
        ids = job.ids(texts)
        if job.request.bits != "float32":
            check_probabilities(job, engine, texts, ids)
        return job.decoded([best.ids for best, *_ in engine.search(ids, job.recipe.search)])

    def search(self) -> SearchConfig:
        """The recipe's search settings with the rules that CTranslate2 always applies."""
        return self.job.recipe.search.as_in_ctranslate2()


class HuggingFaceWriter(Writer):
    """A folder for dragoman and transformers: an imported model in its own form, others as Pegasus
    or FSMT."""

    @staticmethod
    def check_recipe(recipe: Recipe) -> None:
        """Raises ConfigError if transformers has no such model."""
        check_expressible(recipe)

    def write(self, texts: list[str], draft: Path) -> list[str]:
        """Write model and tokenizer; returns translations by transformers, or if that is not
        installed by the model as dragoman reads it."""
        job = self.job
        source, target = (read_vocabulary(job.origin.path / name) for name in VOCABULARIES)
        mean_tokens = job.manifest.train.mean_target_tokens
        vocabularies, checkpoint = (source, target), job.checkpoint
        write_folder(
            job.transformer, job.recipe, mean_tokens, vocabularies, draft, written=checkpoint
        )
        if find_spec("transformers") is None:
            read = read_written(draft, job.recipe, job.model.subwords).to(job.model.world.device)
            return replace(job, model=replace(job.model, models=(read,))).ours(texts, self.search())
        if job.first_piece and job.recipe.model.norm == "post":
            # The language that was chosen at import is a word of each text of MarianMT.
            texts = [f"{job.first_piece} {text}" for text in texts]
        return translate_with_huggingface(draft, texts, job.recipe.search)

    def search(self) -> SearchConfig:
        """The recipe's search as transformers has it."""
        return self.job.power_search()


class OnnxWriter(Writer):
    """An encoder and a decoder's step as ONNX graphs."""

    def write(self, texts: list[str], draft: Path) -> list[str]:
        """Write both graphs; returns greedy translations by onnxruntime."""
        write_onnx(self.job.transformer, draft, metadata=self.job.digests)
        return translations_by_graphs(self.job, texts, draft)


class WebWriter(Writer):
    """Static files that translate in a browser."""

    _runtime: dict[str, bytes]
    """The files of onnxruntime-web."""

    def check(self) -> None:
        """Read onnxruntime-web; raises ConfigError if it is not the pinned version or a page cannot
        cut text with this vocabulary, MachineError if npm cannot fetch it."""
        for file in (self.job.origin.path / name for name in VOCABULARIES):
            check_for_web(read_vocabulary(file), place=file)
        self._runtime = runtime_files(self.job.request.onnxruntime_web)

    def write(self, texts: list[str], draft: Path) -> list[str]:
        """Write the page and its graphs in int8; returns greedy translations by onnxruntime.

        Raises CheckpointError if they are not those of our own search with weights rounded alike.
        """
        job = self.job
        write_web(job.transformer, job.recipe, self._runtime, draft, metadata=job.digests)
        found = translations_by_graphs(job, texts, draft)
        same = replace(job, model=replace(job.model, models=(rounded(job.transformer),)))
        ours = same.ours(texts, greedy(job.recipe.search))
        check_equal(compare(ours, found), place=job.checkpoint)
        return found


class ArgosWriter(Writer):
    """A package for Argos Translate, which runs CTranslate2 with a search of its own."""

    def check(self) -> None:
        """Raises ConfigError if Argos Translate could not give the model its language tokens."""
        check_for_argos(self.job.model.subwords)

    def write(self, texts: list[str], draft: Path) -> list[str]:
        """Write the package, unpacked; returns translations as Argos Translate makes them."""
        job = self.job
        subwords = job.model.subwords
        write_argos(
            job.transformer,
            subwords,
            read_vocabulary(job.origin.path / VOCABULARIES[0]),
            draft / _UNPACKED,
            direction=job.direction,
            token=next(iter(job.tokens), ""),
            lowercase=job.recipe.corpus.lowercase,
            quantization=job.request.bits,
        )
        # CTranslate2 adds the prefix of a text itself there.
        plain = [without_first_word(text, job.tokens) for text in texts]
        ids = subwords[0].encode_plain([job.normalized(text) for text in plain])
        engine = engine_of(job, draft / _UNPACKED / MODEL_FOLDER)
        check_probabilities(job, engine, texts, ids)
        return translate_as_argos(draft / _UNPACKED, plain)

    def search(self) -> None:
        """Argos Translate has a beam and a length penalty of its own."""

    def finish(self, draft: Path, info: BundleInfo, card: str) -> None:
        """Add the card, and make one file of it all."""
        (draft / _UNPACKED / CARD_FILE).write_text(card, encoding="utf-8")
        pack(draft / _UNPACKED, draft / info.weights_name)


def engine_of(job: ExportJob, folder: Path) -> CTranslate2Engine:
    """CTranslate2 with the model in this folder."""
    cells = fitting_cells(job.recipe.model)
    return CTranslate2Engine(folder, job.model.subwords, batch_cells=cells)


def check_probabilities(
    job: ExportJob, engine: CTranslate2Engine, texts: list[str], ids: list[list[int]]
) -> None:
    """Raises CheckpointError if CTranslate2 gives our translations other probabilities.

    ids: the source ids of each text, without those that the exported model adds itself.
    """
    hypotheses = job.hypotheses(texts, job.recipe.search.without_guard())
    scored = engine.log_probabilities(ids, [found.ids for found in hypotheses])
    check_near(hypotheses, scored, place=job.checkpoint)


def translations_by_graphs(job: ExportJob, texts: list[str], draft: Path) -> list[str]:
    """Greedy translations by the ONNX graphs in the draft."""
    start_ids = job.recipe.model.start_ids
    return job.decoded(translate_with_onnx(draft, job.ids(texts), job.recipe.search, start_ids))
