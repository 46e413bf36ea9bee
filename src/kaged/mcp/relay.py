"""Runs inside a cage: MCP on standard input and output, to a server behind a URL.

Standard library only, and nothing of kaged: the file is put into the cage as it is. What it may
connect to is decided by the cage, not here. Each message is one POST of MCP's streamable HTTP
transport; answers come as JSON or as a stream of events.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import threading
from typing import Any, Final
from urllib.parse import urlsplit

TIMEOUT_S: Final = 3600.0
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
MAX_OPEN: Final = 32
FAILED: Final = -32000
AUTHORIZATION: Final = "MCP_AUTHORIZATION"
"""The variable that holds what goes into the Authorization header."""

HEADERS: Final = "kaged/headers"
"""The member of `_meta` with headers for the request of one message; it is not sent on."""


class McpRelay:
    """One session with one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers: dict[str, str] = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "User-Agent": "kaged",
        }
        if os.environ.get(AUTHORIZATION):
            self._headers["Authorization"] = os.environ[AUTHORIZATION]
        self._writing = threading.Lock()
        self._open = threading.BoundedSemaphore(MAX_OPEN)

    def run(self) -> None:
        """Relay until standard input ends."""
        for line in sys.stdin.buffer:
            if not line.strip():
                continue
            message = json.loads(line)
            if message.get("method") == "initialize":
                self._send(message, line)  # everything behind it needs the session it opens
                continue
            if message.get("method") == "notifications/initialized":
                self._send(message, line)
                threading.Thread(target=self._listen, daemon=True).start()
                continue
            self._open.acquire()
            threading.Thread(target=self._send_and_release, args=(message, line)).start()
        self._leave()

    def _send_and_release(self, message: dict[str, Any], line: bytes) -> None:
        try:
            self._send(message, line)
        finally:
            self._open.release()

    def _send(self, message: dict[str, Any], line: bytes) -> None:
        """Post one message and write what comes back; a failure is an answer, too."""
        line, headers = self._with_own_headers(message, line)
        connection = self._connect()
        try:
            connection.request("POST", self._path, line.strip(), headers)
            response = connection.getresponse()
            if response.status >= 300:
                why = f"HTTP {response.status} {response.reason}"
                self._fail(message, why)
                return
            session = response.getheader("Mcp-Session-Id")
            if session is not None:
                self._headers["Mcp-Session-Id"] = session
            self._write_all(response, message)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._fail(message, f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def _with_own_headers(
        self, message: dict[str, Any], line: bytes
    ) -> tuple[bytes, dict[str, str]]:
        meta = (message.get("params") or {}).get("_meta") or {}
        own = meta.pop(HEADERS, None)
        if not own:
            return line, self._headers
        if not meta:
            del message["params"]["_meta"]
        # One name may be written in two ways; what comes with the message counts.
        kept = {name: text for name, text in self._headers.items() if name.lower() not in own}
        return json.dumps(message, separators=(",", ":")).encode(), {**kept, **own}

    def _write_all(self, response: http.client.HTTPResponse, message: dict[str, Any]) -> None:
        if "text/event-stream" in (response.getheader("Content-Type") or ""):
            self._write_events(response)
            return
        body = response.read(MAX_LINE_BYTES + 1)
        if not body.strip():
            return
        answer = json.loads(body)
        if message.get("method") == "initialize":
            version = (answer.get("result") or {}).get("protocolVersion")
            if isinstance(version, str):
                self._headers["MCP-Protocol-Version"] = version
        self._write(answer)

    def _write_events(self, response: http.client.HTTPResponse) -> None:
        data: list[str] = []
        while line := response.readline(MAX_LINE_BYTES):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if text.startswith("data:"):
                data.append(text[5:].lstrip())
            elif not text and data:
                message = json.loads("\n".join(data))
                data = []
                version = (message.get("result") or {}).get("protocolVersion")
                if isinstance(version, str):
                    self._headers["MCP-Protocol-Version"] = version
                self._write(message)

    def _listen(self) -> None:
        """Read the server's notifications; many servers send none."""
        connection = self._connect()
        try:
            connection.request("GET", self._path, None, self._headers)
            response = connection.getresponse()
            if response.status == http.client.OK:
                self._write_events(response)
        except (OSError, http.client.HTTPException, ValueError) as error:
            _note(f"the server's own stream ended: {error}")
        finally:
            connection.close()

    def _leave(self) -> None:
        if "Mcp-Session-Id" not in self._headers:
            return
        connection = self._connect()
        try:
            connection.request("DELETE", self._path, None, self._headers)
            connection.getresponse().read(0)
        except (OSError, http.client.HTTPException) as error:
            _note(f"could not end the session: {error}")
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)

    def _fail(self, message: dict[str, Any], why: str) -> None:
        _note(f"{message.get('method')}: {why}")
        if "id" in message and "method" in message:
            error = {"code": FAILED, "message": why}
            self._write({"jsonrpc": "2.0", "id": message["id"], "error": error})

    def _write(self, message: Any) -> None:
        with self._writing:
            sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
            sys.stdout.flush()


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    McpRelay(sys.argv[1]).run()
    os._exit(0)  # threads that still wait for an answer have nobody to give it to
