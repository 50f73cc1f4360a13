"""`python -m dragoman.cluster.agent FOLDER`: tells the controller the facts of this host, then does
its share of the work."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from pathlib import Path

from dragoman.cluster.agent.channel import Channel
from dragoman.cluster.agent.facts import gather
from dragoman.cluster.agent.measuring import Measuring
from dragoman.cluster.agent.work import work
from dragoman.cluster.messages import FactsRequest, WorkRequest


def answer(channel: Channel) -> None:
    """Do what the controller asks; end when it is gone.

    Raises ValueError if a request is not understood.
    """
    request = FactsRequest.model_validate_json(channel.expect())
    with closing(Measuring(ranks=request.ranks, on_processor=not request.gpus)) as measuring:
        facts = gather(request, measuring)
        # The peers connect to this port once, and the first host opens the store there.
        address = facts.interface.address if facts.interface else "127.0.0.1"
        with socket.create_server((address, 0)) as listener:
            facts = facts.model_copy(update={"port": listener.getsockname()[1]})
            channel.say(facts=facts.model_dump(mode="json"))
            share = WorkRequest.model_validate_json(channel.expect())
            work(channel, share, measuring, listener)


def main() -> None:
    """Make the folder if it is missing, change to it and answer."""
    folder = sys.argv[1]
    # Programs started from here find this code wherever they run.
    os.environ["PYTHONPATH"] = str(Path(os.environ["PYTHONPATH"]).resolve())
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    answer(Channel())


if __name__ == "__main__":
    main()
