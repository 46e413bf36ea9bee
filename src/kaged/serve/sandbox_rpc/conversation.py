"""`SandboxRpc`: answers the connections of one cage, one request after the other on each."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.serve.sandbox_rpc.messages import (
    INVALID_REQUEST,
    UNKNOWN_METHOD,
    RequestRefused,
    RpcRequest,
    error_answer,
    fault_answer,
    parse_request,
    refusal_answer,
    result_answer,
)
from kaged.services.errors import CapabilityError
from kaged.wire.framing import OversizeMessage, Unsendable
from kaged.wire.length_prefixed import FRAME_LIMIT_BYTES, LengthPrefixFramer
from kaged.wire.tokens import TokenRejected

_log = get_logger("kaged.sandbox_rpc")

ForeignToken: TypeAlias = Callable[[str, JsonValue], TokenRejected]
"""Told of a method and a token that is not the cage's own; says, on record, why it is refused."""


class SandboxMethods(Protocol):
    """Whoever answers: the methods there are, and one function for all of them."""

    @property
    def methods(self) -> Collection[str]:
        """The names of the methods that exist."""
        ...

    async def call(self, method: str, params: JsonObject) -> JsonObject:
        """Answer one call whose params hold the caller's token.

        Raises:
            TokenRejected, CapabilityError: with texts that may be shown to the sandbox.
        """
        ...


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """How much one cage may ask of its channel.

    `connections` are served at once, the rest wait; each may hold one frame in memory. `idle_s` is
    how long a connection may say nothing, `frame_s` how long one frame may take in either way.
    """

    frame_bytes: int = FRAME_LIMIT_BYTES
    connections: int = 8
    failed_tokens: int = 10
    idle_s: float = 60.0
    frame_s: float = 30.0
    read_bytes: int = 64 * 1024


class SandboxRpc:
    """The host's end of one cage's channel.

    `token` is the one that this cage was issued: any other is refused here, even one that is
    valid, so that what leaks out of a cage is of no use in another.
    """

    def __init__(
        self,
        methods: SandboxMethods,
        token: str,
        foreign: ForeignToken,
        limits: RpcLimits | None = None,
    ) -> None:
        self._methods = methods
        self._token = token.encode("utf-8")
        self._foreign = foreign
        self._limits = limits or RpcLimits()
        self._turns = asyncio.Semaphore(self._limits.connections)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection until its end; the caller closes the writer."""
        async with self._turns:
            try:
                await _Connection(self, self._limits, reader, writer).run()
            except (ConnectionError, TimeoutError):
                # The other side went away or took too long; there is nobody to tell.
                return

    async def answer(self, request: RpcRequest) -> tuple[bytes, bool]:
        """Return the message to send back, and whether the token was refused."""
        if request.method not in self._methods.methods:
            text = f"Unknown method: {request.method[:64]}"
            return error_answer(request.id, UNKNOWN_METHOD, text), False
        try:
            self._require_own_token(request)
            result = await self._methods.call(request.method, request.params)
            return result_answer(request.id, result), False
        except TokenRejected as error:
            return refusal_answer(request.id, error), True
        except CapabilityError as error:
            return refusal_answer(request.id, error), False
        except Exception as error:  # noqa: BLE001 - the edge: one bad call must not end the channel
            _log.error("sandbox_rpc.failed", method=request.method, error=repr(error))
            return fault_answer(request.id), False

    def _require_own_token(self, request: RpcRequest) -> None:
        given = request.params.get("context_token")
        if isinstance(given, str) and hmac.compare_digest(
            given.strip().encode("utf-8", errors="surrogatepass"), self._token
        ):
            return
        raise self._foreign(request.method, given)


class _Connection:
    """One connection, from its first byte to its last."""

    def __init__(
        self,
        rpc: SandboxRpc,
        limits: RpcLimits,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._rpc = rpc
        self._limits = limits
        self._reader = reader
        self._writer = writer
        self._framer = LengthPrefixFramer(limits.frame_bytes)
        self._failed_tokens = 0
        self._frame_ends_s: float | None = None  # by when the frame being read must be whole

    async def run(self) -> None:
        while chunk := await self._read():
            try:
                frames = self._framer.feed(chunk)
            except OversizeMessage as error:
                for frame in error.complete:
                    await self._answer(frame)
                await self._send(error_answer(None, INVALID_REQUEST, error.message))
                return
            for frame in frames:
                if not await self._answer(frame):
                    return
            if not self._framer.buffered_bytes:
                self._frame_ends_s = None
            elif frames or self._frame_ends_s is None:
                self._frame_ends_s = _now_s() + self._limits.frame_s

    async def _read(self) -> bytes:
        # A frame that comes byte by byte has one deadline for all of them.
        ends_s = self._frame_ends_s
        async with asyncio.timeout_at(_now_s() + self._limits.idle_s if ends_s is None else ends_s):
            return await self._reader.read(self._limits.read_bytes)

    async def _answer(self, frame: bytes) -> bool:
        """Answer one frame; False when the connection is to end."""
        try:
            request = parse_request(frame)
        except RequestRefused as refused:
            await self._send(refused.answer)
            return True
        message, token_failed = await self._rpc.answer(request)
        await self._send(message, request)
        self._failed_tokens += token_failed
        return self._failed_tokens < self._limits.failed_tokens

    async def _send(self, message: bytes, request: RpcRequest | None = None) -> None:
        try:
            frame = self._framer.encode(message)
        except Unsendable:
            frame = self._framer.encode(fault_answer(request.id if request else None))
        async with asyncio.timeout(self._limits.frame_s):
            self._writer.write(frame)
            await self._writer.drain()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
