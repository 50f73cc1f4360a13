"""The server under load for half an hour: it grows no larger, and answers as it did at first."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from real_text import real_lines
from served import Server, served_bundle, serving

MINUTES = float(os.environ.get("DRAGOMAN_SOAK_MINUTES", "30"))
WARM_SHARE = 0.2
"""The share of the time in which caches and memory pools fill."""
MOST_GROWTH_MB = 20
CLIENTS = 12


def num_open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 600)
def test_the_server_does_not_grow() -> None:
    lines = real_lines("train", "en")[:5000]
    with serving(served_bundle(), "--queue", "3000") as server:
        expected = server.ask("/translate", {"text": lines[0]}).json["translations"]
        began = time.monotonic()
        statuses: Counter[int] = Counter()
        lock = threading.Lock()

        def client(number: int) -> None:
            while time.monotonic() < began + 60 * MINUTES:
                number += CLIENTS
                some = lines[number % 4000 : number % 4000 + number % 40 + 1]
                path = ("/translate", "/translate/stream")[number % 5 == 0]
                text = "\n".join(some) if path.endswith("stream") else some
                status = server.ask(path, {"text": text, "beam_size": 1 + number % 3}).status
                with lock:
                    statuses[status] += 1

        clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
        for thread in clients:
            thread.start()
        time.sleep(60 * MINUTES * WARM_SHARE)
        before_mb, files = server.memory_mb, num_open_files(server)
        largest_mb = 0.0
        while any(thread.is_alive() for thread in clients):
            time.sleep(min(5, 6 * MINUTES))
            largest_mb = max(largest_mb, server.memory_mb)
        assert largest_mb < before_mb + MOST_GROWTH_MB
        assert num_open_files(server) <= files
        assert statuses[200] > 100
        assert set(statuses) <= {200, 429, 503}
        assert server.ask("/translate", {"text": lines[0]}).json["translations"] == expected
