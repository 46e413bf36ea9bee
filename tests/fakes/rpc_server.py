"""A host that records what `ash-sb` asks and answers as a test says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

TOKEN = "header.payload.signature"
ASH_SB = Path(sys.executable).with_name("ash-sb")

Answer = dict[str, Any] | bytes | None
"""A result or `{"error": …}`; raw bytes to write; None closes the connection at once."""


class RecordingRpc:
    """Listens on a Unix socket or on loopback, in a thread of its own."""

    def __init__(
        self, answer: Callable[[str, dict[str, Any]], Answer], path: Path | None = None
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self._answer = answer
        self._path = path
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(path))
            self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def environ(self) -> dict[str, str]:
        """The address as the host puts it into a cage, and a token."""
        if self._path is not None:
            return {"ASH_RPC_SOCKET": str(self._path), "ASH_CONTEXT_TOKEN": TOKEN}
        host, port = self._listener.getsockname()
        return {"ASH_RPC_HOST": host, "ASH_RPC_PORT": str(port), "ASH_CONTEXT_TOKEN": TOKEN}

    @property
    def methods(self) -> list[str]:
        return [one["method"] for one in self.requests]

    def params(self, at: int = 0) -> dict[str, Any]:
        """Return what was asked, without the token."""
        params = dict(self.requests[at]["params"])
        params.pop("context_token")
        return params

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(timeout=20)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(OSError):
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while prefix := stream.read(4):
            request = json.loads(stream.read(int.from_bytes(prefix, "big")))
            self.requests.append(request)
            answer = self._answer(request["method"], request["params"])
            if answer is None:
                return
            if not isinstance(answer, bytes):
                member = answer if set(answer) == {"error"} else {"result": answer}
                body = json.dumps({"jsonrpc": "2.0", "id": request["id"], **member}).encode()
                answer = len(body).to_bytes(4, "big") + body
            connection.sendall(answer)


def capability_error(code: str, text: str) -> dict[str, Any]:
    """An error as the host sends it."""
    data = {"code": code, "retryable": False}
    return {"error": {"code": -32603, "message": f"{code}: {text}", "data": data}}


def run_ash(
    *arguments: str, environ: dict[str, str], stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the installed console script in an environment that holds nothing else."""
    return subprocess.run(
        [str(ASH_SB), *arguments],
        env={"PATH": os.defpath, **environ},
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
