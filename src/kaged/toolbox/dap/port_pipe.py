"""Standard streams joined to a port that speaks DAP; started as a script, in a cage or not.

    python3 -I -S port_pipe.py HOST PORT

A program under `debugpy --listen` has an adapter of its own behind that port. To put a second one
in front of it is of no use: that would wait for a program that never comes.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

_CHUNK = 65536
_CONNECT_S = 20.0


def main() -> None:
    """Carry bytes both ways until the port has closed."""
    host, port = sys.argv[1], int(sys.argv[2])
    try:
        link = socket.create_connection((host, port), timeout=_CONNECT_S)
    except OSError as error:
        sys.exit(f"nothing answers at {host}:{port}: {error}")
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_send, args=(link,), daemon=True).start()
    while data := link.recv(_CHUNK):
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def _send(link: socket.socket) -> None:
    while data := os.read(0, _CHUNK):
        link.sendall(data)
    link.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
