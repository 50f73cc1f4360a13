"""The corpus section of a recipe: what text, which subwords; filters.py has the filters' part."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dragoman.base.settings import Section
from dragoman.corpus.filters import FilterConfig

LANGUAGE: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]*$"
"""A language's code. It ends names of files, and pages and model cards show it."""


class SubwordConfig(Section):
    """One SentencePiece model for both languages (joint) or one for each."""

    kind: Literal["bpe", "unigram", "imported"] = "bpe"
    """imported: the vocabulary of a model that was imported; `--from` sets it."""
    vocab_size: int = Field(default=32_768, ge=16, le=10_000_000)
    joint: bool = True
    character_coverage: float = Field(default=1.0, gt=0.0, le=1.0)
    sample_sentences: int = Field(default=2_000_000, ge=1)
    """At most this many sentences, drawn over the whole corpus, train the subword model."""


class TextFiles(Section):
    """One entry of parallel text; exactly one of the three forms is set."""

    source: str = ""
    target: str = ""
    tsv: str = ""
    mtdata: str = ""
    tag: str = Field(default="", pattern=r"^[^\s\x00-\x1f\x7f-\x9f]*$", max_length=100)
    """A word that is put before each source, such as "<bt>"; it is one piece of the vocabulary."""

    @model_serializer(mode="wrap")
    def _without_empty_tag(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The digests of recipes that were written before there were tags stay as they are.
        return {key: value for key, value in serialize(self).items() if key != "tag" or value}

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        forms = bool(self.source or self.target) + bool(self.tsv) + bool(self.mtdata)
        if forms != 1 or bool(self.source) != bool(self.target):
            raise ValueError("an entry of text is source and target, or tsv, or mtdata")
        if any(
            "\0" in name for name in (self.source, self.target, self.tsv, self.mtdata, self.tag)
        ):
            raise ValueError("an entry of text holds a NUL character")
        return self


class CorpusConfig(Section):
    """Parallel text and what is made of it.

    A source of text is a list of entries. An entry is one of
    `{source = "a.en", target = "a.de"}` (plain, .gz, .bz2, .zst or .xz),
    `{tsv = "a.tsv"}` (two columns) or `{mtdata = "Statmt-europarl-7-deu-eng"}`. With
    `tag = "<bt>"` beside it, each source begins with that word.
    """

    folder: str = Field(default="", pattern=r"^[^\x00]*$")
    """Where relative file names start; itself relative to the recipe's folder."""
    source_language: str = Field(default="en", pattern=LANGUAGE, max_length=35)
    target_language: str = Field(default="de", pattern=LANGUAGE, max_length=35)
    train: tuple[TextFiles, ...] = ()
    """Entries of text: `{source = "a.en", target = "a.de"}`, `{tsv = "a.tsv"}` or
    `{mtdata = "ID"}`; files may be packed with gzip, bzip2, zstd or xz. `tag = "<bt>"` puts a word
    before each source."""
    valid: tuple[TextFiles, ...] = ()
    """The dev set, in such entries."""
    test: tuple[TextFiles, ...] = ()
    """The test set, in such entries."""
    valid_pairs: int = Field(default=0, ge=0)
    """Where `valid` is empty: this many training pairs are held out for validation."""
    test_pairs: int = Field(default=0, ge=0)
    """Where `test` is empty: this many training pairs are held out for testing."""
    lowercase: bool = False
    """Train on lower-cased text; what is translated later is lower-cased too."""
    filters: FilterConfig = FilterConfig()
    subword: SubwordConfig = SubwordConfig()
    max_pieces: int = Field(default=256, ge=1)
    """Longest side in subword pieces, end of sentence not counted."""
    too_long: Literal["drop", "truncate"] = "drop"
    """What happens to a training pair with a side of over `max_pieces`."""
    seed: int = Field(default=1, ge=0, lt=2**63)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of all entries, sorted."""
        entries = (*self.train, *self.valid, *self.test)
        return tuple(sorted({entry.tag for entry in entries} - {""}))
