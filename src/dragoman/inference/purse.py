"""The bill of a paid teacher: every answer is kept as soon as it is there, and no limit is passed.

The ledger is a file of JSON lines. A line is written before each request and one after it, so after
a kill it is known which answers are paid for, and how many more may be.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from dragoman.base.errors import ConfigError
from dragoman.inference.chat import Answer

_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, and the most that may be spent.

    currency: of all amounts. If it is "", the prices count tokens. limit: None if there is none.
    """

    currency: str = ""
    of_question: float = _MILLION
    of_answer: float = _MILLION
    limit: float | None = None

    def cost(self, tokens_in: float, tokens_out: float) -> float:
        """The price of these tokens."""
        return (tokens_in * self.of_question + tokens_out * self.of_answer) / _MILLION


class LimitReachedError(ConfigError):
    """The next answer might cost more than is left."""


class Ledger:
    """Answers and what they cost, in a file that later attempts go on with.

    A request whose answer was lost, by a kill or a broken connection, counts as much as a mean
    answer, because a service may ask to be paid for it.
    """

    def __init__(self, path: Path, prices: Prices) -> None:
        self.prices = prices
        self._path = path
        self._file: IO[bytes] | None = None
        self._lock = threading.Condition()
        self._answers: dict[str, Answer] = {}
        self._reserved: list[float] = []
        self._unanswered = 0
        self.has_translations = False
        self.tokens_in = 0
        self.tokens_out = 0

    def __enter__(self) -> Self:
        """Read what earlier attempts wrote; a line that a kill cut off is removed."""
        sound_bytes = 0
        if self._path.exists():
            with self._path.open("rb") as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    sound_bytes += len(line)
                    self._count(json.loads(line))
        self._file = self._path.open("ab")
        self._file.truncate(sound_bytes)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file, which stays."""
        if self._file is not None:
            self._file.close()

    def get(self, key: str) -> Answer | None:
        """The answer to a question that was asked before."""
        with self._lock:
            return self._answers.get(key)

    @property
    def cost(self) -> float:
        """What all requests so far have cost, by the prices."""
        paid = self.prices.cost(self.tokens_in, self.tokens_out)
        return paid * (1 + self._unanswered / max(1, len(self._answers)))

    @contextmanager
    def reserved(self, tokens_in: int, tokens_out: int) -> Iterator[None]:
        """Wait until this much is left beside what others are asking; free it afterwards.

        Raises LimitReachedError if it will not be left.
        """
        most, limit = self.prices.cost(tokens_in, tokens_out), self.prices.limit
        with self._lock:
            # A question on its way counts twice, so the limit is reached rather early than late.
            while limit is not None and self.cost + sum(self._reserved) + most > limit:
                if not self._reserved:
                    raise LimitReachedError("the limit is reached")
                self._lock.wait()
            self._reserved.append(most)
        try:
            yield
        finally:
            with self._lock:
                self._reserved.remove(most)
                self._lock.notify_all()

    def note_request(self, change: int) -> None:
        """Write that a question is sent (1), or that it was refused and costs nothing (-1)."""
        self._note({"unanswered": change})

    def note_answer(self, key: str, answer: Answer) -> None:
        """Keep an answer, and what it cost."""
        self._note({"key": key, **asdict(answer)})

    def _note(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        with self._lock:
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            self._count(line)

    def _count(self, line: dict[str, Any]) -> None:
        if "unanswered" in line:
            self._unanswered += line["unanswered"]
            return
        key = line.pop("key")
        self._answers[key] = answer = Answer(**line)
        self._unanswered -= 1
        self.has_translations |= answer.finish not in ("broken", "not_allowed")
        self.tokens_in += answer.tokens_in
        self.tokens_out += answer.tokens_out
