"""docs/reference/events.md: every kind of event with its keys, from the dataclasses themselves."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from dragoman.telemetry.events import KINDS, SCHEMA_VERSION, Payload
from reference.docstrings import Docstring

HEADER = f"""# Events

Everything that happens in a run is one JSON object per line in `events/rank-NNNN.jsonl`. Console,
TensorBoard and reports only read these files; so can you, with
[`dragoman.read_events`](python.md#read_events), which leaves out `v` and `mono_s`.
`events/prepare.jsonl` tells how the corpus was prepared.
This page is written by `tools/write_reference.py` from the code.

Each event has these keys:

| key | meaning |
|---|---|
| `v` | schema version, {SCHEMA_VERSION} |
| `kind` | the kind of event |
| `time` | UTC, seconds since 1970 |
| `mono_s` | the writer's monotonic clock: differences are exact even when the time of day jumps |
| `host`, `rank`, `step` | who wrote it, after how many updates |

The others are those of its kind, below. Units are in their names. A value is null if it was not
measured. Losses are nats per target token.

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
        f"| `{one.name}` | {form(one)} | {docstring.meaning(one.name).replace('None', 'null')} |\n"
        for one in fields(kind)
    )
    return (
        f"\n## {name}\n\n"
        + "\n\n".join(docstring.prose)
        + f"\n\n| key | value | meaning |\n|---|---|---|\n{rows}"
    )


def names(kind: type[Payload]) -> set[str]:
    """The keys of a kind."""
    return {one.name for one in fields(kind)}


def form(key: Field[Any]) -> str:
    """The type of a value, with its unit if the name has one."""
    annotation = str(key.type)
    found = JSON_TYPES[annotation.removesuffix(" | None")]
    unit = next((unit for ending, unit in UNITS.items() if f"_{key.name}".endswith(ending)), "")
    null = " or null" if annotation.endswith(" | None") or key.default is not MISSING else ""
    return f"{unit or found}{null}"
