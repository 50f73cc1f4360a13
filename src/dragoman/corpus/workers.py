"""Applies one task to many items on several workers, in order, with bounded memory.

Workers are processes of this machine, or of the nodes of a Ray cluster.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from dragoman.base.errors import MachineError
from dragoman.base.interrupts import interrupts_wait
from dragoman.corpus.ray_nodes import Nodes, Sent

Item = TypeVar("Item")
Result = TypeVar("Result")
Workers: TypeAlias = int | Nodes
"""So many processes of this machine, or the nodes of a cluster."""

_task: Callable[[Any], Any]


def parallel_map(
    task: Callable[[Item], Result], items: Iterable[Item], *, workers: Workers
) -> Iterator[Result]:
    """Yield task(item) for every item, in the order of the items.

    task: sent once to each process, where it may hold state; with one worker everything happens in
        this process. Both it and the items must be picklable.
    Raises: the exception of a task; MachineError if a worker is killed, or of the errors of Nodes.
    """
    if workers == 1:
        yield from map(task, items)
        return
    pending: deque[Future[Result] | Sent] = deque()
    pool = _open_pool(task, workers) if isinstance(workers, int) else workers.open_pool(task)
    with pool as (send, ahead):
        try:
            for item in items:
                pending.append(send(item))
                while len(pending) > ahead():
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for sent in pending:
                sent.cancel()


@contextmanager
def _open_pool(
    task: Callable[[Item], Result], workers: int
) -> Iterator[tuple[Callable[[Item], Future[Result]], Callable[[], int]]]:
    """A function that sends an item to a process, and one that says how many to send ahead."""
    with interrupts_wait():  # an interrupt would leave semaphores behind
        pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(task,),
        )

    def send(item: Item) -> Future[Result]:
        with _deaf_children(), _children_without_main():
            return pool.submit(_run_task, item)

    try:
        yield send, lambda: workers + 1
    except BrokenProcessPool as error:
        raise MachineError(
            "a worker process was killed, most often because memory ran out",
            remedy="free memory or use fewer workers, then run again: finished parts are kept",
        ) from error
    finally:
        with interrupts_wait():
            pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """A process started inside has SIGINT blocked from its first moment on.

    Otherwise a worker that is still importing would print a traceback at the terminal's Ctrl-C.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _children_without_main() -> Iterator[None]:
    """A process started inside does not import the program that started it.

    By default it does, for tasks that are defined there. Ours never are, and a script that has no
    `if __name__ == "__main__"` would run again in each worker.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_worker(task: Callable[[Any], Any]) -> None:
    global _task
    _task = task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """End this worker with its parent: otherwise workers of a killed parent would wait for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_task(item: Any) -> Any:
    return _task(item)
