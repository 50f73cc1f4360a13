"""Translate with a trained model, and write it in other formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args, overload

from dragoman.api.arguments import (
    CheckpointChoice,
    Count,
    RunLike,
    Texts,
    checked,
    checkpoints_of,
    opened_run,
    path_of,
    whole,
)
from dragoman.base.errors import ConfigError
from dragoman.formats.kinds import NOT_STATED, Kind, Quantization, RunQuantization
from dragoman.model.config import SearchConfig, check_beam_holds
from dragoman.recipe.recipe import check_sections
from dragoman.serve.text import TextFormat
from dragoman.serve.translator import EngineName, Translation, open_translator

if TYPE_CHECKING:
    from dragoman.formats.export import Exported
    from dragoman.formats.hub import Pushed
    from dragoman.formats.import_bundle import Imported


class Translator:
    """A model that translates lines of text. Several threads may share one.

    model: a run's directory, or an export: a bundle or a folder for CTranslate2, Hugging
        Face or Argos Translate (for the last, the search is that of Argos Translate).
        `import_model` makes a bundle from a model of another tool.
    checkpoint: "best", "last", a step or a directory; of a run, several make an ensemble.
    engine: "ctranslate2", "torch", or "auto": CTranslate2 on a processor if it is installed.
    target_language: the language to translate into, if the model has several.
    quantization: the type of the weights with CTranslate2, "int8" or "float32".
    threads: cores; None: all.
    overrides: settings to change in the recipe's section search, such as
        "search.length_penalty_alpha=0.8".
    Raises CheckpointError if there is no model or it is damaged, ConfigError if the engine cannot
    run the model, or if the model has no such target.
    """

    @checked
    def __init__(
        self,
        model: RunLike,
        *,
        target_language: str = "",
        checkpoint: CheckpointChoice | Sequence[CheckpointChoice] = "best",
        engine: EngineName = "auto",
        quantization: RunQuantization | None = None,
        threads: Count | None = None,
        overrides: Sequence[str] = (),
    ) -> None:
        check_sections(overrides, ("search",))
        checkpoints = checkpoints_of(checkpoint)
        path = path_of(model)
        self._is_closed = False
        self._open = ExitStack()
        opened = self._open.enter_context(
            open_translator(
                path,
                checkpoints=checkpoints,
                overrides=overrides,
                engine=engine,
                threads=threads,
                quantization=quantization,
                target=target_language,
            )
        )
        self._translator = opened.translator
        self._search = opened.recipe.search

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        beam_size: Count | None = None,
        n_best: None = None,
        text_format: TextFormat = "line",
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        beam_size: Count | None = None,
        n_best: int,
        text_format: TextFormat = "line",
    ) -> list[list[Translation]]: ...

    def translate(
        self,
        texts: Iterable[str],
        *,
        beam_size: Count | None = None,
        n_best: int | None = None,
        text_format: TextFormat = "line",
    ) -> list[str] | list[list[Translation]]:
        """The translation of each text; with n_best, a list of translations for each.

        n_best: the number of translations of each text, which come with their scores, best first.
        beam_size: how many hypotheses the search keeps; 1 is greedy; None: as the recipe says.
        text_format: "line": one sentence per text. "document": texts are split into sentences and
            put back together. "markup": as "document", and tags of HTML or XML stay in place.
        Raises ConfigError if an argument cannot be used, such as an n_best above the beam size, or
        if the Translator is closed.
        """
        if isinstance(texts, str):
            raise _one_text(texts)
        if text_format not in get_args(TextFormat):
            raise ConfigError(
                f"{text_format!r} is not a format",
                place="text_format",
                remedy=f"give one of {', '.join(get_args(TextFormat))}",
            )
        wanted = 1 if n_best is None else _wanted(n_best)
        found = self._found(texts, beam_size, wanted, text_format)
        if n_best is None:
            return [translations[0].text for translations in found]
        return list(found)

    def stream(self, texts: Iterable[str], *, beam_size: Count | None = None) -> Iterator[str]:
        """The translations of any number of lines, in order, with a few thousand in memory.

        beam_size: as for `translate`.
        """
        if isinstance(texts, str):
            raise _one_text(texts)
        for translations in self._found(texts, beam_size, 1, "line"):
            yield translations[0].text

    def _found(
        self, texts: Iterable[str], beam_size: Count | None, n_best: int, text_format: TextFormat
    ) -> Iterator[list[Translation]]:
        if self._is_closed:
            raise ConfigError("this Translator is closed", remedy="create a new Translator")
        search = self._search_with(beam_size)
        check_beam_holds(n_best, search)
        for group in self._translator.stream(
            _sound(texts), search, text_format=text_format, num_hypotheses=n_best
        ):
            yield from group

    def close(self) -> None:
        """Release the model; the end of a `with` block does that, too."""
        self._is_closed = True
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _search_with(self, beam_size: Count | None) -> SearchConfig:
        if beam_size is None:
            return self._search
        try:
            values = self._search.model_dump() | {"beam_size": whole(beam_size)}
            return SearchConfig.model_validate(values, strict=True)
        except ValueError as error:
            raise ConfigError(
                f"{beam_size!r} is not a beam width",
                place="beam_size",
                remedy="give a whole number from 1 to 1000",
            ) from error


@checked
def translate(
    model: RunLike,
    texts: Texts,
    *,
    target_language: str = "",
    beam_size: Count | None = None,
    checkpoint: CheckpointChoice | Sequence[CheckpointChoice] = "best",
    text_format: TextFormat = "line",
) -> list[str]:
    """The translation of each text by a run, or by an export other than for ONNX and browsers.

    target_language, beam_size, checkpoint, text_format: as for `Translator` and its `translate`.
    A `Translator` loads the model once for many calls, and has more options.
    """
    if isinstance(texts, str):  # before the model is loaded
        raise _one_text(texts)
    with Translator(model, target_language=target_language, checkpoint=checkpoint) as translator:
        return translator.translate(texts, beam_size=beam_size, text_format=text_format)


@checked
def export(
    run: RunLike,
    *,
    to: Kind,
    checkpoint: CheckpointChoice = "best",
    output: str | Path | None = None,
    quantization: Quantization | None = None,
    licence: str = NOT_STATED,
    sentences: str | Path | None = None,
    target_language: str = "",
    overrides: Sequence[str] = (),
    onnxruntime_web: str | Path | None = None,
) -> Exported:
    """Write a checkpoint in a format that others run, and check the result.

    run: a run, or the bundle that `import_model` wrote, which needs output and sentences.
    to: "bundle", "ctranslate2", "huggingface", "onnx", "argos" or "web".
    checkpoint: "best", "last", a step or a checkpoint's directory.
    output: a new folder, or an older export, which is replaced if nobody has added to it or changed
        it; None: `RUN/export/FORMAT`.
    quantization: the type of the weights, for CTranslate2 ("float32" if None) and Argos Translate
        ("int8"); for browsers it is "int8".
    licence: the licence of the model, for its card; if none is given, an imported model keeps its
        own.
    sentences: a file of source text for the check; None: the run's dev set.
    target_language: the target language of a package for Argos Translate, if the model has several.
    overrides: settings to change in the recipe's section search, such as "search.beam_size=2", if
        the format has them.
    onnxruntime_web: for browsers, the npm package as an archive or a folder; None: npm fetches it.
    Raises ConfigError, CorpusError, CheckpointError and MachineError; then nothing is written.
    """
    from dragoman.distributed.world import join_world
    from dragoman.formats.export import export as write
    from dragoman.formats.export_job import Request
    from dragoman.formats.load import run_or_imported

    request = Request(
        to=to,
        checkpoint=str(checkpoint),
        output=None if output is None else Path(output),
        quantization=quantization,
        licence=licence,
        sentences=None if sentences is None else Path(sentences),
        target=target_language,
        overrides=overrides,
        onnxruntime_web=None if onnxruntime_web is None else Path(onnxruntime_web),
    )
    origin = run_or_imported(path_of(run))
    with join_world() as world:
        return write(origin, request, world)


@checked
def push(
    run: RunLike,
    hub_id: str,
    *,
    checkpoint: CheckpointChoice = "best",
    licence: str = NOT_STATED,
    sentences: str | Path | None = None,
    private: bool = False,
) -> Pushed:
    """Export a checkpoint in Hugging Face form, and send it to the Hugging Face Hub with its card.

    hub_id: OWNER/NAME there. The token is that of `hf auth login` or of HF_TOKEN.
    checkpoint, licence, sentences: as for `export`.
    private: make a new repository private.
    Raises the errors of `export`, ConfigError if the Hub refuses, MachineError if it cannot be
    reached. After an error the Hub has none of the files, and the same call resumes.
    """
    from dragoman.formats.hub import check_can_push
    from dragoman.formats.hub import push as send

    api = check_can_push(hub_id)
    done = export(
        opened_run(run),
        to="huggingface",
        checkpoint=checkpoint,
        licence=licence,
        sentences=sentences,
    )
    return send(api, done.path, hub_id, private=private)


@checked
def import_model(
    folder: str | Path,
    output: str | Path,
    *,
    source_language: str = "",
    target_language: str = "",
    licence: str = NOT_STATED,
) -> Imported:
    """Write a MarianMT (OPUS-MT), M2M100 or NLLB model in Hugging Face form as a bundle.

    output: a new folder, or an older bundle, which is replaced if nobody has added to it or changed
        it.
    source_language, target_language: in the model's own spelling, if its folder does not name them.
    licence: the licence of the model, for its card.
    Raises ConfigError or CheckpointError if the model cannot be represented exactly, CorpusError if
    a SentencePiece model cannot be read; then nothing is written.
    """
    from dragoman.formats.import_bundle import import_bundle
    from dragoman.importing.tokenizer import Languages

    languages = Languages(source_language, target_language)
    return import_bundle(Path(folder), Path(output), languages, licence=licence)


def _wanted(n_best: Any) -> int:
    """The requested number of translations; raises ConfigError if it is no whole number above 0."""
    try:
        number = whole(n_best)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(
            f"{n_best!r} is not a number of translations",
            place="n_best",
            remedy="give a whole number above 0",
        )
    return number


def _one_text(text: str) -> ConfigError:
    return ConfigError(
        "is one text and not a list of texts",
        place="texts",
        remedy=f"put it into brackets: [{text!r:.40}]",
    )


def _sound(texts: Iterable[Any]) -> Iterator[str]:
    """The texts; raises ConfigError that names one that is not a str."""
    if not isinstance(texts, Iterable):
        raise ConfigError(
            f"{texts!r:.60} is not a list of texts", place="texts", remedy="give a list"
        )
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ConfigError(
                f"{text!r:.60} is not a text", place=f"texts[{number}]", remedy="give str"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"holds half a character (a lone surrogate) at position {error.start}",
                place=f"texts[{number}]",
                remedy="decode it with errors='replace'",
            ) from error
        yield text
