"""A teacher behind an address: a chat model that is asked to translate one line at a time.

The interface is that of OpenAI's chat completions (POST ADDRESS/chat/completions), which vLLM,
llama.cpp, Ollama and most paid services have. A server of LibreTranslate's kind is another teacher.
What they answer is strangers' text: `inference.answers` judges it.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from dragoman.base.errors import ConfigError, MachineError
from dragoman.base.languages import language_name
from dragoman.base.printable import clipped, printable_line
from dragoman.corpus.directions import Direction

PROMPT: Final = (
    "Translate this text from {source} to {target}. Answer with the translation alone, on one "
    "line, without notes or quotation marks.{terms}\n\n{text}"
)
"""The default question. {terms} becomes empty if a line has no terms."""
TERMS: Final = " Use these translations: {terms}."
KEY: Final = "DRAGOMAN_TEACHER_KEY"
"""The environment variable with the key of the service."""
_PLACE: Final = re.compile(r"\{(source|target|text|terms)\}")
_REQUEST_S: Final = 300.0
_LARGEST_BYTES: Final = 4 << 20
_TRIES: Final = 7
_LONGEST_WAIT_S: Final = 60.0
_LONGEST_ASKED_WAIT_S: Final = 600.0
"""The longest wait that a server may ask for by Retry-After."""
_BUSY: Final = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
"""Statuses after which the same request may succeed."""
_OF_THE_LINE: Final = frozenset((400, 413, 422))
"""Statuses that may mean that this text is too long, or not allowed."""
_BYTES_PER_TOKEN: Final = 4
_ANSWER_TOKENS: Final = 64, 2
"""The most tokens of an answer: so many, and as many times the bytes of the text."""


T = TypeVar("T")
OnRequest = Callable[[int], None]
"""Called with 1 before a request, and with -1 if it was refused, so that it costs nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """finish: stop, length (it was cut off), refused, or broken (there was no answer to read).

    tokens_in, tokens_out: as the server counts them, or a guess if it does not.
    """

    text: str
    finish: str
    tokens_in: int
    tokens_out: int


class Teacher(Protocol):
    """Translates a line somewhere else."""

    @property
    def server(self) -> Server:
        """Where it is."""

    @property
    def direction(self) -> Direction:
        """The languages of the line and of the translation."""

    def key(self, text: str) -> str:
        """A digest of all that decides the answer."""

    def most_tokens(self, text: str) -> tuple[int, int]:
        """The most tokens of the question and of the answer."""

    def ask(self, text: str, note: OnRequest) -> Answer:
        """The answer to one line; raises MachineError as `Server.post`."""


class LineRefusedError(MachineError):
    """The server refuses a request, perhaps because of its text."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The key is for this address alone."""

    def redirect_request(self, *_arguments: Any) -> None:
        """Follow none: the answer is an error."""


_OPENER: Final = urllib.request.build_opener(_NoRedirects)


@dataclass(frozen=True, slots=True)
class Server:
    """An address, and the key that it wants. It is asked again after errors that may pass."""

    address: str
    key: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigError if it is no address, or the key would travel in the open."""
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "is not an address",
                place=self.address,
                remedy="write it with http:// or https://, such as http://127.0.0.1:8000/v1",
            )
        if parts.scheme == "http" and self.key and not _is_near(parts.hostname):
            raise ConfigError(
                "the key would be sent without encryption",
                place=self.address,
                remedy=f"write https://, or unset {KEY}",
            )

    def post(
        self, path: str, body: Mapping[str, Any], note: OnRequest, read: Callable[[Any], T]
    ) -> T | None:
        """What `read` makes of the answer's JSON; None if it raises ValueError again and again.

        Raises LineRefusedError if the server refuses the request, perhaps because of its text, and
        MachineError if it cannot be reached, refuses us, or stays busy.
        """
        address = self.address.rstrip("/") + path
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = json.dumps(body).encode()
        problem = ""
        for number in range(_TRIES):
            note(1)
            asked = urllib.request.Request(address, data, headers)  # noqa: S310  (checked above)
            wait_s = random.uniform(0.5, 1.0) * min(2.0**number, _LONGEST_WAIT_S)  # noqa: S311
            try:
                with _OPENER.open(asked, timeout=_REQUEST_S) as response:
                    return read(json.loads(response.read(_LARGEST_BYTES)))
            except urllib.error.HTTPError as error:
                note(-1)
                words = error.read(2000).decode("utf-8", "replace")
                problem = f"the server answers {error.code}: {clipped(printable_line(words), 300)}"
                if error.code not in _BUSY:
                    raise _refusal(address, problem, error.code) from error
                wait_s = _asked_wait_s(error.headers.get("Retry-After")) or wait_s
            except (ValueError, http.client.HTTPException):
                problem = ""  # it answered, but not with what can be read
            except OSError as error:
                if isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                    note(-1)
                problem = f"no answer: {error}"
            if number < _TRIES - 1:
                time.sleep(wait_s)
        if not problem:
            return None
        raise MachineError(
            problem, place=address, remedy="run the command again later; what is finished stays"
        )


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat model. fields: of the request, beside the messages; None leaves a field out."""

    server: Server
    model: str
    direction: Direction
    prompt: str = PROMPT
    terms: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ConfigError if the prompt has no place for the text."""
        if "{text}" not in self.prompt:
            raise ConfigError(
                "has no {text}", place="prompt", remedy="write {text} where the line stands"
            )

    def question(self, text: str) -> str:
        """The question that is sent for a line."""
        fitting = [f"{term} = {wanted}" for term, wanted in self.terms.items() if term in text]
        values = {
            "source": language_name(self.direction.source),
            "target": language_name(self.direction.target),
            "terms": TERMS.format(terms="; ".join(fitting)) if fitting else "",
            "text": text,
        }
        return _PLACE.sub(lambda place: values[place[1]], self.prompt)

    def body(self, text: str) -> dict[str, Any]:
        """The request of a line."""
        least, times = _ANSWER_TOKENS
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.question(text)}],
            "temperature": 0,
            "max_tokens": least + times * len(text.encode()),
            **self.fields,
        }
        return {name: value for name, value in body.items() if value is not None}

    def key(self, text: str) -> str:
        """As `Teacher.key`: a digest of the request."""
        return hashlib.sha256(json.dumps(self.body(text), sort_keys=True).encode()).hexdigest()[:32]

    def most_tokens(self, text: str) -> tuple[int, int]:
        """As `Teacher.most_tokens`: no token is shorter than a byte."""
        body = self.body(text)
        longest = body.get("max_tokens") or body.get("max_completion_tokens")
        least, times = _ANSWER_TOKENS
        return (
            len(self.question(text).encode()) + 16,
            longest if isinstance(longest, int) else least + times * len(text.encode()),
        )

    def ask(self, text: str, note: OnRequest) -> Answer:
        """As `Teacher.ask`."""
        read = _Completion.model_validate
        found = self.server.post("/chat/completions", self.body(text), note, read)
        if found is None:
            return Answer("", "broken", len(self.question(text).encode()) // _BYTES_PER_TOKEN, 0)
        message, finish = found.choices[0].message, found.choices[0].finish_reason or "stop"
        said = message.content or ""
        usage = found.usage or _Usage(
            prompt_tokens=len(self.question(text).encode()) // _BYTES_PER_TOKEN,
            completion_tokens=len(said.encode()) // _BYTES_PER_TOKEN,
        )
        is_refused = bool(message.refusal) or finish == "content_filter"
        return Answer(
            said,
            "refused" if is_refused else finish,
            usage.prompt_tokens,
            usage.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Libre:
    """A server with LibreTranslate's interface; it counts no tokens."""

    server: Server
    direction: Direction

    def key(self, text: str) -> str:
        """As `Teacher.key`."""
        return hashlib.sha256(f"{self.direction} {text}".encode()).hexdigest()[:32]

    def most_tokens(self, _text: str) -> tuple[int, int]:
        """As `Teacher.most_tokens`."""
        return 0, 0

    def ask(self, text: str, note: OnRequest) -> Answer:
        """As `Teacher.ask`."""
        source, target = self.direction
        body = {"q": text, "source": source, "target": target, "format": "text"}
        if self.server.key:
            body["api_key"] = self.server.key
        found = self.server.post("/translate", body, note, _Translated.model_validate)
        if found is None:
            return Answer("", "broken", 0, 0)
        return Answer(found.translatedText, "stop", 0, 0)


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(default=0, ge=0)


class _Completion(BaseModel):
    """The fields that are read of an answer of chat completions."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class _Translated(BaseModel):
    """The answer of LibreTranslate's interface."""

    translatedText: str  # its name there


def _is_near(host: str) -> bool:
    """Whether a host is this machine, or in a private network by its address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_private


def _refusal(address: str, problem: str, status: int) -> MachineError:
    if status in _OF_THE_LINE:
        return LineRefusedError(
            problem, place=address, remedy="check the name of the model and the fields"
        )
    remedy = "check the address and the name of the model"
    if status in (401, 402, 403):
        remedy = f"set the key of the service in {KEY}, and see what it says of the account"
    return MachineError(problem, place=address, remedy=remedy)


def _asked_wait_s(seconds: str | None) -> float:
    """The wait that a server asks for; 0 if it asks for none in seconds."""
    is_number = seconds is not None and seconds.isdecimal() and len(seconds) < 9
    return min(float(seconds or 0), _LONGEST_ASKED_WAIT_S) if is_number else 0.0
