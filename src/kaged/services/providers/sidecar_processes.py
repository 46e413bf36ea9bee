"""`SidecarProcesses`: the sidecars of one provider as processes, one per identity, bounded.

Each is started when it is first asked for, has to show that it is guarded, and is ended when
nobody has used it for a while, when another one needs its place, or when a call in it was given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kaged.base import Clock, Tasks
from kaged.base.log import get_logger
from kaged.base.tasks import report_kind
from kaged.cage import CageProcess
from kaged.services.errors import CapabilityBackendUnavailable
from kaged.services.providers.bridge_process import (
    STDERR_LIMIT_BYTES,
    TERM_GRACE_S,
    BridgeRunner,
    Collector,
)
from kaged.services.secret_search import CallSecrets
from kaged.services.sidecar import SidecarClient
from kaged.wire.sidecar_identity import SidecarIdentity
from kaged.wire.strictjson import NotJson, decode_json

FIRST_LINE_BYTES: Final = 4096
_PORTS: Final = range(1, 65536)

_log = get_logger("kaged.services")


class Sidecar:
    """One sidecar: its process, once it is wanted, and how to ask it."""

    def __init__(
        self,
        identity: SidecarIdentity,
        runner: BridgeRunner,
        clock: Clock,
        *,
        timeout_s: float,
        limit_bytes: int,
        secrets: CallSecrets,
    ) -> None:
        self.identity = identity
        self.calls = 0
        self.served = 0
        self.ended = False
        self._runner = runner
        self._clock = clock
        self._timeout_s = timeout_s
        self._limit = limit_bytes
        self._secrets = secrets
        self._starting = asyncio.Lock()
        self._process: CageProcess | None = None
        self._client: SidecarClient | None = None
        self._errors: Collector | None = None
        # It is the sidecar's sign that its host is there: its end is the sidecar's end.
        self._stdin: asyncio.WriteTransport | None = None

    async def ask(self, request: bytes) -> bytes:
        """Send one envelope; returns the answer as it came.

        Raises:
            CapabilityBackendUnavailable: it cannot be started, or is not guarded as it must be.
            OutcomeLost: it did not answer as it should; what it did is not known.
        """
        try:
            async with self._starting:
                client = self._client or await self._start()
            return await client.call(request)
        except BaseException:
            # Whatever keeps it from answering is not known; the next call gets a new one.
            self.ended = True
            raise

    async def close(self) -> None:
        """End the process and what it left. Safe to call twice."""
        self.ended = True
        if self._process is not None:
            await self._process.stop(term_grace_s=TERM_GRACE_S)
            self._process.close()
        if self._stdin is not None:
            self._stdin.close()
        if self._client is not None:
            await self._client.close()
        if self._errors is not None:
            self._errors.close()
            if self._errors.kept.strip():
                text = self._errors.kept.decode("utf-8", errors="replace")
                shown = self._secrets.scrub(text)
                _log.info("sidecar.stderr", sidecar=self.identity.id, text=shown)
        await self._runner.close()

    async def _start(self) -> SidecarClient:
        process = self._process = await self._runner.spawn()
        said = _FirstLine(self._lost)
        errors = self._errors = Collector(STDERR_LIMIT_BYTES)
        self._stdin, _ = await process.connect_stdin(asyncio.BaseProtocol)
        await process.connect_stderr(lambda: errors)
        await process.connect_stdout(lambda: said)
        client = SidecarClient(
            self.identity,
            read_port(await said.line),
            self._clock,
            timeout_s=self._timeout_s,
            limit_bytes=self._limit,
        )
        try:
            await client.require_guarded(process.pid)
        except BaseException as error:
            await client.close()
            if isinstance(error, CapabilityBackendUnavailable):
                _log.warning(
                    "sidecar.refused",
                    provider=self.identity.provider,
                    sidecar=self.identity.id,
                    reason=error.message,
                )
            raise
        self._client = client
        _log.info("sidecar.started", provider=self.identity.provider, sidecar=self.identity.id)
        return client

    def _lost(self) -> None:
        self.ended = True


class SidecarProcesses:
    """The sidecars of one provider, at most `most` at a time."""

    def __init__(
        self, make: Callable[[SidecarIdentity], Sidecar], most: int, idle_s: float
    ) -> None:
        self._make = make
        self._most = most
        self._idle_s = idle_s
        self._known: dict[str, Sidecar] = {}
        self._running: set[Sidecar] = set()
        self._changed = asyncio.Condition()
        self._tasks = Tasks("sidecars", report_kind)

    async def exchange(self, identity: SidecarIdentity, request: bytes) -> bytes:
        """Ask the sidecar of an identity; raises what `Sidecar.ask` does.

        Waiting for a place counts against the caller's time.
        """
        sidecar = await self._take(identity)
        try:
            return await sidecar.ask(request)
        finally:
            await self._give_back(sidecar)

    async def close(self) -> None:
        """End all of them."""
        self._known.clear()
        for sidecar in list(self._running):
            await sidecar.close()
        await self._tasks.close()

    async def _take(self, identity: SidecarIdentity) -> Sidecar:
        async with self._changed:
            while True:
                found = self._known.get(identity.id)
                if found is not None and found.ended and not found.calls:
                    self._drop(found)
                    found = None
                if found is None and self._has_room():
                    found = self._known[identity.id] = self._make(identity)
                    self._running.add(found)
                if found is not None and not found.ended:
                    # The one that was used last stands last.
                    self._known[identity.id] = self._known.pop(identity.id)
                    found.calls += 1
                    return found
                await self._changed.wait()

    def _has_room(self) -> bool:
        """Return whether one more may run; one that nobody uses makes room."""
        if len(self._known) < self._most:
            return True
        unused = next((one for one in self._known.values() if not one.calls), None)
        if unused is not None:
            self._drop(unused)
        return unused is not None

    async def _give_back(self, sidecar: Sidecar) -> None:
        sidecar.calls -= 1  # before the lock: a caller that is cancelled here has gone all the same
        sidecar.served += 1
        if not sidecar.calls:
            if sidecar.ended:
                self._drop(sidecar)
            else:
                loop = asyncio.get_running_loop()
                loop.call_later(self._idle_s, self._discard, sidecar, sidecar.served)
        async with self._changed:
            self._changed.notify_all()

    def _discard(self, sidecar: Sidecar, served: int) -> None:
        """End a sidecar that nobody has used meanwhile."""
        if not sidecar.calls and sidecar.served == served:
            self._drop(sidecar)

    def _drop(self, sidecar: Sidecar) -> None:
        if self._known.get(sidecar.identity.id) is sidecar:
            del self._known[sidecar.identity.id]
            self._tasks.start(self._end(sidecar), "end a sidecar")

    async def _end(self, sidecar: Sidecar) -> None:
        await sidecar.close()
        self._running.discard(sidecar)


class _FirstLine(asyncio.Protocol):
    """Waits for the first line of a pipe; what comes after it is read and forgotten."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._on_end = on_end
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        if self.line.done():
            return
        self._buffer += data[: FIRST_LINE_BYTES - len(self._buffer)]
        line, end, _ = self._buffer.partition(b"\n")
        if end or len(self._buffer) >= FIRST_LINE_BYTES:
            self.line.set_result(bytes(line))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.line.done():
            error = CapabilityBackendUnavailable("the sidecar ended before it said where it is")
            self.line.set_exception(error)
        self._on_end()


def read_port(line: bytes) -> int:
    """Read where a sidecar says that it listens: `{"port": 40123}`.

    Raises:
        CapabilityBackendUnavailable: it says something else.
    """
    try:
        said = decode_json(line, max_depth=4, unique_keys=True)
    except NotJson:
        said = None
    port = said.get("port") if isinstance(said, dict) else None
    if type(port) is not int or port not in _PORTS:
        raise CapabilityBackendUnavailable('the sidecar\'s first line is not {"port": NUMBER}')
    return port
