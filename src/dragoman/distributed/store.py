"""The store of several hosts, as a process: `python -m dragoman.distributed.store LISTENER`.

LISTENER is the number of a listening socket that the process inherits, so that peers may connect
before PyTorch has been imported. The process ends when its standard input ends. PyTorch's own
servers listen on every interface of the machine; this one listens only on the address it is given.
"""

from __future__ import annotations

import socket
import sys

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from dragoman.distributed.rendezvous import StoreAddress, listen


def serve(address: str, *, port: int = 0) -> TCPStore:
    """A store that listens on this address alone, as long as it is referenced.

    port: 0 chooses a free one. Raises OSError if it cannot listen there.
    """
    return _served(listen(address, port))


def _served(listener: socket.socket) -> TCPStore:
    address, port = listener.getsockname()[:2]
    return TCPStore(address, port, is_master=True, master_listen_fd=listener.detach())


def connect(where: StoreAddress, *, prefix: str) -> Store:
    """The part of the run's store whose keys have this prefix."""
    return PrefixStore(f"{where.token}/{prefix}", TCPStore(where.address, where.port))


def main() -> None:
    """Serve until standard input is closed."""
    _store = _served(socket.socket(fileno=int(sys.argv[1])))  # open as long as it is referenced
    sys.stdin.read()


if __name__ == "__main__":
    main()
