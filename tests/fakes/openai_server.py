"""`OpenAIServer`: a real HTTP server that speaks as OpenAI does, and misbehaves as told.

It runs on loopback in a thread of its own, so tests with an event loop and tests that drive a
daemon's process can both use it. What it answers is a function of what was asked: `in_turn` takes
replies one by one, `playing` plays a script of the `scripted` model over HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from kaged.base import Ids, SystemClock
from kaged.models.script import Chosen, Fault, ModelScript, ScriptedFailure, plain_name
from kaged.models.scripted import arguments_of, words_of
from kaged.models.turn import (
    AssistantMessage,
    ModelMessage,
    ModelRequest,
    ModelToolCall,
    SystemMessage,
    ToolResultMessage,
    UserMessage,
)

MAX_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as it came in."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", ()))

    @property
    def tools(self) -> list[str]:
        return [one["function"]["name"] for one in self.body.get("tools", ())]

    def request(self, agents: Mapping[str, str]) -> ModelRequest:
        """Read it back into our words; `agents` finds the agent by a piece of its prompt."""
        names: dict[str, str] = {}
        messages = [_ours(one, names) for one in self.messages]
        system = "\n".join(one.text for one in messages if isinstance(one, SystemMessage))
        agent = next((path for piece, path in agents.items() if piece in system), "primary")
        return ModelRequest(messages, agent=agent)


@dataclass(frozen=True, slots=True)
class Says:
    """An answer, streamed. `cut` ends the connection after that many chunks; `pace_s` drips."""

    text: str = ""
    think: str = ""
    calls: Sequence[tuple[str, str, str]] = ()  # id, name, arguments
    finish: str | None = None
    usage: tuple[int, int] | None = (11, 7)
    cut: int | None = None
    delay_s: float = 0.0
    pace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """An error with a status."""

    code: int
    body: object = field(
        default_factory=lambda: {"error": {"message": "no", "type": "error", "code": None}}
    )
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes as they are, then the end of the connection."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Flood:
    """A stream of one endless line."""

    piece: bytes
    times: int


@dataclass(frozen=True, slots=True)
class Silence:
    """Takes the question and never says a word."""


Reply = Says | Status | Raw | Flood | Silence
Answers = Callable[[Asked], Reply]


def in_turn(*replies: Reply) -> Answers:
    """Return replies one after the other; the last one again and again."""
    left = list(replies)

    def answer(_asked: Asked) -> Reply:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def playing(script: ModelScript, agents: Mapping[str, str] | None = None) -> Answers:
    """Play a script: the same turns and faults as the `scripted` model, over HTTP."""
    ids = Ids(SystemClock())
    attempts: Counter[tuple[int, int]] = Counter()

    def answer(asked: Asked) -> Reply:
        chosen = script.choose(asked.request(agents or {}))
        if chosen is None:
            return Status(400, {"error": {"message": "the script has ended", "type": "script"}})
        turn = chosen.turn
        key = (chosen.number, len(asked.messages))
        attempts[key] += 1
        if attempts[key] <= len(turn.fail):
            return _failing(turn.fail[attempts[key] - 1])
        if turn.error is not None:
            return _failing(ScriptedFailure(fault=turn.error))
        return _saying(chosen, ids)

    return answer


class OpenAIServer:
    """The server. `asked` is what came in, in order."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[Asked] = []
        self.idle = threading.Event()  # nobody is connected
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="openai server")
        self._stop = asyncio.Event()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    self._loop.run_until_complete(task)
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        self.idle.clear()
        try:
            while await self._exchange(reader, writer):
                pass
        except (
            OSError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.CancelledError,  # the server ends; nobody waits for this task
        ):
            return
        finally:
            self._open -= 1
            if not self._open:
                self.idle.set()
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        size = int(headers.get("content-length", "0"))
        assert size <= MAX_BODY_BYTES
        body = json.loads(await reader.readexactly(size) or b"{}")
        asked = Asked(head[0].split(" ")[1], headers, body)
        self.asked.append(asked)
        reply = self.answers(asked)
        match reply:
            case Says():
                return await _stream(reply, body.get("model", ""), writer)
            case Status():
                data = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
                extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
                writer.write(
                    f"HTTP/1.1 {reply.code} X\r\ncontent-type: application/json\r\n{extra}"
                    f"content-length: {len(data.encode())}\r\n\r\n{data}".encode()
                )
                await writer.drain()
                return True
            case Raw():
                writer.write(reply.data)
                await writer.drain()
                return False
            case Flood():
                _begin(writer)
                for _ in range(reply.times):
                    _chunk(writer, reply.piece)
                    await writer.drain()
                return False
            case Silence():
                await reader.read(1)  # until the other side hangs up
                return False


async def _stream(reply: Says, model: str, writer: asyncio.StreamWriter) -> bool:
    if reply.delay_s:
        await asyncio.sleep(reply.delay_s)
    _begin(writer)
    for number, delta in enumerate(_deltas(reply)):
        if reply.cut is not None and number >= reply.cut:
            await writer.drain()
            return False
        if reply.pace_s:
            await asyncio.sleep(reply.pace_s)
        _event(writer, _completion(model, [{"index": 0, "delta": delta, "finish_reason": None}]))
        await writer.drain()
    if reply.cut is not None:
        return False
    finish = reply.finish or ("tool_calls" if reply.calls else "stop")
    _event(writer, _completion(model, [{"index": 0, "delta": {}, "finish_reason": finish}]))
    if reply.usage is not None:
        read, written = reply.usage
        usage = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        _event(writer, {**_completion(model, []), "usage": usage})
    _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def _deltas(reply: Says) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": word} for word in words_of(reply.think)]
    deltas += [{"content": word} for word in words_of(reply.text)]
    for index, (call_id, name, arguments) in enumerate(reply.calls):
        function = {"name": name, "arguments": ""}
        deltas.append(
            {
                "tool_calls": [
                    {"index": index, "id": call_id, "type": "function", "function": function}
                ]
            }
        )
        # Arguments come in pieces that are no JSON by themselves, as from real servers.
        for start in range(0, len(arguments), 7):
            piece = {"arguments": arguments[start : start + 7]}
            deltas.append({"tool_calls": [{"index": index, "function": piece}]})
    return deltas


def _completion(model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_767_225_600,
        "model": model,
        "choices": choices,
    }


def _begin(writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )


def _event(writer: asyncio.StreamWriter, data: dict[str, Any]) -> None:
    _chunk(writer, f"data: {json.dumps(data)}\n\n".encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _saying(chosen: Chosen, ids: Ids) -> Says:
    turn = chosen.turn
    usage = None if turn.usage is None else (turn.usage.input, turn.usage.output)
    return Says(
        text=turn.say,
        think=turn.think,
        calls=[
            (f"call_{chosen.number}_{n}_{ids.ulid()}", plain_name(call.tool), arguments_of(call))
            for n, call in enumerate(turn.call, start=1)
        ],
        finish=None if turn.finish.value == "stop" else turn.finish.value,
        usage=usage or (max(1, len(turn.say) // 4), max(1, len(turn.say) // 4)),
        delay_s=turn.delay_s,
        pace_s=turn.pace_s,
    )


def _failing(failure: ScriptedFailure) -> Reply:
    after = {} if failure.retry_after_s is None else {"retry-after": str(failure.retry_after_s)}

    def error(code: str) -> dict[str, Any]:
        return {"error": {"message": f"the script says {code}", "type": code, "code": code}}

    match failure.fault:
        case Fault.UNAVAILABLE:
            return Status(503, error("unavailable"), after)
        case Fault.RATE_LIMITED:
            return Status(429, error("rate_limit_exceeded"), after)
        case Fault.REFUSED:
            return Status(400, error("invalid_request"), after)
        case Fault.CONTEXT_EXCEEDED:
            return Status(400, error("context_length_exceeded"), after)
        case Fault.BAD_ANSWER:
            return Raw(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {nonsense\n\n"
            )
        case Fault.CUT:
            return Says(failure.after, cut=len(list(words_of(failure.after))) + 1)


def _ours(message: dict[str, Any], names: dict[str, str]) -> ModelMessage:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    match message["role"]:
        case "system" | "developer":
            return SystemMessage(content)
        case "user":
            return UserMessage(content)
        case "tool":
            call_id = message["tool_call_id"]
            return ToolResultMessage(call_id, names.get(call_id, ""), content)
        case _:
            calls = tuple(
                ModelToolCall(one["id"], one["function"]["name"], {})
                for one in message.get("tool_calls") or ()
            )
            names.update({call.id: call.name for call in calls})
            return AssistantMessage(content, calls)


__all__ = [
    "Answers",
    "Asked",
    "Flood",
    "OpenAIServer",
    "Raw",
    "Reply",
    "Says",
    "Silence",
    "Status",
    "in_turn",
    "playing",
]
