"""Lines -> pairs, by a teacher behind an address: several questions at once, answers in order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from dragoman.base.errors import MachineError
from dragoman.corpus.normalize import normalize
from dragoman.inference.answers import fault_of, translation_of
from dragoman.inference.chat import Answer, LineRefusedError, Teacher
from dragoman.inference.purse import Ledger
from dragoman.inference.synthesize import SynthesisDirection

_AHEAD: Final = 4
"""Lines that are asked or wait, for each question at a time: one slow answer holds up no others."""
_WRITTEN_TOGETHER: Final = 256


@dataclass(frozen=True, slots=True)
class TaughtPairs:
    """Makes pairs of lines and a teacher's translations.

    at_once: questions at a time. language: that of the translations, if it can be identified.
    counts: the numbers of lines, of pairs and of dropped answers by reason so far.
    """

    teacher: Teacher
    ledger: Ledger
    direction: SynthesisDirection
    at_once: int
    language: str | None
    counts: Counter[str]

    def lines(self, lines: Iterable[str], _first: int) -> Iterator[list[str]]:
        """The pair of each line, or nothing, group by group.

        Raises MachineError if the server does not answer, LimitReachedError if the money is spent;
        what came before is given first.
        """
        failures: list[Exception] = []
        asked: deque[tuple[str, Future[Answer]]] = deque()
        running: dict[str, Future[Answer]] = {}
        pool = ThreadPoolExecutor(self.at_once, "teacher")
        try:
            for line in lines:
                text = " ".join(line.split("\t")).strip()
                key = self.teacher.key(text)
                if key not in running or running[key].done():  # a line that repeats is asked once
                    running[key] = pool.submit(self._answer, text, key, failures)
                asked.append((text, running[key]))
                if len(asked) >= _AHEAD * self.at_once:
                    yield self._finished(asked)
                    running = {key: one for key, one in running.items() if not one.done()}
            while asked:
                yield self._finished(asked)
        finally:
            failures.append(MachineError("the work has ended", place="teacher"))
            pool.shutdown(cancel_futures=True)

    def _answer(self, text: str, key: str, failures: list[Exception]) -> Answer:
        """The answer to a line, now or from before.

        failures: those of all questions; after the first one no further question is sent.
        """
        if not text:
            return Answer("", "stop", 0, 0)
        if (known := self.ledger.get(key)) is not None:
            return known
        try:
            with self.ledger.reserved(*self.teacher.most_tokens(text)):
                if failures:
                    raise failures[0]
                answer = self._asked(text)
                self.ledger.note_answer(key, answer)
        except Exception as error:
            failures.append(error)
            raise
        return answer

    def _asked(self, text: str) -> Answer:
        try:
            return self.teacher.ask(text, self.ledger.note_request)
        except LineRefusedError:
            if not self.ledger.has_translations:  # then it is not because of this line
                raise
            self.ledger.note_request(1)  # which the answer takes back
            return Answer("", "not_allowed", 0, 0)

    def _finished(self, asked: deque[tuple[str, Future[Answer]]]) -> list[str]:
        """The pairs of the first lines, at least of one; an error waits until it is the first."""
        pairs: list[str] = []
        while asked and len(pairs) < _WRITTEN_TOGETHER:
            text, answer = asked[0]
            if pairs and (not answer.done() or answer.exception() is not None):
                break
            pairs.append(self._pair(text, answer.result()))
            asked.popleft()
        self.counts["lines"] += len(pairs)
        return pairs

    def _pair(self, text: str, answer: Answer) -> str:
        reason = fault_of(answer, text, self.language)
        if reason is not None:
            self.counts[reason] += 1
            return ""
        self.counts["pairs"] += 1
        sides = normalize(text), normalize(translation_of(answer, text))
        source, target = sides[::-1] if self.direction == "back" else sides
        return f"{source}\t{target}\n"
