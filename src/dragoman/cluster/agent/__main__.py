"""`python -m dragoman.cluster.agent VERB FOLDER`: answers the controller, then ends."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from dragoman.base.errors import CheckpointError
from dragoman.base.files import file_sha256
from dragoman.cluster.agent.channel import Channel
from dragoman.training.durable import DIGESTS_FILE, discard, verify


def list_checkpoints(run: Path) -> None:
    """Print the names of all complete checkpoints of a run as a JSON list, including those of
    single ranks."""
    checkpoints = run / "checkpoints"
    found = (path.parent for path in checkpoints.glob("**/step-*/digests.json"))
    names = sorted(path.relative_to(checkpoints).as_posix() for path in found)
    drafts = {name for name in names if any(part.startswith(".") for part in Path(name).parts)}
    print(json.dumps([name for name in names if name not in drafts]))


def forget(run: Path, name: str, expected: str) -> None:
    """Remove a checkpoint that is damaged, or differs from the controller's of the same name.

    expected: the sha256 of the controller's file of digests.
    """
    path = run / "checkpoints" / name
    if path.is_dir():
        try:
            verify(path)
            is_equal = file_sha256(path / DIGESTS_FILE) == expected
        except CheckpointError:
            is_equal = False
        if not is_equal:
            discard(path)


def answer(channel: Channel) -> None:
    """Do what the controller asks until it is gone, or until this host's share of a job is done.

    Raises ValueError if a request is not understood.
    """
    # The other verbs need none of these, and start a new process each time.
    from dragoman.cluster.agent.facts import gather
    from dragoman.cluster.agent.processes import Prepared
    from dragoman.cluster.agent.work import work
    from dragoman.cluster.messages import FactsRequest

    prepared = Prepared()
    try:
        for message in channel.hear():
            if message["do"] == "time":
                channel.say("time", time=time.time())
            elif message["do"] == "prepare_store":
                prepared.store()
            elif message["do"] == "facts":
                request = FactsRequest.model_validate(message["request"])
                measuring = partial(
                    prepared.measuring, ranks=request.ranks, on_processor=not request.gpus
                )
                facts = gather(request, measuring)
                channel.say("facts", facts=facts.model_dump(mode="json"))
            else:
                work(channel, message["request"], prepared)
                return
    finally:
        prepared.close()


_FILES: Final[dict[str, Callable[..., None]]] = {
    "list": list_checkpoints,
    "forget": forget,
}


def main() -> None:
    """Make the folder if it is missing, change to it and run the verb."""
    verb, folder, *rest = sys.argv[1:]
    # Programs started from here find this code wherever they run.
    os.environ["PYTHONPATH"] = str(Path(os.environ["PYTHONPATH"]).resolve())
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    if verb in _FILES:
        _FILES[verb](Path(rest[0]), *rest[1:])
    else:
        answer(Channel())


if __name__ == "__main__":
    main()
