"""Pairs from a teacher behind an address: a chat model, or a server of LibreTranslate's kind."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dragoman.api.checks import checked
from dragoman.api.kinds import Count, Option
from dragoman.base.errors import ConfigError, CorpusError

if TYPE_CHECKING:
    from dragoman.inference.chat import Teacher
    from dragoman.inference.purse import Prices


@dataclass(frozen=True, slots=True)
class Taught:
    """The result of `ask_teacher`.

    output: a file of `source TAB target`. manifest: a JSON file of what was asked and what it cost.
    dropped: the number of dropped answers, by reason.
    tokens_in, tokens_out: of questions and answers. cost: in this currency, None without prices.
    resumed_after: lines that an earlier, interrupted attempt had finished.
    """

    output: Path
    manifest: Path
    lines: int
    pairs: int
    dropped: Mapping[str, int]
    tokens_in: int
    tokens_out: int
    cost: float | None
    currency: str
    resumed_after: int


@checked
def ask_teacher(
    address: Annotated[str, Option(metavar="URL")],
    text: Annotated[str | Path, Option("--input", "FILE")],
    output: Annotated[str | Path, Option("--output", "FILE")],
    *,
    languages: Annotated[str, Option(metavar="SOURCE-TARGET")],
    model: str = "",
    interface: Literal["chat", "libretranslate"] = "chat",
    direction: Literal["back", "forward"] = "forward",
    prompt: Annotated[str | Path | None, Option(metavar="FILE")] = None,
    terms: Annotated[str | Path | None, Option(metavar="FILE")] = None,
    fields: Annotated[Sequence[str], Option("--field", "NAME=JSON")] = (),
    at_once: Count = 8,
    price_in: Annotated[str, Option(metavar="MONEY")] = "",
    price_out: Annotated[str, Option(metavar="MONEY")] = "",
    spend: Annotated[str, Option(metavar="MONEY")] = "",
    most_tokens: Count | None = None,
    key_file: Annotated[str | Path | None, Option(metavar="FILE")] = None,
    progress: bool = False,
) -> Taught:
    """Let a chat model or another server translate monolingual text into pairs.

    Each line is one question. The answers are strangers' text: refusals, explanations, Markdown and
    other languages are dropped and counted. The same command resumes after an interruption, and
    pays for no line twice.

    address: the address of a server with OpenAI's chat completions, such as
        http://127.0.0.1:8000/v1 of vLLM, llama.cpp or Ollama, or a paid service. Its key is in
        DRAGOMAN_TEACHER_KEY.
    text: a file, one sentence per line.
    output: a new file of pairs, source TAB target; OUTPUT.json beside it tells what was asked.
    languages: those of the text and of the translations, such as en-de.
    model: the name of the model, for the chat interface.
    interface: chat, or libretranslate for a server with LibreTranslate's interface.
    direction: forward: the translation is the target (distillation). back: it is the source
        (back-translation).
    prompt: a file with the question, where {text}, {source}, {target} and {terms} stand for the
        line, the names of the languages and the terms that the line has; None: a short one, which
        is printed.
    terms: a file of source TAB target, and TAB en-de if a term is for these languages alone; those
        that a line has are named in its question.
    fields: a field of the request and its value in JSON, such as max_completion_tokens=500; null
        leaves one out; may be given again.
    at_once: questions at a time.
    price_in: the price of a million tokens of questions, such as "0.15 USD".
    price_out: the price of a million tokens of answers.
    spend: the most money to spend, such as "20 USD", all attempts together.
    most_tokens: the most tokens of questions and answers, in place of spend.
    key_file: a file with the key, in place of the environment variable.
    progress: show the progress of the work.
    Raises ConfigError if the output has text already or the limit is reached, CorpusError for a
    text that cannot be read, and MachineError if the server does not answer; what is finished or
    paid for is kept.
    """
    from dragoman.api.progress import line_printer, lines_shown
    from dragoman.api.synthetic import place_of_pairs, text_of
    from dragoman.base.line_files import transform_file
    from dragoman.corpus.directions import parse_pair
    from dragoman.inference.answers import REASONS
    from dragoman.inference.chat import PROMPT, Chat, Libre, Server
    from dragoman.inference.purse import Ledger, LimitReachedError
    from dragoman.inference.taught import TaughtPairs
    from dragoman.inference.terms import read_terms, targets_for

    source = text_of(Path(text))
    place = place_of_pairs(Path(output), source)
    pair = parse_pair(languages, place="languages")
    prices = _prices(price_in, price_out, spend, most_tokens)
    server = Server(address, _key(key_file))
    question = PROMPT if prompt is None else _read(Path(prompt))
    known = {} if terms is None else targets_for(read_terms(Path(terms)), [pair])
    teacher: Teacher
    if interface == "libretranslate":
        teacher = Libre(server, pair)
    else:
        if not model:
            raise ConfigError(
                "which model shall answer?", place="model", remedy="name one that the server has"
            )
        teacher = Chat(server, model, pair, question, known, _fields(fields))
        say = line_printer(progress)
        say(f"each line is asked as: {teacher.question('...')}")
    draft = place.with_name(f".{place.name}.partial")
    answers = place.with_name(f".{place.name}.answers")
    counts: Counter[str] = Counter()
    with lines_shown(progress) as show, Ledger(answers, prices) as ledger:
        pairs = TaughtPairs(teacher, ledger, direction, at_once, _identified(pair.target), counts)
        try:
            resumed_after = transform_file(
                source,
                place,
                pairs.lines,
                identity={
                    "teacher": teacher.key("{text}"),
                    "terms": known,
                    "direction": direction,
                },
                tally=counts,
                progress=show,
            )
        except LimitReachedError as error:
            raise ConfigError(
                f"the limit of {spend or f'{most_tokens} tokens'} is reached after "
                f"{counts['lines']} lines",
                place="spend" if spend else "most_tokens",
                remedy=f"give more to go on; the pairs so far are in {draft}",
            ) from error
    dropped = {reason: counts[reason] for reason in REASONS if counts[reason]}
    done = Taught(
        output=place,
        manifest=place.with_name(f"{place.name}.json"),
        lines=counts["lines"],
        pairs=counts["pairs"],
        dropped=dropped,
        tokens_in=ledger.tokens_in,
        tokens_out=ledger.tokens_out,
        cost=ledger.cost if prices.currency else None,
        currency=prices.currency,
        resumed_after=resumed_after,
    )
    _write_manifest(done, source, teacher)
    answers.unlink()
    return done


def _write_manifest(done: Taught, source: Path, teacher: Teacher) -> None:
    """Write beside the pairs what was asked, of whom, and what it cost; never the key."""
    from dragoman.base.files import file_sha256, write_json
    from dragoman.inference.chat import Chat

    asked: dict[str, Any] = {"address": teacher.server.address, "languages": str(teacher.direction)}
    if isinstance(teacher, Chat):
        asked |= {name: getattr(teacher, name) for name in ("model", "prompt", "terms", "fields")}
    facts = {**asdict(done), "output": done.output.name, "sha256": file_sha256(done.output)}
    del facts["manifest"]
    write_json(done.manifest, {"text": str(source), "asked": asked, **facts})


def _prices(price_in: str, price_out: str, spend: str, most_tokens: int | None) -> Prices:
    """The prices and the limit; raises ConfigError if they contradict each other."""
    from dragoman.base.units import parse_money
    from dragoman.inference.purse import Prices

    if spend and most_tokens is not None:
        raise ConfigError("is one limit too many", place="most_tokens", remedy="leave it out")
    if not (price_in or price_out):
        if spend:
            raise ConfigError(
                "needs the prices of a million tokens",
                place="spend",
                remedy='set price_in and price_out, such as "0.15 USD"',
            )
        return Prices(limit=most_tokens)
    amounts = [parse_money(text) for text in (price_in, price_out, spend) if text]
    currencies = {currency for _, currency in amounts}
    if not (price_in and price_out) or len(currencies) > 1:
        raise ConfigError(
            "and price_out must both be given, in the currency of spend",
            place="price_in",
            remedy='write, for example, "0.15 USD" and "0.60 USD"',
        )
    if most_tokens is not None:
        raise ConfigError(
            "has no effect beside prices", place="most_tokens", remedy="set spend in its place"
        )
    limit = amounts[2][0] if spend else None
    return Prices(currencies.pop(), amounts[0][0], amounts[1][0], limit)


def _key(file: str | Path | None) -> str:
    """The key of the service, from a file or the environment; "" if there is none."""
    from dragoman.inference.chat import KEY

    key = os.environ.get(KEY, "") if file is None else _read(Path(file))
    key = key.strip()
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError("is no key", place=KEY if file is None else file, remedy="check it")
    return key


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError("cannot be read", place=path, remedy="check its name") from error


def _fields(fields: Sequence[str]) -> dict[str, Any]:
    """Fields of a request; raises ConfigError if one is not NAME=JSON."""
    values = {}
    for field in fields:
        name, equals, value = field.partition("=")
        try:
            if not equals or not name or name == "messages":
                raise ValueError
            values[name] = json.loads(value)
        except ValueError as error:
            raise ConfigError(
                f"{field!r} is not NAME=JSON",
                place="fields",
                remedy='write, for example, temperature=0.3 or reasoning_effort="low"',
            ) from error
    return values


def _identified(language: str) -> str | None:
    """The language if py3langid can identify it."""
    from importlib.util import find_spec

    from dragoman.corpus.language import is_known

    return language if find_spec("py3langid") is not None and is_known(language) else None
