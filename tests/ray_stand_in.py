"""The part of Ray that `Nodes` uses, in this process: what Ray would send is pickled, too."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RayError(Exception):
    """An error of Ray itself."""


class RayTaskError(RayError):
    """An error of a task. cause: as the node raised it. ip: the node's address."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.ip = "10.0.0.9"


@dataclass(frozen=True)
class Reference:
    """To what was sent, or to a result; both are pickled. No two have the same number."""

    pickled: bytes
    number: int = field(default_factory=count().__next__)


def put_ray(monkeypatch: pytest.MonkeyPatch, *, cores: float = 2.0) -> None:
    """Let `import ray` give the stand-in, whose only node has so many cores."""
    ray: Any = ModuleType("ray")
    ray.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    ray.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.9")
    ray.nodes = lambda: [{"Alive": True, "Resources": {"CPU": cores}}]
    ray.put = lambda value: Reference(pickle.dumps(value))
    ray.get = _get
    ray.wait = lambda references, timeout: (references, [])
    ray.cancel = lambda reference: None
    ray.remote = lambda **options: (
        lambda function: SimpleNamespace(
            remote=lambda *values: Reference(pickle.dumps(_result(function, values)))
        )
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)


def _result(function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    try:
        return function(*pickle.loads(pickle.dumps(values)))
    except Exception as error:
        return RayTaskError(error)


def _get(reference: Reference) -> Any:
    value = pickle.loads(reference.pickled)
    if isinstance(value, RayTaskError):
        raise value
    return value
