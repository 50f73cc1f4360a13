"""The server under load, on loopback: throughput of many clients beside the offline rate.

The clients are wrk if it is installed, else threads of another Python process; each has one
connection and asks for another sentence of Multi30k test2016 as soon as it is answered. Offline is
`TextTranslator.translate` on all of them at once, in the same minute, with the same bundle and
beam.
Clients and server share the cores, so the clients' own cost is in the figure; that of wrk is small.
Then it starts ten times as many clients as fit in the queue, and prints the refusals, their speed,
and the memory before and after.

    python benchmarks/serve.py --bundle runs/.../export/ctranslate2-float32 --beam 5

With `--other`, the Python of another checkout, its server is measured beside ours instead. Both run
all the time, and the clients ask one after the other, in turns that change with each round: what
else the machine does is then in both, and an idle server takes next to nothing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dragoman.evaluation.validate import read_lines
from dragoman.formats.bundle import Bundle
from dragoman.inference.translator import translator_of

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Load:
    """The results of clients; refused: with 429 or 503, of which wrk cannot tell how quickly."""

    answered: int
    refused: int
    others: int
    errors: int
    wall_s: float
    p50_s: float
    p95_s: float
    refused_p50_s: float = 0.0
    refused_p95_s: float = 0.0

    def __str__(self) -> str:
        """For people."""
        return (
            f"{self.answered} answered, {self.refused} refused, {self.others} otherwise, "
            f"{self.errors} errors"
        )


def run_clients(
    port: int, texts: list[str], *, clients: int, seconds: float, beam: int, use_wrk: bool
) -> Load:
    """Closed loop: each client asks again as soon as it is answered."""
    bodies = [json.dumps({"text": text, "beam_size": beam}) for text in texts]
    if not use_wrk:
        with ProcessPoolExecutor(1) as process:  # not in the interpreter that measures offline
            return process.submit(run_threads, port, bodies, clients, seconds).result()
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("\n".join(bodies))
        file.flush()
        command = [
            "wrk",
            "-t1",
            f"-c{clients}",
            f"-d{max(1, round(seconds))}s",
            "--timeout",
            "120s",
        ]
        command += ["--latency", "-s", str(REPOSITORY / "benchmarks/serve_client.lua")]
        command += [f"http://127.0.0.1:{port}", "--", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = [line for line in said.split("\n") if line.startswith("JSON ")]
    return Load(**json.loads(line.removeprefix("JSON ")))


def run_threads(port: int, bodies: list[str], clients: int, seconds: float) -> Load:
    """The same without wrk."""
    spent: dict[int, list[float]] = {}
    lock = threading.Lock()
    started = time.perf_counter()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while not spent or time.perf_counter() < started + seconds:
            begun = time.perf_counter()
            body = bodies[number % len(bodies)]
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            with lock:
                spent.setdefault(response.status, []).append(time.perf_counter() - begun)
            number += clients
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answered = spent.pop(200, [])
    refused = spent.pop(503, []) + spent.pop(429, [])
    return Load(
        answered=len(answered),
        refused=len(refused),
        others=sum(map(len, spent.values())),
        errors=0,
        wall_s=time.perf_counter() - started,
        p50_s=percentile(answered, 0.5),
        p95_s=percentile(answered, 0.95),
        refused_p50_s=percentile(refused, 0.5),
        refused_p95_s=percentile(refused, 0.95),
    )


def until_answered_s(port: int, text: str) -> float:
    """Seconds until a request is no longer refused, and answered."""
    started = time.perf_counter()
    while run_threads(port, [json.dumps({"text": text})], clients=1, seconds=0).refused:
        time.sleep(0.05)
    return time.perf_counter() - started


def start(
    bundle: Path, *options: str, python: Path = Path(sys.executable)
) -> tuple[subprocess.Popen[str], int]:
    """A server, also of another checkout by its Python, and its port."""
    command = [str(python.with_name("dragoman")), "serve", str(bundle), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline().rsplit(":", 1)[1])


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1000


def processor_s(pid: int) -> float:
    """The processor time of a process so far, which other load does not change much."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def offline(bundle: Path, texts: list[str], beam: int, seconds: float) -> tuple[float, float]:
    """(Sentences a second, processor seconds of one), all at once, as often as fits."""
    opened = Bundle.open(bundle)
    translator = translator_of(opened, threads=None)
    search = opened.recipe.search.model_copy(update={"beam_size": beam})
    translator.translate(texts[:100], search, text_format="document")
    started, used_s, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        translator.translate(texts, search, text_format="document")
        done += len(texts)
    used_s = time.process_time() - used_s
    return done / (time.perf_counter() - started), used_s / done


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    shared = os.environ.get("DRAGOMAN_SHARED", REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=shared, help="folder that holds multi30k/")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--client", choices=["wrk", "python"], default="wrk" if shutil.which("wrk") else "python"
    )
    parser.add_argument("--text", type=Path, help="one sentence per line (default: test2016)")
    parser.add_argument("--other", type=Path, help="Python of another checkout")
    parser.add_argument(
        "--other-bundle", type=Path, help="the same model for it, if it cannot read --bundle"
    )
    parser.add_argument("--soak", type=float, default=0, help="minutes of load, memory watched")
    return parser.parse_args()


def main() -> None:
    arguments = _options()
    texts = read_lines(arguments.text or arguments.data / "multi30k/test2016.en")
    ask = partial(run_clients, texts=texts, beam=arguments.beam, use_wrk=arguments.client == "wrk")
    print(f"clients: {arguments.client}; {os.cpu_count()} cores")
    if arguments.other:
        compare(arguments.other, ask, arguments)
        return
    process, port = start(arguments.bundle)
    try:
        ask(port, clients=8, seconds=2)
        ratios = [
            measure(process.pid, port, texts, ask, arguments) for _ in range(arguments.rounds)
        ]
        print(f"median share of the offline rate: {statistics.median(ratios):.0%}")
        until = time.monotonic() + 60 * arguments.soak
        while time.monotonic() < until:
            ask(port, clients=32, seconds=20)
            print(f"soak: {memory_mb(process.pid):.0f} MB", flush=True)
    finally:
        process.terminate()
        print(f"exit code after SIGTERM: {process.wait()}")
    process, port = start(arguments.bundle, "--queue", "300")
    try:
        ask(port, clients=4, seconds=2)
        before = memory_mb(process.pid)
        with ThreadPoolExecutor(1) as beside:
            probe = beside.submit(ask, port, clients=1, seconds=arguments.seconds, use_wrk=False)
            load = ask(port, clients=10 * 30, seconds=arguments.seconds)
            one = probe.result()
        print(
            f"overload, 300 clients on a queue of 300 pieces: {load}; one client more was refused "
            f"{one.refused} times in p50 {one.refused_p50_s * 1e3:.0f} ms, "
            f"p95 {one.refused_p95_s * 1e3:.0f} ms; "
            f"memory {before:.0f} -> {memory_mb(process.pid):.0f} MB"
        )
        print(f"after it: the next answer came after {until_answered_s(port, texts[0]):.1f} s")
        print(f"two clients then: {ask(port, clients=2, seconds=2)}")
    finally:
        process.terminate()
        process.wait()


def compare(other: Path, ask: Callable[..., Load], arguments: argparse.Namespace) -> None:
    """Our server beside that of another checkout, by its Python; the first round warms up."""
    others = arguments.other_bundle or arguments.bundle
    servers = {"this": start(arguments.bundle), "other": start(others, python=other)}
    ratios: dict[str, list[float]] = {"rate": [], "p95": [], "processor a sentence": []}
    try:
        for number in range(1 + arguments.rounds):
            rate: dict[str, float] = {}
            p95_s: dict[str, float] = {}
            cost: dict[str, float] = {}
            for name in sorted(servers, reverse=number % 2 == 1):
                process, port = servers[name]
                before_s = processor_s(process.pid)
                load = ask(port, clients=arguments.clients, seconds=arguments.seconds)
                assert load.refused == load.others == load.errors == 0, load
                rate[name] = load.answered / load.wall_s
                p95_s[name] = load.p95_s
                cost[name] = (processor_s(process.pid) - before_s) / load.answered
            if number == 0:
                continue
            for what, values in zip(ratios, (rate, p95_s, cost), strict=True):
                ratios[what].append(values["this"] / values["other"])
            print(
                f"this {rate['this']:.1f}/s, other {rate['other']:.1f}/s; "
                f"p95 {p95_s['this'] * 1e3:.0f} and {p95_s['other'] * 1e3:.0f} ms; "
                f"processor a sentence {cost['this'] * 1e3:.2f} and {cost['other'] * 1e3:.2f} ms",
                flush=True,
            )
        memory = {name: round(memory_mb(process.pid)) for name, (process, _) in servers.items()}
    finally:
        for process, _ in servers.values():
            process.terminate()
            process.wait()
    for what, rounds in ratios.items():
        print(
            f"{what}, this / other: median {statistics.median(rounds):.3f} "
            f"({min(rounds):.3f} to {max(rounds):.3f})"
        )
    print(f"memory in MB: {memory}")


def measure(
    pid: int, port: int, texts: list[str], ask: Callable[..., Load], arguments: argparse.Namespace
) -> float:
    """One round, offline and through the server; returns the share of the offline rate."""
    alone, alone_s = offline(arguments.bundle, texts, arguments.beam, arguments.seconds)
    before_s = processor_s(pid)
    load = ask(port, clients=arguments.clients, seconds=arguments.seconds)
    rate = load.answered / load.wall_s
    each_s = (processor_s(pid) - before_s) / max(1, load.answered)
    print(
        f"offline {alone:7.1f}/s   {arguments.clients} clients {rate:7.1f}/s ({rate / alone:.0%})"
        f"   p50 {load.p50_s * 1e3:.0f} ms   p95 {load.p95_s * 1e3:.0f} ms   {load}"
        f"   {memory_mb(pid):.0f} MB   processor a sentence: offline {alone_s * 1e3:.2f} ms, "
        f"server {each_s * 1e3:.2f} ms ({alone_s / each_s:.0%})",
        flush=True,
    )
    return rate / alone


if __name__ == "__main__":
    main()
