"""Every kind of event with its keys, from the models themselves."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, get_args

from pydantic.fields import FieldInfo

from dragoman.base.docstrings import Docstring
from dragoman.telemetry.events import KINDS, SCHEMA_VERSION, Payload, Tag

HEADER = f"""# Events

Everything that happens in a run is one JSON object per line in `events/log.jsonl`, which rank 0
writes for all ranks. Console, TensorBoard and reports only read this file; so can you, with
[`dragoman.read_events`](python.md#read_events), which leaves out `v` and `mono_s`.
`events/prepare.jsonl` tells how the corpus was prepared.

Each event has these keys:

| key | meaning |
|---|---|
| `v` | schema version, {SCHEMA_VERSION} |
| `kind` | the kind of event |
| `time` | UTC, seconds since 1970, by the clock of rank 0 |
| `mono_s` | the writer's monotonic clock: differences are exact even when the time of day jumps |
| `host`, `rank`, `step` | who wrote it, after how many updates |

The others are those of its kind, below. Units are in their names. A value is null if it was not
measured. Losses are nats per target token. A tag is the name under which TensorBoard, MLflow and
Weights & Biases show a value.

Events of other ranks reach the file at the next log point; alerts and pauses do so within seconds.
If rank 0 dies, those since its last log point are lost.

One rank per host also samples the host every second. It writes `host_sampled`, `network_sampled`
(if there are several ranks) and `gpu_sampled` (with `pip install 'dragoman[gpu]'`, NVIDIA's
library). An event covers one second in the first minute, then ten seconds, and after 5.6 hours a
2,000th of the run's age. Samples are means over the last `seconds_s`, amounts are sums over them,
shares are of 1.

A kill tears at most the last line; readers pass over it and count it.
"""
UNITS = {
    "_bytes_per_s": "bytes a second",
    "_bits_per_s": "bits a second",
    "_flop_per_s": "floating-point operations a second",
    "_tokens_per_s": "tokens a second",
    "sentences_per_s": "sentences a second",
    "_bytes": "bytes",
    "_share": "of 1",
    "_hz": "hertz",
    "_s": "seconds",
    "_w": "watts",
}
JSON_TYPES = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}


def page() -> str:
    """The whole page; kinds that only the log of another tool has are left out."""
    kinds = {name: kind for name, kind in KINDS.items() if kind.__module__ == Payload.__module__}
    rows = "".join(f"| [`{name}`](#{name}) | {summary(kind)} |\n" for name, kind in kinds.items())
    sections = "".join(section(name, kind) for name, kind in kinds.items())
    return f"{HEADER}\n| kind | event |\n|---|---|\n{rows}{sections}"


def summary(kind: type[Payload]) -> str:
    """The first sentence of its docstring."""
    return Docstring.of(kind, names(kind)).prose[0].split(". ")[0].rstrip(".") + "."


def section(name: str, kind: type[Payload]) -> str:
    """A kind and its keys."""
    docstring = Docstring.of(kind, names(kind))
    rows = "".join(
        f"| `{key}` | {form(key, about)} | {meaning(docstring, key, about)} |\n"
        for key, about in kind.model_fields.items()
    )
    return (
        f"\n## {name}\n\n"
        + "\n\n".join(docstring.prose)
        + f"\n\n| key | value | meaning |\n|---|---|---|\n{rows}"
    )


def meaning(docstring: Docstring, key: str, about: FieldInfo) -> str:
    """The meaning of a value, and its tag if it has one."""
    said = docstring.meaning(key).replace("None", "null")
    tags = [f"tag `{one.name}`" for one in about.metadata if isinstance(one, Tag)]
    return " ".join(filter(None, [said, *tags]))


def names(kind: type[Payload]) -> set[str]:
    """The keys of a kind."""
    return set(kind.model_fields)


def form(key: str, about: FieldInfo) -> str:
    """The type of a value, with its unit if the name has one."""
    kinds = get_args(about.annotation) if _is_union(about.annotation) else (about.annotation,)
    (kind,) = (one for one in kinds if one is not NoneType)
    unit = next((unit for ending, unit in UNITS.items() if f"_{key}".endswith(ending)), "")
    of_ranks = get_args(kind)
    inner = [one for one in _flat(of_ranks) if isinstance(one, type) and one is not NoneType]
    found = unit or JSON_TYPES[(inner[0] if of_ranks else kind).__name__]
    each = ", one of each rank" if of_ranks else ""
    null = " or null" if NoneType in kinds or not about.is_required() else ""
    return f"{found}{each}{null}"


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, UnionType) or NoneType in get_args(annotation)


def _flat(arguments: Any) -> list[Any]:
    return [one for part in arguments for one in (get_args(part) or (part,))]
