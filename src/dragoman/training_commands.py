"""Commands about the hosts of a run: options in, a call, a few lines out."""

from __future__ import annotations

from argparse import Namespace
from typing import Final

from dragoman.console import open_console

_NEEDED_BYTES: Final = 2_000_000_000
"""Of disk on each host, where no run says how much: code, some data, some checkpoints."""


def doctor(options: Namespace) -> int:
    """Examine the hosts; the exit code is 1 where training would refuse to start."""
    from dragoman.cluster.checks import Wanted, examine, is_fit
    from dragoman.cluster.doctor_view import findings_as_json, print_findings
    from dragoman.cluster.examine import examine_hosts
    from dragoman.cluster.hosts import load_hosts

    hosts = load_hosts(options.hosts)
    facts = examine_hosts(hosts).facts
    findings = examine(facts, Wanted(hosts, needed_bytes=_NEEDED_BYTES))
    if options.json:
        print(findings_as_json(findings, facts))
    else:
        print_findings(findings, facts, open_console())
    return 0 if is_fit(findings) else 1
