"""The corpus section of a recipe: its text and subwords; filters.py has the filters."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from dragoman.base.languages import is_language, parse_language, same_language, spelled
from dragoman.base.settings import Section
from dragoman.corpus import stand_ins
from dragoman.corpus.augment import AugmentConfig
from dragoman.corpus.context import ContextConfig
from dragoman.corpus.directions import Direction, language_token, listed
from dragoman.corpus.filters import FilterConfig
from dragoman.corpus.names import language_of_file, languages_of_corpus

LANGUAGE: Final = r"^[A-Za-z0-9][A-Za-z0-9._@-]*$"
"""A language's code. File names end in it, and pages and model cards show it."""
TEXT_FORMATS: Final = ("tmx", "moses")
"""Keys of an entry that name a file of another format; `sources.READERS` has their readers."""
FILE_KEYS: Final = ("source", "target", "tsv", *TEXT_FORMATS)
"""Keys of an entry that name a file."""
LANGUAGE_KEYS: Final = ("source_language", "target_language")
_PIECES: Final = ("<pad>", "<unk>", "<s>", "</s>")
"""Control pieces of SentencePiece, which have places of their own in a vocabulary."""
_HUB_NAME: Final = r"^([A-Za-z0-9][^/\\\x00-\x1f\x7f-\x9f]{0,99})?$"
_COLUMN_NAME: Final = r"[^\x00-\x1f\x7f-\x9f]{1,100}"


class SubwordConfig(Section):
    """One SentencePiece model for both languages (joint) or one for each."""

    kind: Literal["bpe", "unigram", "imported"] = "bpe"
    """imported: that of an imported model; a training that starts from this model sets it."""
    vocab_size: int = Field(default=32_768, ge=16, le=10_000_000)
    """Pieces of the subword model, with the four special ones."""
    joint: bool = True
    """One subword model for both sides."""
    character_coverage: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the characters of the text that have a piece; the rest are unknown."""
    byte_fallback: bool = False
    """Spell characters without a piece in bytes; 256 of the pieces are bytes then."""
    sample_sentences: int = Field(default=2_000_000, ge=1)
    """At most this many sentences, drawn over the whole corpus, train the subword model."""


class ScoreLimit(Section):
    """Bounds on a column of scores in a TSV file; pairs outside them are dropped."""

    column: int | str
    """Its number, counted from 1, or its name in the first line, which is then not a pair."""
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _names_a_column_and_a_bound(self) -> Self:
        if isinstance(self.column, int) and self.column < 3:
            raise ValueError("columns 1 and 2 are source and target: scores begin at column 3")
        if isinstance(self.column, str) and not re.fullmatch(_COLUMN_NAME, self.column):
            raise ValueError("the name of a column is empty, too long or holds control characters")
        if self.at_least is None and self.at_most is None:
            raise ValueError("a score needs at_least, at_most or both")
        return self


def is_tag(word: str) -> bool:
    """Whether a word may stand before sources without being found inside other words."""
    return re.fullmatch("<.+>", word) is not None


class TextFiles(Section):
    """One entry of parallel text; exactly one of its forms is set."""

    source: str = ""
    target: str = ""
    tsv: str = ""
    reverse: bool = False
    """The columns of this TSV file are target and source, in this order."""
    mtdata: str = ""
    set: str = ""
    hf: str = Field(default="", pattern=r"^(([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)?$")
    """The id of a data set on the Hub of Hugging Face, such as `Helsinki-NLP/opus-100`."""
    config: str = Field(default="", pattern=_HUB_NAME)
    """Its configuration, such as `de-en`; needed if it has several."""
    split: str = Field(default="", pattern=_HUB_NAME)
    """Its split, such as `validation` (default: train)."""
    columns: tuple[str, str] | tuple[()] = ()
    """The columns of its source and target, if their names do not tell the languages."""
    tmx: str = ""
    moses: str = ""
    tag: str = Field(default="", pattern=r"^[^\s\x00-\x1f\x7f-\x9f]*$", max_length=100)
    """A word that is put before each source, such as "<bt>"; it is one piece of the vocabulary,
    wherever it stands."""
    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$", max_length=100)
    """The name by which the weights of a stage refer to this entry of the training text."""
    weight: float | None = Field(default=None, ge=0.0, le=1e9)
    """Share of the training pairs that come from this entry, in any unit."""
    shuffled: bool = False
    """Its lines are in no order: `corpus.context` joins none of them."""
    translated: Literal["", "source", "target"] = ""
    """The side that a model translated. Its own translations are easier to predict than text, which
    the report takes into account."""
    scores: tuple[ScoreLimit, ...] = ()
    """Bounds on further columns of a TSV file, such as `{column = 5, at_most = 4.0}`."""
    source_language: str = Field(default="", pattern=f"{LANGUAGE}|^$", max_length=35)
    """Set it if it differs from the section's."""
    target_language: str = Field(default="", pattern=f"{LANGUAGE}|^$", max_length=35)
    """Set it if it differs from the section's."""

    @field_validator(*LANGUAGE_KEYS)
    @classmethod
    def _as_bcp_47(cls, code: str) -> str:
        return spelled(code)

    def told_languages(self, stated: Direction) -> tuple[str, str]:
        """The languages that the names of its files tell, "" for one that they do not tell.

        stated: the languages that are set, "" for one that is not. A TSV file has its columns in
        the order of its name. The name of another corpus, such as de-en.txt.zip, is the same for
        both directions, so it tells a language only if the other one is set.
        """
        if self.source:
            return language_of_file(self.source), language_of_file(self.target)
        first, second = pair = self.languages_of_name
        if self.tsv or not first:
            return (second, first) if self.reverse else pair
        if same_language(stated.source, first) or same_language(stated.target, second):
            return pair
        if same_language(stated.source, second) or same_language(stated.target, first):
            return second, first
        return "", ""

    @property
    def languages_of_name(self) -> tuple[str, str]:
        """The two languages in the name of a corpus; ("", "") if it has none."""
        return languages_of_corpus(self.config or next(filter(None, self._single_names()), ""))

    @property
    def is_named(self) -> bool:
        """Whether it is a corpus that is fetched by its name, rather than files."""
        return bool(self.mtdata or self.set or self.hf)

    @property
    def hub_name(self) -> str:
        """The id, configuration and split of a data set on the Hub, joined as a path.

        An id has no two hyphens in a row.
        """
        names = (self.hf.replace("/", "--"), self.config, self.split or "train")
        return "/".join(filter(None, names))

    @property
    def title(self) -> str:
        """The name of the entry, or that of its file."""
        return self.name or self.source or next(filter(None, self._single_names()))

    @model_serializer(mode="wrap")
    def _without_what_is_not_set(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # An entry has few of the keys: those that it lacks would hide them in a recipe.
        values: dict[str, Any] = serialize(self)
        return {
            key: value
            for key, value in values.items()
            if value not in ("", None, (), []) and value is not False  # a weight of 0 is set
        }

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        names = self._single_names()
        forms = bool(self.source or self.target) + sum(map(bool, names))
        if forms != 1 or bool(self.source) != bool(self.target):
            raise ValueError(
                "an entry of text is source and target, or one of "
                f"{', '.join(('tsv', *TEXT_FORMATS))}, mtdata, set and hf"
            )
        if (self.config or self.split or self.columns) and not self.hf:
            raise ValueError("config, split and columns are parts of a data set: write hf, too")
        if self.scores and not self.tsv:
            raise ValueError("scores are columns of a tsv: this entry has none")
        if self.reverse and not self.tsv:
            raise ValueError("reverse is for the columns of a tsv: this entry has none")
        if self.tag and not is_tag(self.tag):
            raise ValueError(
                f'tag = "{self.tag}" would also be cut out of words that hold it: '
                'begin it with < and end it with >, such as "<bt>"'
            )
        if self.tag in _PIECES:
            raise ValueError(
                f'tag = "{self.tag}" is a piece of every vocabulary: choose another, such as "<bt>"'
            )
        if any("\0" in name for name in (self.source, self.target, *names, self.tag)):
            raise ValueError("an entry of text holds a NUL character")
        return self

    def _single_names(self) -> list[str]:
        """The values of the keys that stand for a whole entry."""
        return [getattr(self, key) for key in ("tsv", *TEXT_FORMATS, "mtdata", "set", "hf")]


class CorpusConfig(Section):
    """Parallel text, and how it is cleaned and cut into pieces.

    A source of text is a list of entries. An entry is one of `{source = "a.en", target = "a.de"}`
    (plain, .gz, .bz2, .zst or .xz), `{tsv = "a.tsv"}` (two columns), `{tmx = "a.tmx.gz"}` (a
    translation memory), `{moses = "de-en.txt.zip"}` (an archive of OPUS with two texts), `{mtdata =
    "Statmt-europarl-7-deu-eng"}` or `{hf = "Helsinki-NLP/opus-100", config = "de-en"}` (a data set
    on the Hub); a dev or test set may be `{set = "wmt14"}`, by its name in sacreBLEU's index. With
    `tag = "<bt>"` beside it, each source begins with that word. With `weight = 3` beside each entry
    of the training text, pairs are drawn from them in these shares. With `target_language = "fr"`
    beside it, an entry is in a language that differs from that of the section.
    """

    folder: str = Field(default="", pattern=r"^[^\x00]*$")
    """The folder of relative file names; itself relative to the recipe's folder."""
    source_language: str = Field(default="", pattern=f"{LANGUAGE}|^$", max_length=35)
    """The source language of each entry that names no other, such as `en`, `pt-BR` or `sr-Latn`. If
    it is not set, the names of the entries tell it: `a.en`, `en-fr.tmx`, `...-deu-eng`."""
    target_language: str = Field(default="", pattern=f"{LANGUAGE}|^$", max_length=35)
    """The target language of such entries. If entries have several, a token such as `<2de>` is put
    before each source."""
    reverse: bool = Field(default=False, exclude=True)
    """Swap the two sides of all text, for a model of the opposite direction: files, columns,
    languages and translated sides. `load_recipe` does it; its recipe holds them swapped."""
    train: tuple[TextFiles, ...] = ()
    """Entries of text: `{source = "a.en", target = "a.de"}`, `{tsv = "a.tsv"}`, `{tmx = "a.tmx"}`,
    `{moses = "de-en.txt.zip"}`, `{mtdata = "ID"}` or `{hf = "ID", config = "de-en", split =
    "train"}`; files may be packed with gzip, bzip2, zstd or xz. `tag = "<bt>"` puts a word before
    each source. `weight = 3` beside each entry sets the shares in which pairs are drawn from them;
    `name = "news"` is its name in the weights of a stage. `translated = "target"` says that a model
    translated that side. `scores = [{column = 5, at_most = 4.0}]` beside a TSV file drops pairs
    whose further columns are out of bounds; `column` is a number, or a name in the file's first
    line, and a bound is `at_least` or `at_most`."""
    valid: tuple[TextFiles, ...] = ()
    """The dev set, in such entries, or by a name of sacreBLEU's index: `{set = "wmt13"}`."""
    test: tuple[TextFiles, ...] = ()
    """The test set, in such entries, or by a name of sacreBLEU's index: `{set = "wmt14"}`."""
    valid_pairs: int = Field(default=0, ge=0)
    """If `valid` is empty: this many training pairs of each direction are held out for
    validation, from entries without a tag or a translated side if there are any."""
    test_pairs: int = Field(default=0, ge=0)
    """If `test` is empty: this many of each direction are held out for testing."""
    lowercase: bool = False
    """Train on lower-cased text; text to translate later is lower-cased, too."""
    check_languages: bool = True
    """Stop if the text clearly is in languages other than those named."""
    filters: FilterConfig = Field(default_factory=FilterConfig)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    context: ContextConfig = Field(default_factory=ContextConfig)
    subword: SubwordConfig = Field(default_factory=SubwordConfig)
    temperature: float | None = Field(default=None, ge=1.0, le=1000.0)
    """If there are several directions, each gets a share of the drawn pairs proportional to
    p^(1/T), where p is its share of the training text: 1 keeps the shares of the text, 5 is usual,
    and higher values make the shares more equal. The vocabulary is learnt in the same shares."""
    language_token: bool = False
    """Put a token such as `<2de>` before each source even if there is only one target language;
    a training that starts from a model of several languages sets it."""
    max_pieces: int = Field(default=256, ge=1)
    """Longest side in subword pieces, end of sentence not counted."""
    too_long: Literal["drop", "truncate"] = "drop"
    """The treatment of a training pair with a side of over `max_pieces`."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of the hash that orders the pairs and so chooses held-out ones."""

    @field_validator(*LANGUAGE_KEYS)
    @classmethod
    def _as_bcp_47(cls, code: str) -> str:
        return spelled(code)

    @model_serializer(mode="wrap")
    def _without_usual_values(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # They decide nothing about shards and models: digests of recipes stay as they were.
        values: dict[str, Any] = serialize(self)
        usual = {
            "check_languages": True,
            "augment": AugmentConfig().model_dump(),
            "context": ContextConfig().model_dump(),
        }
        return {key: value for key, value in values.items() if usual.get(key) != value}

    @model_validator(mode="after")
    def _languages_are_told(self) -> Self:
        """Set the languages that no key sets, by the names of the entries."""
        stated = Direction(self.source_language, self.target_language)
        for side, key in enumerate(LANGUAGE_KEYS):
            lacking = {} if stated[side] else self._entries_without(key)
            if not lacking:
                continue
            told = self._told_by(lacking, stated, side)
            if not told:
                raise ValueError(_not_told(key, *next(iter(lacking.items()))))
            first, *others = told
            if others:
                places = f"corpus.{told[first]} is {first} and corpus.{told[others[0]]} {others[0]}"
                raise ValueError(
                    f"{key} is not set, and by their names {places}: "
                    "write it beside each entry, or below [corpus] for all that name none"
                )
            object.__setattr__(self, key, first)  # not among the keys that are set
        return self

    def _entries_without(self, key: str) -> dict[str, TextFiles]:
        """The entries that do not set a key, by their places."""
        return {
            f"{split}[{number}]": entry
            for split in ("train", "valid", "test")
            for number, entry in enumerate(getattr(self, split))
            if not getattr(entry, key)
        }

    def _told_by(
        self, entries: dict[str, TextFiles], stated: Direction, side: int
    ) -> dict[str, str]:
        """The languages of a side by the names of entries, each with the place of one that tells.

        Names of single files come first: those of corpora often have languages in another order.
        """
        for of_files in (True, False):
            told: dict[str, str] = {}
            for place, entry in entries.items():
                own = Direction(
                    entry.source_language or stated.source, entry.target_language or stated.target
                )
                code = entry.told_languages(own)[side]
                if code and bool(entry.source) == of_files:
                    told.setdefault(code, place)
            if told:
                return told
        return {}

    @property
    def told_by_names(self) -> str:
        """The languages in words, if names of files told one of them; otherwise "".

        Such as "en to fr, by the names a.en and a.fr".
        """
        entries = {
            place: entry
            for key in LANGUAGE_KEYS
            if key not in self.model_fields_set
            for place, entry in self._entries_without(key).items()
        }
        names = [name for one in entries.values() for name in (one.source, one.target) if name] or [
            one.title for one in entries.values()
        ]
        if not names:
            return ""
        of = " and ".join(names[:2])
        return f"{self.source_language} to {self.target_language}, by the names {of}"

    @model_validator(mode="after")
    def _test_sets_are_whole(self) -> Self:
        if any(entry.set for entry in self.train):
            raise ValueError("set names a dev or test set: a model must not train on it")
        if any(entry.scores for entry in (*self.valid, *self.test)):
            raise ValueError("scores are for entries of train: every pair of a test set counts")
        return self

    @model_validator(mode="after")
    def _weights_are_of_use(self) -> Self:
        held_out = (*self.valid, *self.test)
        if any(one.name or one.weight is not None or one.translated for one in held_out):
            raise ValueError("name, weight and translated belong to entries of corpus.train alone")
        if any(one.shuffled for one in held_out):
            raise ValueError("shuffled belongs to entries of corpus.train alone")
        names = [entry.name for entry in self.train if entry.name]
        if repeated := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two entries of corpus.train are called {min(repeated)}")
        weights = [entry.weight for entry in self.train if entry.weight is not None]
        if weights and len(weights) < len(self.train):
            raise ValueError("give every entry of corpus.train a weight, or none of them")
        if weights and not sum(weights):
            raise ValueError("all weights of corpus.train are 0: no pair would be drawn")
        return self

    @model_validator(mode="after")
    def _every_direction_is_known(self) -> Self:
        for split in ("train", "valid", "test"):
            for number, entry in enumerate(getattr(self, split)):
                direction = self.direction_of(entry)
                if "auto" in (direction.source.lower(), direction.target.lower()):
                    raise ValueError(
                        f'corpus.{split}[{number}] has a language called "auto", '
                        "which servers take for a language to be detected"
                    )
                if direction.source.lower() == direction.target.lower():
                    raise ValueError(
                        f"corpus.{split}[{number}] would translate {direction.source} into itself"
                    )
        return self

    @model_validator(mode="after")
    def _directions_can_be_learnt(self) -> Self:
        trained = self.train_directions
        targets = {direction.target for direction in trained}
        known: dict[str, str] = {}
        for target in sorted(targets):
            tag = parse_language(target).tag if is_language(target) else target
            other = known.setdefault(tag.lower(), target)
            if other != target:
                raise ValueError(
                    f"corpus.train writes one target language in two ways ({other}, {target}): "
                    "write both the same way"
                )
        for split in ("valid", "test"):
            for number, entry in enumerate(getattr(self, split)):
                direction = self.direction_of(entry)
                if self.train and direction.target not in targets:
                    raise ValueError(
                        f"corpus.{split}[{number}] is {listed([direction])}, but no entry of "
                        f"corpus.train translates into {direction.target}"
                    )
        measured = {self.direction_of(entry) for entry in self.valid}
        if self.valid and (missing := [one for one in trained if one not in measured]):
            raise ValueError(f"corpus.valid has no entry for {listed(missing)}")
        if taken := {*self.tags} & {*self.language_tokens}:
            raise ValueError(f'tag = "{min(taken)}" is the token of a target language')
        if self.lowercase and (capitals := [tag for tag in self.tags if tag != tag.lower()]):
            raise ValueError(
                f'tag = "{capitals[0]}" has capitals, and corpus.lowercase would change them '
                f'in text to translate: write "{capitals[0].lower()}"'
            )
        if self.temperature is not None:
            if len(trained) == 1:
                raise ValueError("temperature is for several directions, but there is one")
            if any(entry.weight is not None for entry in self.train):
                raise ValueError(
                    "temperature and weight both set the shares: leave one of them out"
                )
        return self

    def with_languages(self, direction: Direction) -> Self:
        """The section with these languages in place of all that it names."""
        named: dict[str, Any] = dict(zip(LANGUAGE_KEYS, direction, strict=True))
        for split in ("train", "valid", "test"):
            named[split] = tuple(
                entry.model_copy(update=dict.fromkeys(LANGUAGE_KEYS, ""))
                for entry in getattr(self, split)
            )
        return self.model_copy(update=named)

    @property
    def learns_from_a_model(self) -> bool:
        """Whether a model translated training targets, and a dev set is given."""
        return bool(self.valid) and any(one.translated == "target" for one in self.train)

    def direction_of(self, entry: TextFiles) -> Direction:
        """The translation direction of an entry."""
        return Direction(
            entry.source_language or self.source_language,
            entry.target_language or self.target_language,
        )

    @property
    def train_directions(self) -> tuple[Direction, ...]:
        """The directions of the training text, in the order of its entries.

        If there is no training text: the direction of the section's languages.
        """
        found = dict.fromkeys(map(self.direction_of, self.train))
        return tuple(found) or (Direction(self.source_language, self.target_language),)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions of the training text, then those that are measured without any
        (zero-shot)."""
        measured = map(self.direction_of, (*self.valid, *self.test))
        return tuple(dict.fromkeys((*self.train_directions, *measured)))

    @property
    def language_tokens(self) -> tuple[str, ...]:
        """The tokens before sources that name the target language; empty if there is one target."""
        targets = sorted({direction.target for direction in self.train_directions})
        if len(targets) == 1 and not self.language_token:
            return ()
        return tuple(map(language_token, targets))

    @property
    def is_mixed(self) -> bool:
        """Whether entries of the training text may be drawn in shares other than their sizes."""
        return len(self.train_directions) > 1 or any(
            entry.name or entry.weight is not None for entry in self.train
        )

    @property
    def of_text(self) -> Self:
        """The section with only the keys that decide the shards: no entry's name or weight.

        `translated` stays if pairs are held out, because it decides which.
        """
        # Shards of several directions, or of named or weighted entries, say where pairs are from.
        weight = 1.0 if self.is_mixed and len(self.train_directions) == 1 else None
        plain: dict[str, Any] = {"name": "", "weight": weight}
        if (self.valid or not self.valid_pairs) and (self.test or not self.test_pairs):
            plain["translated"] = ""
        train = tuple(entry.model_copy(update=plain) for entry in self.train)
        return self.model_copy(update={"train": train, "check_languages": True})

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of all entries, sorted."""
        entries = (*self.train, *self.valid, *self.test)
        return tuple(sorted({entry.tag for entry in entries} - {""}))

    @property
    def stand_ins(self) -> tuple[str, ...]:
        """The pieces of the vocabulary that stand for other text, or between sentences."""
        return (
            *(stand_ins.PLACEHOLDERS if self.augment.placeholders else ()),
            *((stand_ins.SEPARATOR,) if self.context.sentences > 1 else ()),
        )


def _not_told(key: str, place: str, entry: TextFiles) -> str:
    """The problem of a language that no key and no name tells."""
    first, second = entry.languages_of_name
    name = (entry.target if key == "target_language" else entry.source) or entry.title
    if first:
        return (
            f"{key} is not set, and {entry.title} (corpus.{place}) is a name for both directions: "
            f'write {key} = "{first}" or "{second}" below [corpus]'
        )
    return (
        f"{key} is not set, and the name {name} (corpus.{place}) does not tell it: "
        f'write it below [corpus], such as {key} = "en"'
    )


_OTHER_SIDE: Final = {
    one: other
    for source, target in (("source", "target"), ("source_language", "target_language"))
    for one, other in ((source, target), (target, source))
}


def reversed_section(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a corpus section with source and target swapped, without `reverse`.

    Values of wrong types stay as they are, for the error that names them.
    """
    swapped = {_OTHER_SIDE.get(key, key): value for key, value in values.items()}
    del swapped["reverse"]
    for split in ("train", "valid", "test"):
        if isinstance(entries := swapped.get(split), list):
            swapped[split] = [
                _reversed_entry(entry) if isinstance(entry, dict) else entry for entry in entries
            ]
    return swapped


def _reversed_entry(values: dict[str, Any]) -> dict[str, Any]:
    swapped = {_OTHER_SIDE.get(key, key): value for key, value in values.items()}
    if isinstance(side := swapped.get("translated"), str):
        swapped["translated"] = _OTHER_SIDE.get(side, side)
    if "tsv" in swapped and not swapped.pop("reverse", False):
        swapped["reverse"] = True
    return swapped
