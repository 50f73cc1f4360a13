"""The server under load, on loopback: throughput of many clients beside the offline rate.

Clients are threads of a process of their own, each with one connection, one sentence of Multi30k
test2016 a request. Offline is `Translator.translate` on all of them at once, in the same minute and
with the same bundle and beam. Client and server share the cores, so the client's own cost is in the
figure. Then ten times as many clients as fit in the queue: what is refused, how quickly, and the
memory before and after.

    python benchmarks/serve.py --bundle runs/.../export/ctranslate2-float32 --beam 5
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from dragoman.evaluate.validate import read_lines
from dragoman.export.bundle import Bundle
from dragoman.serve.engines import translator_of

REPOSITORY = Path(__file__).resolve().parents[1]


class Load:
    """What clients saw: seconds of each request by its status."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}
        self._lock = threading.Lock()

    def add(self, status: int, spent_s: float) -> None:
        with self._lock:
            self.seconds.setdefault(status, []).append(spent_s)

    def counts(self) -> Counter[int]:
        return Counter({status: len(spent) for status, spent in self.seconds.items()})


def run_clients(
    port: int, texts: list[str], *, clients: int, seconds: float, beam: int
) -> tuple[Load, float]:
    """Closed loop: each client asks again as soon as it is answered. (Load, wall seconds)."""
    load = Load()
    started = time.perf_counter()
    until = started + seconds

    def client(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        number = first
        while time.perf_counter() < until:
            body = json.dumps({"text": texts[number % len(texts)], "beam_size": beam})
            begun = time.perf_counter()
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            load.add(response.status, time.perf_counter() - begun)
            number += clients
        connection.close()

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load, time.perf_counter() - started


def start(bundle: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "dragoman.cli", "serve", str(bundle), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline().rsplit(":", 1)[1])


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1000


def processor_s(pid: int) -> float:
    """What a process has used so far, which other load on the machine does not change much."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def offline(bundle: Path, texts: list[str], beam: int, seconds: float) -> tuple[float, float]:
    """(Sentences a second, processor seconds of one), all at once, as often as fits."""
    opened = Bundle.open(bundle)
    translator = translator_of(opened, threads=None)
    search = opened.recipe.search.model_copy(update={"beam_size": beam})
    translator.translate(texts[:100], search, layout="document")
    started, used_s, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        translator.translate(texts, search, layout="document")
        done += len(texts)
    used_s = time.process_time() - used_s
    return done / (time.perf_counter() - started), used_s / done


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    shared = os.environ.get("DRAGOMAN_SHARED", REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=shared, help="folder that holds multi30k/")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--soak", type=float, default=0, help="minutes of load, memory watched")
    return parser.parse_args()


def main() -> None:
    arguments = _options()
    texts = read_lines(arguments.data / "multi30k/test2016.en")
    process, port = start(arguments.bundle)
    try:
        run_clients(port, texts, clients=8, seconds=2, beam=arguments.beam)
        ratios = []
        for _ in range(arguments.rounds):
            alone, alone_s = offline(arguments.bundle, texts, arguments.beam, arguments.seconds)
            before_s = processor_s(process.pid)
            load, wall_s = run_clients(
                port, texts, clients=arguments.clients, seconds=arguments.seconds,
                beam=arguments.beam,
            )  # fmt: skip
            answered = load.seconds.get(200, [0.0])
            rate = len(answered) / wall_s
            ratios.append(rate / alone)
            each_s = (processor_s(process.pid) - before_s) / len(answered)
            print(
                f"offline {alone:7.1f}/s   {arguments.clients} clients {rate:7.1f}/s"
                f" ({ratios[-1]:.0%})   p50 {percentile(answered, 0.5) * 1e3:.0f} ms"
                f"   p95 {percentile(answered, 0.95) * 1e3:.0f} ms   {dict(load.counts())}"
                f"   {memory_mb(process.pid):.0f} MB   processor a sentence: offline "
                f"{alone_s * 1e3:.2f} ms, server {each_s * 1e3:.2f} ms ({alone_s / each_s:.0%})",
                flush=True,
            )
        print(f"median share of the offline rate: {statistics.median(ratios):.0%}")
        until = time.monotonic() + 60 * arguments.soak
        while time.monotonic() < until:
            run_clients(port, texts, clients=32, seconds=20, beam=arguments.beam)
            print(f"soak: {memory_mb(process.pid):.0f} MB", flush=True)
    finally:
        process.terminate()
        print(f"exit code after SIGTERM: {process.wait()}")
    process, port = start(arguments.bundle, "--queue", "300")
    try:
        run_clients(port, texts, clients=4, seconds=2, beam=arguments.beam)
        before = memory_mb(process.pid)
        load, _ = run_clients(
            port, texts, clients=10 * 30, seconds=arguments.seconds, beam=arguments.beam
        )
        refused = load.seconds.get(503, []) + load.seconds.get(429, [])
        print(
            f"overload, 300 clients on a queue of 300 pieces: {dict(load.counts())}; refused in "
            f"p50 {percentile(refused or [0], 0.5) * 1e3:.0f} ms, "
            f"p95 {percentile(refused or [0], 0.95) * 1e3:.0f} ms; "
            f"memory {before:.0f} -> {memory_mb(process.pid):.0f} MB"
        )
        load, _ = run_clients(port, texts, clients=2, seconds=2, beam=arguments.beam)
        print(f"after it: {dict(load.counts())}")
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
