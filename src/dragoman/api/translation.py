"""Translate with a trained model, serve it, and write it in other formats."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, overload

from dragoman.api.checks import checked, checkpoints_of, opened_run, optional_path, path_of
from dragoman.api.kinds import (
    Beam,
    CheckpointChoice,
    Checkpoints,
    Context,
    Count,
    EngineName,
    ModelLike,
    Option,
    Overrides,
    Port,
    RunLike,
    Target,
    TermsLike,
    TextFormat,
    Texts,
)
from dragoman.base.errors import ConfigError
from dragoman.formats.kinds import FORMATS, NOT_STATED, Quantization, RunQuantization

if TYPE_CHECKING:
    from dragoman.formats.export import Exported
    from dragoman.formats.hub import Pushed
    from dragoman.formats.import_folder import Imported
    from dragoman.inference.terms import Term
    from dragoman.inference.translator import Opened, Translation


class Translator:
    """A model that translates lines of text. Several threads may share one.

    model: a run's directory, or an export in Hugging Face form, for CTranslate2 or for Argos
        Translate (for the last, the search is that of Argos Translate). `import_model` makes such
        a folder from a model of another tool.
    checkpoint: "best", "last", a step or a directory; of a run, several make an ensemble.
    engine: "ctranslate2", "torch", or "auto": CTranslate2 on a processor if it is installed.
    target_language: the language to translate into, if the model has several.
    quantization: the type of the weights with CTranslate2, "int8" or "float32".
    threads: cores, at most all that there are; None: all.
    overrides: settings to change in the recipe's section search, such as
        "search.length_penalty_alpha=0.8".
    Raises CheckpointError if there is no model or it is damaged, ConfigError if the engine cannot
    run the model, or if the model has no such target.
    """

    @checked
    def __init__(
        self,
        model: ModelLike,
        *,
        target_language: Target = "",
        checkpoint: Checkpoints = "best",
        engine: EngineName = "auto",
        quantization: RunQuantization | None = None,
        threads: Count | None = None,
        overrides: Overrides = (),
    ) -> None:
        from dragoman.inference.translator import open_translator
        from dragoman.recipe.recipe import check_sections

        check_sections(overrides, ("search",))
        checkpoints = checkpoints_of(checkpoint)
        path = path_of(model)
        self._is_closed = False
        self._resources = ExitStack()
        opened = self._resources.enter_context(
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
        self._opened = opened
        self._search = opened.recipe.search

    @overload
    def translate(
        self,
        texts: Texts,
        *,
        beam_size: Beam | None = None,
        n_best: None = None,
        text_format: TextFormat = "line",
        terms: TermsLike | None = None,
        context: Context = "sentence",
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: Texts,
        *,
        beam_size: Beam | None = None,
        n_best: Count,
        text_format: TextFormat = "line",
        terms: TermsLike | None = None,
        context: Context = "sentence",
    ) -> list[list[Translation]]: ...

    @checked
    def translate(
        self,
        texts: Texts,
        *,
        beam_size: Beam | None = None,
        n_best: Count | None = None,
        text_format: TextFormat = "line",
        terms: TermsLike | None = None,
        context: Context = "sentence",
    ) -> list[str] | list[list[Translation]]:
        """The translation of each text; with n_best, a list of translations for each.

        n_best: the number of translations of each text, which come with their scores, best first.
        beam_size: how many hypotheses the search keeps; 1 is greedy; None: as the recipe says.
        terms: translations of words, by the words, or a file of source TAB target. The model uses
            them, and may inflect them.
        text_format: "line": one sentence per text. "document": texts are split into sentences and
            put back together. "markup": as "document", and tags of HTML or XML stay in place.
        context: "sentence": each alone. "paragraph": the sentences of a text together, or texts of
            one sentence up to an empty one; the model must have learnt it (`corpus.context`).
        Raises ConfigError if an argument cannot be used, such as an n_best above the beam size, or
        if the Translator is closed.
        """
        found = self._found(texts, beam_size, n_best or 1, text_format, terms, context)
        if n_best is None:
            return [translations[0].text for translations in found]
        return list(found)

    @checked
    def stream(
        self,
        texts: Texts,
        *,
        beam_size: Beam | None = None,
        terms: TermsLike | None = None,
        context: Context = "sentence",
    ) -> Iterator[str]:
        """The translations of any number of lines, in order, with a few thousand in memory.

        beam_size, terms, context: as for `translate`.
        """
        for translations in self._found(texts, beam_size, 1, "line", terms, context):
            yield translations[0].text

    def _found(
        self,
        texts: Texts,
        beam_size: int | None,
        n_best: int,
        text_format: TextFormat,
        terms: TermsLike | None,
        context: Context,
    ) -> Iterator[list[Translation]]:
        if self._is_closed:
            raise ConfigError("this Translator is closed", remedy="create a new Translator")
        from dragoman.model.config import check_beam_holds

        search = self._search if beam_size is None else self._search.with_beam(beam_size)
        check_beam_holds(n_best, search)
        translator = self._opened.with_terms(_terms_of(terms)).translator
        if context == "paragraph":
            translator = translator.with_context()
        for group in translator.stream(
            _sound(texts), search, text_format=text_format, num_hypotheses=n_best
        ):
            yield from group

    def close(self) -> None:
        """Release the model; the end of a `with` block does that, too."""
        self._is_closed = True
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@checked
def translate(
    model: ModelLike,
    texts: Texts,
    *,
    target_language: Target = "",
    beam_size: Beam | None = None,
    checkpoint: Checkpoints = "best",
    text_format: TextFormat = "line",
    terms: TermsLike | None = None,
    context: Context = "sentence",
) -> list[str]:
    """The translation of each text by a run, or by an export other than for ONNX and browsers.

    target_language, beam_size, checkpoint, text_format, terms, context: as for `Translator` and its
        `translate`.
    A `Translator` loads the model once for many calls, and has more options.
    """
    with Translator(model, target_language=target_language, checkpoint=checkpoint) as translator:
        return translator.translate(
            texts, beam_size=beam_size, text_format=text_format, terms=terms, context=context
        )


@checked
def translate_file(
    model: ModelLike,
    *,
    input: str | Path | None = None,
    output: str | Path | None = None,
    target_language: Target = "",
    text_format: Annotated[TextFormat | None, Option("--format")] = None,
    inspect: Annotated[bool, Option("-i, --inspect")] = False,
    n_best: Count = 1,
    scores: bool = False,
    confidence: bool = False,
    terms: Annotated[str | Path | None, Option(metavar="FILE")] = None,
    context: Context = "sentence",
    checkpoint: Checkpoints = "best",
    overrides: Overrides = (),
    engine: EngineName = "auto",
    quantization: RunQuantization | None = None,
    threads: Count | None = None,
    batch_cells: Count | None = None,
) -> None:
    """Translate lines, a document or text with tags.

    model: a run, or an export.
    input: the text, one sentence per line; None: standard input.
    output: the file for the translation; None: standard output. With an input, the same command
        resumes after an interruption.
    target_language: the language to translate into, if the model has several.
    text_format: line (a line is a sentence), document (lines are split into sentences and put
        back), or markup (so are they, and tags of HTML or XML stay in place); left out, an input
        that ends in .html, .md, .srt, .vtt, .po or .docx is translated as a whole, and keeps its
        marks, times and formats, and any other has lines.
    inspect: show the pieces and the attention of each line (at a terminal you can also type ? after
        a line).
    n_best: translations per line, with scores.
    scores: write the score and a tab before each translation.
    confidence: write green, yellow or red, and the probability that it is right, before each
        translation, with tabs between them; the model must have been calibrated.
    terms: a file of source TAB target, and TAB en-de if a term is for these languages alone; the
        model may inflect them.
    context: sentence: each alone. paragraph: together, those in a line of a document or in an
        element of markup, or lines up to an empty one; the model must have learnt it
        (corpus.context).
    checkpoint: best, last, the number of a step, or a folder (write ./best if the folder has that
        name); several, joined by commas, are an ensemble. best has the highest BLEU, or the lowest
        dev loss if BLEU was not measured.
    overrides: a setting to change in the recipe's section search, such as search.beam_size=5; may
        be given again.
    engine: auto: CTranslate2 for one model on a CPU if it is installed, otherwise PyTorch.
    quantization: the type of the weights; int8 with CTranslate2 is 10 to 40% faster, and changes
        about a tenth of the lines.
    threads: cores, at most all that there are; None: all.
    batch_cells: rows x longest source x beam searched together; None: 2048 for Transformer-base,
        more for a smaller model, with PyTorch search.batch_tokens. Fewer take less memory.
    Raises the errors of `Translator`, and CorpusError for a text that cannot be read.
    """
    import io

    from dragoman.base.line_files import is_device, output_place
    from dragoman.base.memory import memory_errors_named
    from dragoman.inference import translate as writing
    from dragoman.inference.documents import format_of_file
    from dragoman.inference.terms import read_terms
    from dragoman.inference.translator import open_translator
    from dragoman.model.config import check_beam_holds
    from dragoman.recipe.recipe import check_sections

    source, place = optional_path(input), optional_path(output)
    if inspect and (source is not None or place is not None):
        raise ConfigError(
            "is for lines that come one by one",
            place="inspect",
            remedy="leave out input and output, and send the lines to standard input",
        )
    document = None
    if text_format is None and source is not None:
        document = format_of_file(source)
    if document is not None and (scores or confidence or n_best > 1):
        raise ConfigError(
            "is translated as a whole, which has no score, no confidence and no second translation",
            place=source or "",
            remedy="leave out scores, confidence and n_best, or set text_format to line",
        )
    if confidence and n_best > 1:
        raise ConfigError(
            "is of the best translation alone", place="confidence", remedy="leave out n_best"
        )
    if confidence and context == "paragraph":
        raise ConfigError(
            "is measured sentence by sentence", place="confidence", remedy="leave out context"
        )
    if document == "word" and place is None and sys.stdout.isatty():
        raise ConfigError(
            "is a packed file, which a terminal cannot show",
            place=source or "",
            remedy="name a file as the output",
        )
    check_sections(overrides, ("search",))
    if isinstance(sys.stdout, io.TextIOWrapper):  # like the input, whatever the locale
        sys.stdout.reconfigure(encoding="utf-8")
    if place is not None:
        place = output_place(place, source)
    known = [] if terms is None else read_terms(Path(terms))
    layout = writing.Layout(text_format or "line", n_best, scores, confidence)
    with (
        memory_errors_named("lower batch_cells"),
        open_translator(
            path_of(model),
            checkpoints=checkpoints_of(checkpoint),
            overrides=overrides,
            engine=engine,
            threads=threads,
            batch_cells=batch_cells,
            quantization=quantization,
            target=target_language,
        ) as opened,
    ):
        if confidence and opened.translator.calibration is None:
            raise ConfigError(
                "nobody has measured how often its translations are right",
                place=path_of(model),
                remedy="calibrate it first: the command calibrate, or dragoman.calibrate; and "
                "leave the length penalty as it was then",
            )
        if known:
            opened = opened.with_terms(known)
            _tell_unused(opened, Path(terms or ""))
        if context == "paragraph":
            opened = opened.with_context()
        # Before a command that is then refused replaces the draft of earlier work.
        check_beam_holds(n_best, opened.recipe.search)
        if source is not None and document is not None:
            writing.translate_document(opened, source, place, document)
        elif inspect or (source is None and place is None and sys.stdin.isatty()):
            writing.converse(opened, layout, inspect=inspect)
        elif place is None:
            writing.pipe(opened, source, layout)
        elif source is None or is_device(place):
            writing.write_whole_file(opened, source, place, layout)
        else:
            writing.transform(opened, source, place, layout)


@checked
def serve(
    models: Annotated[Sequence[str | Path], Option(metavar="RUN|EXPORT")],
    *,
    host: str = "127.0.0.1",
    port: Port = 8320,
    token_file: str | Path | None = None,
    allowed_origins: Annotated[Sequence[str], Option("--allow-origin", "ORIGIN")] = (),
    trusted_proxies: Annotated[Sequence[str], Option("--trusted-proxy", "ADDRESS")] = (),
    languages: Annotated[str, Option(metavar="PAIR[,PAIR]")] = "",
    threads: Count | None = None,
    batch_cells: Count | None = None,
    timeout: Count = 30,
    queue: Count = 65_536,
    requests_per_client: Count = 256,
) -> int:
    """Serve translations over HTTP, with a page for people.

    It has an interface for programs, and that of LibreTranslate. Requests that come together are
    translated together.

    models: a run, which is exported once, or an export; one for each language pair.
    host: the address to listen on.
    port: the port to listen on; 0: any free one.
    token_file: a file with the token that clients must send; None: the variable DRAGOMAN_TOKEN.
    allowed_origins: a site such as https://example.org whose pages may ask this server; * stands
        for all; may be given again.
    trusted_proxies: the address or the network of reverse proxies, which say who their clients are;
        may be given again.
    languages: what each model translates, such as en-fr,en-de, if a recipe says something else. A
        pair left empty is as the recipe says: en-fr,,de-en.
    threads: cores, at most all that there are; None: all.
    batch_cells: rows x longest source x beam searched together on a core; None: 2048 for
        Transformer-base, more for a smaller model. Fewer take less memory.
    timeout: seconds that a request may take.
    queue: subword pieces of all requests that may wait.
    requests_per_client: the most requests of one client at a time.
    Returns when a signal has come and the requests under way are answered. Raises ConfigError if
    the address is not loopback and there is no token, CheckpointError and MachineError.
    """
    from dragoman.serve.limits import Limits, network, origin, token_of
    from dragoman.serve.server import serve as listen

    limits = Limits(
        token=token_of(optional_path(token_file)),
        allowed_origins=tuple(map(origin, allowed_origins)),
        trusted_proxies=tuple(map(network, trusted_proxies)),
        request_s=timeout,
        max_waiting_pieces=queue,
        max_requests_per_client=requests_per_client,
    )
    return listen(
        [Path(one) for one in models],
        limits,
        host=host,
        port=port,
        languages=languages,
        threads=threads,
        batch_cells=batch_cells,
    )


@checked
def export(
    run: Annotated[RunLike, Option(metavar="RUN|FOLDER")],
    *,
    to: Annotated[str, Option(choices=FORMATS.names)] = "huggingface",
    checkpoint: CheckpointChoice = "best",
    output: str | Path | None = None,
    quantization: Quantization | None = None,
    licence: str = NOT_STATED,
    sentences: str | Path | None = None,
    target_language: Target = "",
    languages: Annotated[str, Option(metavar="PAIR")] = "",
    overrides: Overrides = (),
    onnxruntime_web: str | Path | None = None,
) -> Exported:
    """Write a model in a format that other programs run, and check it.

    The check compares its translations with those of our own search.

    run: a run, or an imported model, which needs output and sentences.
    to: the format; huggingface is also that of dragoman itself.
    checkpoint: best, last, a step or the folder of a checkpoint.
    output: a new folder, or an older export, which is replaced if nobody has added to it or changed
        it; None: RUN/export/FORMAT.
    quantization: the type of the weights, for ctranslate2 and argos; None: float32, for argos int8.
    licence: the licence of the model, for its card, such as CC-BY-4.0. An imported model keeps its
        own if none is given.
    sentences: a file of source text for the check; None: the run's dev set.
    target_language: the target language of a package for argos, if the model has several.
    languages: what the model translates, such as en-fr, if its recipe says something else.
    overrides: a setting to change in the recipe's section search, such as search.beam_size=2, if
        the format has it; may be given again.
    onnxruntime_web: for the format web, the npm package of ONNX Runtime Web as an archive or a
        folder; None: npm fetches it.
    Raises ConfigError, CorpusError, CheckpointError and MachineError; then nothing is written.
    """
    from dragoman.distributed.world import join_world
    from dragoman.formats.export import export as write
    from dragoman.formats.export_job import Request
    from dragoman.formats.load import run_or_imported

    request = Request(
        to=to,
        checkpoint=str(checkpoint),
        output=optional_path(output),
        quantization=quantization,
        licence=licence,
        sentences=optional_path(sentences),
        target=target_language,
        languages=languages,
        overrides=overrides,
        onnxruntime_web=optional_path(onnxruntime_web),
    )
    origin = run_or_imported(path_of(run))
    with join_world() as world:
        return write(origin, request, world)


@checked
def push(
    run: RunLike,
    hub_id: Annotated[str, Option("--push", "OWNER/NAME")],
    *,
    checkpoint: CheckpointChoice = "best",
    licence: str = NOT_STATED,
    sentences: str | Path | None = None,
    private: bool = False,
) -> Pushed:
    """Export a model in Hugging Face form, and send it to the Hugging Face Hub with its card.

    run: a run.
    hub_id: the name of the model on the Hub. The token is that of `hf auth login` or of HF_TOKEN.
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
    output: Annotated[str | Path, Option("--to", "FOLDER")],
    *,
    source_language: Annotated[str, Option(metavar="CODE")] = "",
    target_language: Annotated[str, Option(metavar="CODE")] = "",
    licence: str = NOT_STATED,
) -> Imported:
    """Take over a MarianMT (OPUS-MT), M2M100 or NLLB model.

    Our own export in Hugging Face form is read, too, also after a training in transformers. A part
    without a counterpart is refused, and named.

    folder: the model in Hugging Face form, with config.json and model.safetensors.
    output: a new folder, or that of an earlier import, which is replaced if nobody has added to it
        or changed it.
    source_language: the source language, in the model's own spelling, if the folder does not say
        it.
    target_language: the target language, if the folder does not say it; if the model has several,
        the one to translate into.
    licence: the licence of the model, for its card.
    Raises ConfigError or CheckpointError if the model cannot be represented exactly, CorpusError if
    a SentencePiece model cannot be read; then nothing is written.
    """
    from dragoman.formats.import_folder import import_folder
    from dragoman.importing.tokenizer import Languages

    languages = Languages(source_language, target_language)
    return import_folder(Path(folder), Path(output), languages, licence=licence)


def _terms_of(terms: TermsLike | None) -> list[Term]:
    """The terms of a dictionary or a file; raises ConfigError and CorpusError."""
    from dragoman.inference.terms import Term, read_terms

    if isinstance(terms, str | Path):
        return read_terms(Path(terms))
    for source, target in (terms or {}).items():
        if not (source.strip() and target.strip()):
            raise ConfigError(
                f"{source!r:.60}: {target!r:.60} is not a term and its translation",
                place="terms",
                remedy='give terms such as {"cell": "Zelle"}',
            )
    return [Term(*pair) for pair in (terms or {}).items()]


def _tell_unused(opened: Opened, file: Path) -> None:
    """Write which terms of a file are not used; raises ConfigError if none is for the languages."""
    from dragoman.corpus.directions import listed

    if opened.translator.terms is None:
        languages = listed(opened.directions)
        remedy = "correct the languages behind the terms, or leave them out"
        raise ConfigError(f"has no term for {languages}", place=file, remedy=remedy)
    if unused := opened.translator.terms.unused:
        more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
        names = ", ".join(map(repr, unused[:5])) + more
        problem = "not used, as the model cannot write their translations, or something is kept"
        print(f"{file}: {problem}: {names}", file=sys.stderr)


def _sound(texts: Iterable[Any]) -> Iterator[str]:
    """The texts; raises ConfigError that names one that is not a str."""
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
