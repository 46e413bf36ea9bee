"""Where the daemon listens: a 0600 Unix socket and a TCP address, served by one uvicorn server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Generator, Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from kaged.base import KagedError
from kaged.config.coresections import AuthMode
from kaged.serve.http.access import is_loopback
from kaged.serve.http.connection import (
    CountedConnections,
    KagedHttpProtocol,
    KagedWebSocketProtocol,
)

BACKLOG = 128
PORTS_TRIED = 32
KEEP_ALIVE_S = 15
GRACE_S = 5
WS_MAX_MESSAGE_BYTES = 64 * 1024
WS_PING_S = 20.0
MAX_UNIX_PATH_BYTES = 107  # sun_path has 108 bytes, the last of them a zero

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # compared with, not bound to


class PortInUse(KagedError):
    """Another program listens on the configured port."""

    code = "port_in_use"


def bind_unix(path: Path) -> socket.socket:
    """Listen on a Unix socket that only its owner can open.

    Call it while holding the instance lock: a socket file found in the way is then a leftover and
    is replaced. Anything else in the way is left alone.

    Raises:
        KagedError: `bind_failed`; the path is too long, taken by something else, or not writable.
    """
    if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        raise KagedError(
            f"The socket path {path} is longer than {MAX_UNIX_PATH_BYTES} bytes.",
            code="bind_failed",
            fix="Choose a shorter KAGED_HOME or XDG_RUNTIME_DIR.",
            address=str(path),
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise KagedError(
                    f"{path} exists and is not a socket.",
                    code="bind_failed",
                    fix=f"Move {path} away and start again.",
                    address=str(path),
                )
            path.unlink()
        # On Linux the mode set before bind is the mode the file is created with: there is no
        # moment in which others could connect.
        os.fchmod(sock.fileno(), 0o600)
        sock.bind(os.fsencode(path))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise KagedError(
            f"Cannot listen on {path}: {error.strerror}.",
            code="bind_failed",
            fix=f"Make {path.parent} writable for the user who runs the daemon.",
            address=str(path),
        ) from error
    except BaseException:
        sock.close()
        raise
    return sock


def bind_tcp(host: str, port: int, mode: AuthMode) -> socket.socket:
    """Listen on a TCP address; port 0 lets the system choose.

    Raises:
        KagedError: `insecure_bind_refused`; insecure mode beyond loopback.
        PortInUse: somebody else is there.
        KagedError: `bind_failed`; any other reason.
    """
    if mode is AuthMode.INSECURE and not is_loopback(host):
        raise KagedError(
            f"Insecure mode does not listen on {host}: anyone who reaches it could use it.",
            code="insecure_bind_refused",
            fix='Set [auth] mode = "secure", or bind to 127.0.0.1.',
            address=host,
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host.strip("[]"), port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"Another program listens on {host}:{port}.",
                fix="Stop it, or set another port in [daemon] bind.",
                address=f"{host}:{port}",
            ) from error
        raise KagedError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}.",
            code="bind_failed",
            fix="Set an address of this machine and a free port in [daemon] bind.",
            address=f"{host}:{port}",
        ) from error
    return sock


def bind_tcp_near(
    host: str, port: int, mode: AuthMode, tries: int = PORTS_TRIED
) -> socket.socket | None:
    """Listen on the first free port from this one on; return None when all of them are taken.

    For an address that nobody chose: a second user of the machine, or a second home, has its own
    daemon beside the first one, and the command line finds it by its Unix socket.

    Raises:
        KagedError: `insecure_bind_refused`; insecure mode beyond loopback.
        KagedError: `bind_failed`; any other reason than a taken port.
    """
    for candidate in range(port, port + tries):
        with contextlib.suppress(PortInUse):
            return bind_tcp(host, candidate, mode)
    return None


class HttpServer(uvicorn.Server):
    """uvicorn on sockets of ours, with signals left to the daemon."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=KagedHttpProtocol,
                ws=KagedWebSocketProtocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
                ws_max_size=WS_MAX_MESSAGE_BYTES,
                ws_ping_interval=WS_PING_S,
                ws_ping_timeout=WS_PING_S,
                ws_per_message_deflate=False,
            )
        )
        self.server_state = CountedConnections()
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, then set `listening`."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals alone; the daemon decides what they mean."""
        yield

    def stop(self) -> None:
        """Stop accepting and end what runs, within the grace time."""
        self.should_exit = True


def addresses(sockets: Sequence[socket.socket]) -> tuple[str | None, str | None]:
    """Return the Unix path and the TCP base URL of bound sockets, None where there is none."""
    unix: str | None = None
    url: str | None = None
    for sock in sockets:
        name = sock.getsockname()
        if sock.family == socket.AF_UNIX:
            unix = os.fsdecode(name)
        else:
            host, port = name[0], name[1]
            # An address that means "all of them" is no address for a browser.
            shown = str(_EVERYWHERE.get(host, host))
            url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
    return unix, url
