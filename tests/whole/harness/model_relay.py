"""`ModelRelay`: stands before the model server and keeps each request to the letter.

The server's own journal has every protocol written as one. It answers as told where no real server
does: with arguments that are no JSON, or with nothing at all.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx

PATIENCE_S = 30.0
PASSED = ("content-type", "retry-after")


class ModelRelay:
    """An HTTP server on loopback; use it inside `with`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._said: dict[str, tuple[str, bytes]] = {}
        self.seen: list[tuple[str, dict[str, Any]]] = []
        relay = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                relay.answer(self, "GET")

            def do_POST(self) -> None:
                relay.answer(self, "POST")

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - as its base has it
                """Write nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._client = httpx.Client(timeout=PATIENCE_S, trust_env=False)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()

    def stream(self, word: str, *events: Mapping[str, Any], named: bool = False) -> None:
        """Answer the next request that says `word` with these events, once.

        `named` writes the type of each before it, as Anthropic does; others end with `[DONE]`.
        """
        lines = [
            (f"event: {one['type']}\n" if named else "") + f"data: {json.dumps(one)}\n\n"
            for one in events
        ]
        body = "".join([*lines, *([] if named else ["data: [DONE]\n\n"])])
        self._said[word] = ("text/event-stream", body.encode())

    def stream_as_aws(self, word: str, *events: tuple[str, Mapping[str, Any]]) -> None:
        """Answer the next request that says `word` with these events, as Bedrock frames them."""
        body = b"".join(_frame(name, json.dumps(data).encode()) for name, data in events)
        self._said[word] = ("application/vnd.amazon.eventstream", body)

    def bodies(self, word: str) -> Sequence[dict[str, Any]]:
        """Return the requests that say `word`, oldest first."""
        return [body for _, body in self.seen if word in json.dumps(body)]

    def answer(self, handler: BaseHTTPRequestHandler, method: str) -> None:
        """Answer a request as told, or pass it on."""
        data = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        text = data.decode()
        self.seen.append((handler.path, json.loads(text) if text else {}))
        word = next((one for one in self._said if one in text), None)
        if word is not None:
            kind, body = self._said.pop(word)
            _answer(handler, 200, {"content-type": kind}, body)
            return
        kept = {
            name: value
            for name, value in handler.headers.items()
            if name.lower() not in {"host", "content-length", "connection"}
        }
        # The library of Google asks for version 1, which the server knows by its earlier name.
        url = f"{self._target}{handler.path.replace('/v1/models/gemini', '/v1beta/models/gemini')}"
        got = self._client.request(method, url, content=data, headers=kept)
        _answer(handler, got.status_code, dict(got.headers), got.content)


def _answer(
    handler: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], body: bytes
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        if name.lower() in PASSED:
            handler.send_header(name, value)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _frame(event: str, payload: bytes) -> bytes:
    pairs = {
        ":event-type": event, ":content-type": "application/json", ":message-type": "event"
    }  # fmt: skip
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(text).to_bytes(2, "big") + text.encode()
        for name, text in pairs.items()
    )
    size = 16 + len(headers) + len(payload)
    head = size.to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    head += zlib.crc32(head).to_bytes(4, "big")
    whole = head + headers + payload
    return whole + zlib.crc32(whole).to_bytes(4, "big")
