"""The store of several hosts, as a process: `python -m dragoman.distributed.store`.

The first line of its standard input is ADDRESS PORT, with port 0 for any free one. It prints the
port it listens on and ends when its input ends. PyTorch's own servers listen on every interface of
the machine; this one listens only on the address it is given.
"""

from __future__ import annotations

import socket
import sys

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from dragoman.distributed.rendezvous import StoreAddress


def serve(address: str, *, port: int = 0) -> TCPStore:
    """A store that listens on this address alone, as long as it is referenced.

    port: 0 chooses a free one. Raises OSError if it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    port = listener.getsockname()[1]
    return TCPStore(address, port, is_master=True, master_listen_fd=listener.detach())


def connect(where: StoreAddress, *, prefix: str) -> Store:
    """The part of the run's store whose keys have this prefix."""
    return PrefixStore(f"{where.token}/{prefix}", TCPStore(where.address, where.port))


def main() -> None:
    """Serve until standard input is closed."""
    address, port = sys.stdin.readline().split()
    store = serve(address, port=int(port))
    print(store.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
