"""`python -m dragoman.cluster.agent FOLDER`: answers the controller, then ends."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path

from dragoman.cluster.agent.channel import Channel
from dragoman.cluster.agent.facts import gather
from dragoman.cluster.agent.processes import Prepared
from dragoman.cluster.agent.work import work
from dragoman.cluster.messages import FactsRequest


def answer(channel: Channel) -> None:
    """Do what the controller asks until it is gone, or until this host's share of a job is done.

    Raises ValueError if a request is not understood.
    """
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
