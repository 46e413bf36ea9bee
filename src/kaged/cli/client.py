"""`DaemonClient`: the CLI's side of the HTTP interface, over the Unix socket or to a URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any, Self

import httpx

from kaged.base import KagedError
from kaged.cli.remote import RemoteDaemon, trusted

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
        # The socket carries plain HTTP: trust no certificate instead of loading all of them.
        transport = (
            httpx.HTTPTransport(uds=str(socket), verify=SSLContext(PROTOCOL_TLS_CLIENT))
            if remote is None
            else httpx.HTTPTransport(verify=trusted())
        )
        self._http = httpx.Client(
            transport=transport,
            base_url="http://kaged/api/v1" if remote is None else f"{remote.url}/api/v1",
            auth=remote,
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

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
        return self._ask("GET", path, params=params)

    def post(self, path: str, body: Any = None) -> Any:
        """Send a POST request."""
        return self._ask("POST", path, json=body)

    def put(self, path: str, body: Any) -> Any:
        """Send a PUT request."""
        return self._ask("PUT", path, json=body)

    def patch(self, path: str, body: Any) -> Any:
        """Send a PATCH request."""
        return self._ask("PATCH", path, json=body)

    def delete(self, path: str) -> Any:
        """Send a DELETE request."""
        return self._ask("DELETE", path)

    def upload(self, path: str, data: bytes) -> Any:
        """Send JSON lines unchanged."""
        return self._ask("POST", path, content=data)

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
        query = _without_none({"params": dict(params or {})})
        try:
            with self._http.stream("GET", self.base + path, **query) as response:
                if not response.is_success:
                    response.read()
                    _read(response)
                yield from response.iter_bytes()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def alive(self) -> bool:
        """Return whether a daemon answers, without starting one."""
        try:
            self._http.get("/status")
        except httpx.TransportError:
            return False
        return True

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        try:
            response = self._http.request(method, self.base + path, **_without_none(options))
        except httpx.ConnectError as error:
            if self._start is None:
                raise self._unreachable(error) from error
            start, self._start = self._start, None
            start()
            return self._ask(method, path, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        return _read(response)

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


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    params = options.get("params")
    if params is not None:
        options["params"] = {name: value for name, value in params.items() if value is not None}
    return {name: value for name, value in options.items() if value is not None}


def _read(response: httpx.Response) -> Any:
    if len(response.content) > MAX_ANSWER_BYTES:
        raise KagedError(
            f"The answer has more than {MAX_ANSWER_BYTES} bytes.", code="daemon_unreachable"
        )
    if response.status_code == 204:
        return None
    try:
        body = response.json()
    except ValueError as error:
        raise KagedError(
            "The program that listens on the socket is not a kaged daemon.",
            code="daemon_unreachable",
            fix="Stop that program, or set KAGED_HOME to another folder.",
        ) from error
    if response.is_success:
        return body
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        raise DaemonRefused(body)
    raise KagedError(
        "The program that listens on the socket is not a kaged daemon.", code="daemon_unreachable"
    )
