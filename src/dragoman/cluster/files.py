"""Copies directories between this machine and hosts: code, prepared data, a run, a checkpoint.

rsync copies over ssh, and continues a copy that broke off. A stream of tar does it if either side
has no rsync, or if the host's login shell prints something, which rsync would take for its own.

A directory's name on the host says what it holds (a digest, a run, a step). It is copied to a draft
beside it, which gets the name when it is whole. A directory that exists already is not sent again,
even if another host wrote it into a shared folder.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from dragoman.base import units
from dragoman.base.errors import MachineError
from dragoman.base.files import unpack_tar
from dragoman.cluster import ssh
from dragoman.cluster.hosts import Host

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_NOT_CODE: Final = ("__pycache__", "shipped")
"""Shipped recipes do not run on a host, so they are not sent: a run carries its own recipe."""
_HAVE: Final = "have"
_HAS_RSYNC: Final = "command -v rsync || echo no"
_PREPARE: Final = f'if test -d "$1"; then echo {_HAVE}; else mkdir -p "$2" && {_HAS_RSYNC}; fi'
_PUBLISH: Final = 'mv -T "$2" "$1" || { rm -rf "$2"; test -d "$1"; }'
"""Another host that shares the folder may have been first."""
_FIND: Final = 'if test -d "$1"; then cd "$1" && find . -name "$2"; fi'
_DIGEST: Final = 'if cd "$1" 2>/dev/null; then sha256sum -- * || true; fi'
_DISCARD: Final = 'if test -d "$1"; then mv -T "$1" "$2" && rm -rf "$2"; fi'
_SILENT: Final = 30
"""The exit code of rsync if nothing has passed for the time of `--timeout`."""
# In place: without it, rsync discards what has come of a file if its connection is cut.
_OPTIONS: Final = ("--recursive", "--times", "--copy-links", "--inplace", "--delete")

Content = Path | bytes


def send(host: Host, place: str, files: Mapping[str, Content]) -> bool:
    """Copy files to a directory below the host's folder; False if it was there.

    place: the directory. files: their contents, by their paths below it. Raises MachineError.
    """
    target, draft = f"{host.folder}/{place}", _draft(host, place)
    answer = ssh.run(host, _shell(_PREPARE, target, draft)).strip()
    if answer == _HAVE:
        return False
    with staged(files) as folder:
        if _takes_rsync(host, answer):
            _rsync(host, _send_words(host, str(folder), draft), receiver=host.name)
        else:
            with (
                _tar_there(host, "-xf", draft) as stream,
                tarfile.open(fileobj=stream, mode="w|", dereference=True) as archive,  # type: ignore[call-overload]
            ):
                archive.add(folder, arcname=".")
    ssh.run(host, _shell(_PUBLISH, target, draft))
    return True


def fetch(host: Host, place: str, directory: Path) -> None:
    """Copy the files of a directory below the host's folder into a directory here.

    Files that are there already, also in part, are not copied again. Raises MachineError.
    """
    source = f"{host.folder}/{place}"
    if _takes_rsync(host, ssh.run(host, _shell(_HAS_RSYNC)).strip()):
        words = [*_OPTIONS, f"{_remote(host, source)}/", f"{directory.resolve()}/"]
        _rsync(host, words, receiver=str(directory))
        return
    with _tar_there(host, "-cf", source) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                unpack_tar(archive, directory)
        except tarfile.ReadError as error:
            raise EOFError(f"{place} did not arrive whole") from error


def directories_with(host: Host, place: str, name: str) -> list[str]:
    """The directories below one of the host's folder that have a file of this name, by their paths
    below it. Raises MachineError."""
    found = ssh.run(host, _shell(_FIND, f"{host.folder}/{place}", name)).splitlines()
    return sorted(str(PurePosixPath(path).parent) for path in found)


def discard_unless(host: Host, place: str, digests: Mapping[str, str]) -> None:
    """Remove a directory below the host's folder unless it has just these files.

    digests: the sha256 of each file, by its name. Raises MachineError.
    """
    target = PurePosixPath(host.folder, place)
    lines = ssh.run(host, _shell(_DIGEST, str(target))).splitlines()
    if {name: digest for digest, name in (line.split("  ", 1) for line in lines)} != digests:
        doomed = target.with_name(f".{target.name}.doomed")
        ssh.run(host, _shell(_DISCARD, str(target), str(doomed)))


def send_commands(host: Host, place: str) -> list[list[str]]:
    """The commands by which `send` copies the files below ./PLACE, for --dry-run."""
    target, draft = f"{host.folder}/{place}", _draft(host, place)
    return [
        ssh.ssh_command(host, _shell(_PREPARE, target, draft)),
        ssh.rsync_command(host, _send_words(host, f"./{place}", draft)),
        ssh.ssh_command(host, _shell(_PUBLISH, target, draft)),
    ]


def _send_words(host: Host, folder: str, draft: str) -> list[str]:
    """The words of rsync that copy a folder of this machine to a directory of the host."""
    return [*_OPTIONS, f"{folder}/", f"{_remote(host, draft)}/"]


def size_bytes(files: Mapping[str, Content]) -> int:
    """Bytes of all files together."""
    return sum(
        len(content) if isinstance(content, bytes) else content.stat().st_size
        for content in files.values()
    )


def files_below(directory: Path) -> dict[str, Path]:
    """All files below a directory, by their paths below it."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path for path in found}


@contextmanager
def staged(files: Mapping[str, Content]) -> Iterator[Path]:
    """Inside the block a folder holds these files, or links to them."""
    with tempfile.TemporaryDirectory(prefix="dragoman-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.symlink_to(content.resolve())
        yield Path(folder)


def read_code(package: Path = _PACKAGE) -> dict[str, bytes]:
    """The present contents of the package's files, by their sorted paths below it."""
    return {
        name: path.read_bytes()
        for name, path in files_below(package).items()
        if not any(part in _NOT_CODE for part in Path(name).parts)
    }


def code_digest(code: Mapping[str, bytes]) -> str:
    """sha256 of the names and contents of code, in hexadecimal digits."""
    whole = hashlib.sha256()
    for name, content in code.items():
        whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def code_place(digest: str) -> str:
    """The path, relative to a host's folder, of the code with this digest."""
    return f"code/{digest[:16]}"


def send_code(host: Host, code: Mapping[str, bytes]) -> bool:
    """Copy code to a host; False if it was there. Raises MachineError."""
    files = {f"dragoman/{name}": content for name, content in code.items()}
    return send(host, code_place(code_digest(code)), files)


def _draft(host: Host, place: str) -> str:
    """The draft of a directory; its name is the host's, as hosts may share the folder."""
    path = Path(host.folder, place)
    return str(path.with_name(f".{path.name}.{host.name}.draft"))


def _shell(script: str, *words: str) -> list[str]:
    return ["sh", "-c", script, "sh", *words]


def _remote(host: Host, path: str) -> str:
    name = host.login or host.address
    return f"[{name}]:{path}" if ":" in name else f"{name}:{path}"


def _takes_rsync(host: Host, answer: str) -> bool:
    return answer != "no" and not ssh.greets(host) and shutil.which("rsync") is not None


def _rsync(host: Host, words: Sequence[str], *, receiver: str) -> None:
    """Run rsync. Raises MachineError. receiver: the place of an error in writing the copy."""
    command = ssh.rsync_command(host, words, socket=ssh.shared_socket(host))
    with (
        tempfile.TemporaryFile() as errors,
        ssh.start_here(host, command, stderr=errors.fileno()) as process,
    ):
        try:
            exit_code = process.wait()
        finally:
            ssh.end(process)  # with its ssh, which would wait for a host that stands still
        message = ssh.read_errors(errors).decode(errors="replace")
    if exit_code == _SILENT:
        raise _silent(host)
    if exit_code:
        ssh.run(host, ["true"])  # if the host is lost, this says so
        # The first line of rsync names the file; the last one is about rsync itself.
        lines = [line for line in message.splitlines() if line.startswith("rsync: ")]
        reason = lines[0].removeprefix("rsync: ") if lines else message.strip()
        raise MachineError(
            f"a copy failed: {reason}",
            place=receiver if reason.startswith("[receiver]") else host.name,
            remedy="see the disk that it names",
        )


@contextmanager
def _tar_there(host: Host, action: str, folder: str) -> Iterator[_Stream]:
    """tar on the host, which packs (-cf) or unpacks (-xf) a folder from a stream."""
    command = ["tar", "-C", folder, action, "-", *(["."] if action == "-cf" else [])]
    with ssh.running(host, command, limit_s=host.silence_s, slow=_silent(host)) as running:
        yield _Stream(*running)


class _Stream:
    """The input and output of a program on a host, which is patient while something passes."""

    def __init__(self, process: subprocess.Popen[bytes], patience: ssh.Patience) -> None:
        self._process = process
        self._patience = patience

    def write(self, content: bytes) -> int:
        """Write all of this."""
        assert self._process.stdin is not None
        self._process.stdin.write(content)
        self._patience.passed()
        return len(content)

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end."""
        assert self._process.stdout is not None
        content = self._process.stdout.read(size)
        self._patience.passed()
        return content


def _silent(host: Host) -> MachineError:
    limit = units.DURATION.text(host.silence_s)
    return MachineError(f"{ssh.SILENT} for {limit}", place=host.name, remedy=ssh.SILENT_REMEDY)
