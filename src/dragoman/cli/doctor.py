"""`dragoman doctor`: check the hosts of a run."""

from pathlib import Path
from typing import Final

from dragoman.cli.options import HOSTS, JSON, Command, Option, Options

_NEEDED_BYTES: Final = 2_000_000_000
"""Free disk that each host must have: for code, some data, some checkpoints."""


@Command(
    "doctor",
    "find faults of the hosts of a run, with remedies",
    "Find faults of the hosts of a run and of the network between them, and name remedies.",
    HOSTS.but(required=True),
    Option("--run", type=Path, help="a run directory; its files on the hosts are compared as well"),
    JSON,
)
def run(options: Options) -> int:
    """Examine the hosts; the exit code is 1 if training would refuse to start."""
    from dragoman.base.terminal import open_console
    from dragoman.cluster.checks import RunNeeds, examine, is_fit
    from dragoman.cluster.collect import collect_facts, remember
    from dragoman.cluster.doctor_view import findings_as_json, print_findings
    from dragoman.cluster.hosts import load_hosts
    from dragoman.cluster.training import digests_here
    from dragoman.recipe.run_directory import RunDirectory

    hosts = load_hosts(options.hosts)
    directory = None if options.run is None else RunDirectory.open(options.run)
    place = "" if directory is None else f"runs/{directory.path.name}"
    facts = collect_facts(hosts, run=place).facts
    remember(hosts, facts)
    digests = {} if directory is None else digests_here(directory)
    findings = examine(facts, RunNeeds(hosts, needed_bytes=_NEEDED_BYTES, digests=digests))
    if options.json:
        print(findings_as_json(findings, facts))
    else:
        print_findings(findings, facts, open_console())
    return 0 if is_fit(findings) else 1
