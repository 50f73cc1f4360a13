"""A preparation that is stopped at any moment goes on, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dragoman.base.errors import MachineError
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.manifest import Manifest
from dragoman.corpus.prepare import prepare
from parallel_text import sentences, small_corpus, write_pairs

PREPARE = """
import sys
from pathlib import Path
from dragoman.corpus.config import CorpusConfig
from dragoman.corpus.prepare import prepare

if __name__ == "__main__":
    config = CorpusConfig.model_validate_json(sys.argv[1])
    prepare(config, Path(sys.argv[2]), workers=int(sys.argv[3]))
"""
MOMENTS = [
    "plan",
    "runs/000000.txt",
    "runs/000001.json",
    "clean.json",
    "result/source.model",
    "parts/000000.json",
    "encode.json",
    "result/manifest.json",
    "retired.json",
]


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


def names(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*")}


def start(
    folder: Path, config: CorpusConfig, directory: Path, workers: int
) -> subprocess.Popen[bytes]:
    (folder / "prepare.py").write_text(PREPARE)
    command = [sys.executable, str(folder / "prepare.py"), config.model_dump_json()]
    return subprocess.Popen([*command, str(directory), str(workers)])


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_costs_nothing_but_time(tmp_path: Path, moment: str) -> None:
    config = small_corpus(tmp_path, train=(write_pairs(tmp_path, "big", sentences(40_000)),))
    whole = prepare(config, tmp_path / "whole", workers=1)
    awaited = tmp_path / "killed/.unfinished" / moment
    process = start(tmp_path, config, tmp_path / "killed", workers=2)
    while process.poll() is None and not awaited.exists():
        time.sleep(0.001)
    process.kill()
    process.wait()
    time.sleep(0.5)  # the workers see the end of their parent
    assert prepare(config, tmp_path / "killed", workers=1) == whole
    assert names(tmp_path / "killed") == names(tmp_path / "whole")


@pytest.mark.system
@pytest.mark.parametrize("entries", [1, 5])
def test_stopping_after_any_file_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """The runs of five entries are merged in three levels, which changes nothing."""
    train = tuple(
        write_pairs(tmp_path, f"part-{number}", sentences(300 // entries, seed=number))
        for number in range(entries)
    )
    config = small_corpus(tmp_path, train=train)
    whole = prepare(config, tmp_path / "whole", workers=1)
    monkeypatch.setattr("dragoman.corpus.prepare.MOST_RUNS", 2)
    replace = Path.replace
    done = False
    stop_after = 0
    while not done:
        stop_after += 1
        left = stop_after

        def replace_and_stop(path: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            result = replace(path, target)
            if left == 0:
                raise Stopped
            return result

        directory = tmp_path / f"stopped-{stop_after}"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace_and_stop)
            try:
                prepare(config, directory, workers=1)
                done = True
            except Stopped:
                pass
        assert prepare(config, directory, workers=1) == whole
        assert names(directory) == names(tmp_path / "whole")
    assert stop_after > 20


def test_the_old_corpus_stays_if_a_new_one_fails(tmp_path: Path) -> None:
    first = prepare(small_corpus(tmp_path), tmp_path / "out", workers=1)
    with pytest.raises(Exception, match="vocab_size"):
        prepare(small_corpus(tmp_path, subword={"vocab_size": 90_000}), tmp_path / "out", workers=1)
    assert Manifest.load(tmp_path / "out") == first
    assert prepare(small_corpus(tmp_path), tmp_path / "out", workers=1) == first
    assert not (tmp_path / "out/.unfinished").exists()


def test_work_on_other_text_is_not_taken_up(tmp_path: Path) -> None:
    config = small_corpus(tmp_path, subword={"vocab_size": 90_000})
    with pytest.raises(Exception, match="vocab_size"):
        prepare(config, tmp_path / "out", workers=1)
    write_pairs(tmp_path, "train", sentences(600, seed=9))
    good = small_corpus(tmp_path, train=config.train)
    assert prepare(good, tmp_path / "out", workers=1).digest == (
        prepare(good, tmp_path / "fresh", workers=1).digest
    )


def test_work_with_another_models_vocabulary_is_not_taken_up(tmp_path: Path) -> None:
    config = small_corpus(tmp_path)
    kept: list[tuple[bytes, bytes]] = []
    for size in (100, 110):
        learnt = tmp_path / str(size)
        prepare(small_corpus(tmp_path, subword={"vocab_size": size}), learnt, workers=1)
        kept.append(
            ((learnt / "source.model").read_bytes(), (learnt / "target.model").read_bytes())
        )

    def stop(stage: str, pairs: int, _total: int | None) -> None:
        if stage == "encode" and pairs:
            raise Stopped

    with pytest.raises(Stopped):
        prepare(config, tmp_path / "out", workers=1, progress=stop, vocabulary=kept[0])
    assert (tmp_path / "out/.unfinished/parts/000000.json").exists()
    found = prepare(config, tmp_path / "out", workers=1, vocabulary=kept[1])
    fresh = prepare(config, tmp_path / "fresh", workers=1, vocabulary=kept[1])
    assert found.digest == fresh.digest


@pytest.mark.system
def test_two_at_once_are_refused(tmp_path: Path) -> None:
    config = small_corpus(tmp_path)
    process = start(tmp_path, config, tmp_path / "out", workers=2)
    while not (tmp_path / "out/.unfinished").exists():
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(MachineError, match="another process prepares a corpus here"):
        prepare(config, tmp_path / "out", workers=1)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0


@pytest.mark.system
@pytest.mark.parametrize("limit", [500, 2_000, 20_000])
def test_a_full_disk_is_one_line_and_leaves_no_torn_file(tmp_path: Path, limit: int) -> None:
    config = small_corpus(tmp_path)
    script = PREPARE.replace(
        "    config =",
        "    import resource, signal\n"
        "    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "    config =",
    )
    command = [sys.executable, "-c", script, config.model_dump_json(), str(tmp_path / "out"), "1"]
    run = subprocess.run(command, capture_output=True, text=True)
    last_line = run.stderr.strip().splitlines()[-1]
    assert last_line.startswith("dragoman.base.errors.MachineError: ")
    assert "the disk is full or a quota is reached; free space there" in last_line
    assert not [name for name in names(tmp_path / "out") if name.endswith(".tmp")]
    assert not (tmp_path / "out/manifest.json").exists()
    assert prepare(config, tmp_path / "out", workers=1) == prepare(
        config, tmp_path / "whole", workers=1
    )


def test_a_read_only_directory_is_one_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("read-only")
    config = small_corpus(folder)
    for parent in [folder, *list(folder.parents)[:2]]:
        parent.chmod(0o755)
    is_root = os.geteuid() == 0
    folder.chmod(0o555)
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(MachineError, match=r"out: permission denied; choose a directory"):
            prepare(config, folder / "out", workers=1)
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)
    assert not (folder / "out").exists()
