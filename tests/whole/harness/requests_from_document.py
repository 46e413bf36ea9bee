"""Requests drawn from an OpenAPI document, sent as fast as one process can.

Values fit their schema, nearly fit it, or do not at all. What answers say (ids, names, digests) is
used again in later requests, so that these reach what earlier ones have made.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, deque
from typing import Any, Final
from urllib.parse import quote, urlencode

METHODS: Final = ("get", "post", "put", "patch", "delete")
PATIENCE_S: Final = 120.0
KEPT_IDS: Final = 64
MAX_LOST: Final = 100
ODD: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1.5, 2**70, "", "x", "\u0000", "é" * 30, "../..", "%2e%2e", "a" * 3000),
    *([], {}, [1], {"a": {"b": [None]}}, "2026-11-18T00:00:00Z", "./a.txt", "primary"),
)


class Drawn:
    """Draws requests from a document, by the dice; `skip` names operations that end the daemon."""

    def __init__(self, document: dict[str, Any], dice: random.Random, skip: set[str]) -> None:
        self._document = document
        self._dice = dice
        self.seen: dict[str, deque[str]] = {}
        self.operations = [
            (method, path, operation)
            for path, item in sorted(document["paths"].items())
            for method, operation in item.items()
            if method in METHODS and f"{method.upper()} {path}" not in skip
        ]

    def draw(self) -> tuple[str, bytes]:
        """Return an operation's name and the bytes of a request for it."""
        dice = self._dice
        method, path, operation = dice.choice(self.operations)
        target, query = path, []
        for one in operation.get("parameters", ()):
            where, name = self._resolve(one)["in"], self._resolve(one)["name"]
            value = self._text(name, self._resolve(one).get("schema", {}))
            if where == "path":
                target = target.replace(f"{{{name}}}", quote(value, safe="") or "x")
            elif where == "query" and dice.random() < 0.5:
                # Nothing will come, and waiting for it breaks nothing.
                query.append((name, "0" if name == "wait_s" else value))
        body, kind = b"", "application/json"
        wanted = operation.get("requestBody")
        if wanted is not None and dice.random() < 0.95:
            kind, media = next(iter(self._resolve(wanted)["content"].items()))
            drawn = self._value("", media.get("schema", {}), 0)
            body = json.dumps(drawn).encode()
            if dice.random() < 0.03:
                body = body[: dice.randrange(len(body) + 1)]
        words = f"?{urlencode(query, errors='replace')}" if query else ""
        head = f"{method.upper()} {target}{words} HTTP/1.1\r\nHost: kaged\r\n"
        if body or method != "get":
            head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        return f"{method.upper()} {path}", head.encode() + b"\r\n" + body

    def learn(self, answer: Any) -> None:
        """Keep what later requests may name."""
        if isinstance(answer, list):
            for one in answer[:20]:
                self.learn(one)
        elif isinstance(answer, dict):
            for key, value in answer.items():
                if isinstance(value, str) and 0 < len(value) < 200:
                    self.seen.setdefault(key, deque(maxlen=KEPT_IDS)).append(value)
                elif isinstance(value, dict | list):
                    self.learn(value)

    def _text(self, name: str, schema: dict[str, Any]) -> str:
        value = self._value(name, schema, 0)
        return value if isinstance(value, str) else json.dumps(value)

    def _known(self, name: str) -> str | None:
        kind = name.removesuffix("_id")
        for key in (name, "id" if kind != name else "name", "name"):
            values = [
                one
                for one in self.seen.get(key, ())
                if name in {key, kind} or one.startswith(kind[:3])
            ]
            if values:
                return self._dice.choice(values)
        return None

    def _value(self, name: str, schema: dict[str, Any], depth: int) -> Any:
        dice = self._dice
        schema = self._resolve(schema)
        if dice.random() < 0.08 or depth > 6:
            return dice.choice(ODD)
        known = self._known(name) if name and dice.random() < 0.6 else None
        if known is not None and schema.get("type", "string") == "string":
            return known
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self._value(name, dice.choice(schema[several]), depth)
        if "enum" in schema:
            return dice.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                items = schema.get("items", {})
                return [self._value(name, items, depth + 1) for _ in range(dice.randrange(3))]
            case "integer" | "number":
                return dice.choice([0, 1, 2, 50, schema.get("minimum", -1), 10**6])
            case "boolean":
                return dice.random() < 0.5
            case "null":
                return None
            case _:
                return dice.choice(ODD) if dice.random() < 0.2 else f"n{dice.randrange(100)}"

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        made = {
            key: self._value(key, below, depth + 1)
            for key, below in schema.get("properties", {}).items()
            if self._dice.random() < (0.96 if key in required else 0.4)
        }
        if self._dice.random() < 0.05:
            made["more"] = self._dice.choice(ODD)
        return made

    def _resolve(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            found: Any = self._document
            for word in schema["$ref"].removeprefix("#/").split("/"):
                found = found[word]
            schema = found
        return schema


class Sender:
    """Sends drawn requests over several connections and counts what comes back."""

    def __init__(self, socket: str, drawn: Drawn) -> None:
        self.answers: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.lost = 0
        self.slowest: dict[str, float] = {}
        """The longest time that each operation took, in seconds."""
        self._socket = socket
        self._drawn = drawn
        self._left = 0

    async def send(self, many: int, connections: int = 6) -> None:
        """Send so many requests; `wrong` has those whose answer no daemon may give."""
        self._left = many
        async with asyncio.TaskGroup() as group:
            for _ in range(connections):
                group.create_task(self._keep_sending())

    async def _keep_sending(self) -> None:
        while self._left > 0 and len(self.wrong) < 20 and self.lost < MAX_LOST:
            reader, writer = await asyncio.open_unix_connection(self._socket, limit=1 << 22)
            try:
                while self._left > 0 and await self._one(reader, writer):
                    pass
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                self.lost += 1
            finally:
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send one; return whether the connection can be used again."""
        name, request = self._drawn.draw()
        self._left -= 1
        began_s = time.monotonic()
        writer.write(request)
        try:
            async with asyncio.timeout(PATIENCE_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                status = int(head.split(" ", 2)[1])
                fields = dict(
                    line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line
                )
                size = fields.get("content-length")
                # An answer without a size is a stream: this client hangs up.
                data = await reader.readexactly(int(size)) if size is not None else b""
        except TimeoutError:
            self.wrong.append(f"{name}: no answer in {PATIENCE_S} s to {request[:500]!r}")
            return False
        self.answers[status] += 1
        took_s = time.monotonic() - began_s
        self.slowest[name] = max(took_s, self.slowest.get(name, 0.0))
        if status >= 500:
            self.wrong.append(f"{name}: {status} {data[:500]!r} to {request[:1000]!r}")
        elif data[:1] in b"{[" and data:
            answer = json.loads(data)
            if status >= 400 and "code" not in answer.get("error", {}):
                self.wrong.append(f"{name}: untyped {status} {data[:500]!r} to {request[:500]!r}")
            self._drawn.learn(answer)
        return size is not None and fields.get("connection") != "close"
