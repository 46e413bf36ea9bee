"""`DaemonClient`: the CLI's side of the HTTP interface, over the Unix socket or to a URL."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote, urlencode

from kaged.base import KagedError
from kaged.cli.unix_http import NotConnected, UnixHttp

if TYPE_CHECKING:
    from kaged.cli.remote import RemoteDaemon, RemoteHttp

PREFIX: Final = "/api/v1"
KEPT_IN_PATHS: Final = "/?&=%:@!$'()*+,;~"
"""What stays as it is in a path, which may have a query; anything else is written as `%XX`."""
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 150.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
PAGE_LIMIT = 200


class DaemonRefused(Exception):
    """The daemon answered with an error; `body` holds it in the one shape."""

    def __init__(self, body: dict[str, Any]) -> None:
        detail = body["error"]
        super().__init__(str(detail["message"]))
        self.body = body
        self.code = str(detail["code"])
        self.message = str(detail["message"])
        data = detail.get("data")
        fix = data.get("fix") if isinstance(data, dict) else None
        self.fix = str(fix) if fix else None


class DaemonClient:
    """Sends requests to one daemon. `start` is called once when none answers, to start one."""

    def __init__(
        self,
        socket: Path,
        *,
        start: Callable[[], object] | None = None,
        remote: RemoteDaemon | None = None,
    ) -> None:
        self._socket = socket
        self._start = start
        self._remote = remote
        self.base = ""
        limits = {"connect_timeout_s": CONNECT_TIMEOUT_S, "answer_timeout_s": ANSWER_TIMEOUT_S}
        if remote is None:
            self._http: UnixHttp | RemoteHttp = UnixHttp(socket, **limits)
        else:
            # A general client, which only commands for daemons elsewhere load.
            from kaged.cli.remote import RemoteHttp

            self._http = RemoteHttp(remote, **limits)

    def another(self) -> Self:
        """Return a client of the same daemon with a connection of its own, for another thread."""
        other = type(self)(self._socket, remote=self._remote)
        other.base = self.base
        return other

    def below(self, base: str) -> Self:
        """Return this client with all paths below `base`."""
        inner = copy(self)
        inner.base = base
        return inner

    def __enter__(self) -> Self:
        """Use the client for a block of code."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection."""
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send a GET request."""
        return self._ask("GET", _with_query(path, params))

    def post(self, path: str, body: Any = None) -> Any:
        """Send a POST request."""
        return self._ask("POST", path, _json(body))

    def put(self, path: str, body: Any) -> Any:
        """Send a PUT request."""
        return self._ask("PUT", path, _json(body))

    def patch(self, path: str, body: Any) -> Any:
        """Send a PATCH request."""
        return self._ask("PATCH", path, _json(body))

    def delete(self, path: str) -> Any:
        """Send a DELETE request."""
        return self._ask("DELETE", path)

    def upload(self, path: str, data: bytes) -> Any:
        """Send JSON lines unchanged."""
        return self._ask("POST", path, data, content_type=None)

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[Any]:
        """Yield all items of a paged list."""
        query: dict[str, Any] = {"limit": PAGE_LIMIT, **(params or {})}
        while True:
            page = self.get(path, query)
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            query["cursor"] = page["next_cursor"]

    def stream(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Send a GET request and yield the answer piece by piece."""
        try:
            status, pieces = self._send("GET", _with_query(path, params))
            with closing(pieces):
                if not _is_success(status):
                    _read(status, pieces)
                yield from pieces
        except OSError as error:
            raise self._unreachable(error) from error

    def alive(self) -> bool:
        """Return whether a daemon answers, without starting one."""
        try:
            _, pieces = self._http.request("GET", f"{PREFIX}/status")
            for _ in pieces:
                pass
        except OSError:
            return False
        return True

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str | None = "application/json",
    ) -> Any:
        try:
            status, pieces = self._send(method, path, body, content_type if body else None)
            with closing(pieces):
                return _read(status, pieces)
        except NotConnected as error:
            if self._start is None:
                raise self._unreachable(error) from error
            start, self._start = self._start, None
            start()
            return self._ask(method, path, body, content_type)
        except OSError as error:
            raise self._unreachable(error) from error

    def _send(
        self, method: str, path: str, body: bytes = b"", content_type: str | None = None
    ) -> tuple[int, Generator[bytes]]:
        # Names that people give become part of paths; none of them can end the line.
        target = quote(PREFIX + self.base + path, safe=KEPT_IN_PATHS)
        return self._http.request(method, target, body, content_type)

    def _unreachable(self, error: Exception) -> KagedError:
        if self._remote is not None:
            return KagedError(
                f"No daemon answers at {self._remote.url}: {error}.",
                code="daemon_unreachable",
                fix="Check the URL and the network.",
            )
        return KagedError(
            f"No daemon answers on {self._socket}: {error}.",
            code="daemon_unreachable",
            fix="Start one with `kaged daemon start`. If that fails, run `kaged doctor`.",
            socket=str(self._socket),
        )


def _with_query(path: str, params: Mapping[str, Any] | None) -> str:
    """Return a path with its query; what is None is left out."""
    given = {name: value for name, value in (params or {}).items() if value is not None}
    if not given:
        return path
    texts = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in given.items()
    }
    return f"{path}?{urlencode(texts, doseq=True)}"


def _json(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body, allow_nan=False).encode("ascii")


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _read(status: int, pieces: Iterable[bytes]) -> Any:
    raw = bytearray()
    for piece in pieces:
        raw += piece
        if len(raw) > MAX_ANSWER_BYTES:
            raise KagedError(
                f"The answer has more than {MAX_ANSWER_BYTES} bytes.", code="daemon_unreachable"
            )
    if status == 204:
        return None
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise KagedError(
            "The program that listens on the socket is not a kaged daemon.",
            code="daemon_unreachable",
            fix="Stop that program, or set KAGED_HOME to another folder.",
        ) from error
    if _is_success(status):
        return body
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        raise DaemonRefused(body)
    raise KagedError(
        "The program that listens on the socket is not a kaged daemon.", code="daemon_unreachable"
    )
