"""`BridgeRunner`: bridges as processes: one per request, or one that waits in reserve for the next.

A bridge has its own process group, a private working directory, limits on what it may say, and no
way to keep the host waiting: when its time is over the group is ended, whoever still holds a pipe.
What left the group of a bridge without a cage is ended after it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from kaged.base import Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.base.tasks import report_kind
from kaged.cage import (
    CageError,
    CageKind,
    CageProcess,
    CageRequest,
    Spawner,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.orphan_processes import MARK, mark_value
from kaged.kernel.policy import CagePolicy
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityInvalidOutput,
    OutcomeLost,
)
from kaged.services.providers.bridge_command import BridgeSpec
from kaged.services.providers.bridge_orphans import BridgeOrphans
from kaged.services.secret_search import CallSecrets

STDERR_LIMIT_BYTES: Final = 64 * 1024
TERM_GRACE_S: Final = 0.5
AFTER_EXIT_S: Final = 1.0
STANDBY_IDLE_S: Final = 60.0

_log = get_logger("kaged.services")


class Collector(asyncio.Protocol):
    """Keeps what a pipe says, up to a limit; beyond it `on_over` is called once."""

    def __init__(self, limit: int, on_over: Callable[[], None] | None = None) -> None:
        self.kept = bytearray()
        self.over = False
        self._limit = limit
        self._on_over = on_over
        self._transport: asyncio.ReadTransport | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport, to stop reading."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Keep what fits."""
        room = self._limit - len(self.kept)
        if len(data) > room:
            if not self.over and self._on_over is not None:
                self._on_over()
            self.over = True
        if room > 0:
            self.kept += data[:room]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end."""
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Stop reading, whoever still holds the other end."""
        if self._transport is not None:
            self._transport.close()


@dataclass(frozen=True, slots=True)
class BridgePlace:
    """Where a bridge runs: its whole environment, its program and its own empty directory."""

    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    directory: Path


class BridgeRunner:
    """Starts one bridge's processes and exchanges one request with each."""

    def __init__(
        self,
        spec: BridgeSpec,
        place: BridgePlace,
        spawner: Spawner,
        everybody: asyncio.Semaphore,
        *,
        secrets: CallSecrets | None = None,
        standby_idle_s: float = STANDBY_IDLE_S,
    ) -> None:
        self._spec = spec
        self._place = place
        self._spawner = spawner
        self._everybody = everybody
        self._own = asyncio.Semaphore(spec.max_concurrency)
        self._secrets = secrets or CallSecrets()
        self._idle_s = standby_idle_s
        self._tasks = Tasks(f"bridge {spec.name}", report_kind)
        self._standby: CageProcess | None = None
        self._discard: asyncio.TimerHandle | None = None
        self._preparing = False
        self._closed = False
        self._orphans = BridgeOrphans(spec.name)
        self.running = 0
        self.most = 0

    async def exchange(self, request: bytes) -> bytes:
        """Send one request to a process of its own; returns everything it wrote.

        Waiting for a free place counts against the caller's time. Cancelling ends the process.

        Raises:
            CapabilityBackendUnavailable: it could not be started, failed or was ended.
            CapabilityInvalidOutput: it wrote more than it may.
        """
        await self._own.acquire()
        try:
            await self._everybody.acquire()
        except BaseException:
            self._own.release()
            raise
        self.running += 1
        self.most = max(self.most, self.running)
        process: CageProcess | None = None
        try:
            process = await self._take()
            answer = await self._talk(process, request)
        except BaseException:
            if process is not None and process.running:
                # The slot is freed when the process is gone, not before: no process storms.
                self._tasks.start(self._end(process), "end a bridge")
            else:
                self._free()
            raise
        self._free()
        idle = not self._closed and self._standby is None and not self._preparing
        if self._spec.mode == "standby" and idle:
            self._preparing = True
            self._tasks.start(self._prepare(), "prepare a bridge")
        return answer

    async def spawn(self) -> CageProcess:
        """Start a process of this bridge.

        Raises:
            CapabilityBackendUnavailable: it cannot be started.
        """
        if self._closed:
            raise CapabilityBackendUnavailable(f"the bridge of {self._spec.namespace} is closed")
        try:
            self._place.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._spec.cage is not None:
                return await self._spawner.spawn(self._caged(self._spec.cage))
            account = self._orphans.account()
            process = await self._spawner.spawn(self._uncaged(account))
            self._orphans.watch(account, process)
            return process  # noqa: TRY300 - what can fail is above
        except (CageError, OSError) as error:
            _log.warning("bridge.not_started", provider=self._spec.name, error=str(error)[:300])
            raise CapabilityBackendUnavailable(
                f"the bridge of {self._spec.namespace} could not be started"
            ) from None

    async def close(self) -> None:
        """End what runs and what waits."""
        self._closed = True
        self._drop_standby()
        await self._tasks.close()
        await self._orphans.close()

    # ---- one exchange

    async def _talk(self, process: CageProcess, request: bytes) -> bytes:
        out = Collector(self._spec.max_output_bytes, process.kill)
        errors = Collector(STDERR_LIMIT_BYTES)
        await process.connect_stdout(lambda: out)
        await process.connect_stderr(lambda: errors)
        try:
            writer, _ = await process.connect_stdin(asyncio.BaseProtocol)
            writer.write(request)
            writer.close()
            report = await process.wait()
            # Its group has gone with it. Whoever left the group may still hold the pipe; what the
            # bridge itself wrote is here by then.
            await asyncio.wait([out.ended], timeout=AFTER_EXIT_S)
        finally:
            out.close()
            errors.close()
        if errors.kept.strip():
            shown = self._secrets.scrub(errors.kept.decode("utf-8", errors="replace"))
            _log.info("bridge.stderr", provider=self._spec.name, text=shown)
        if out.over:
            raise CapabilityInvalidOutput("the bridge wrote more than it may")
        if report.exit_code != 0:
            failed = OutcomeLost(f"the bridge of {self._spec.namespace} failed")
            failed.noted["bridge.exit_code"] = report.exit_code
            raise failed
        return bytes(out.kept)

    async def _end(self, process: CageProcess) -> None:
        try:
            await process.stop(term_grace_s=TERM_GRACE_S)
        finally:
            process.close()
            self._free()

    def _free(self) -> None:
        self.running -= 1
        self._everybody.release()
        self._own.release()

    # ---- the process in reserve

    async def _take(self) -> CageProcess:
        """Return the process that waits, or a new one."""
        waiting = self._standby
        if waiting is not None and waiting.running:
            self._standby = None
            self._drop_standby()  # the timer that would discard it
            return waiting
        self._drop_standby()
        return await self.spawn()

    async def _prepare(self) -> None:
        try:
            process = await self.spawn()
        except CapabilityBackendUnavailable:
            return  # on record already; the next call says so
        finally:
            self._preparing = False
        if self._closed or self._standby is not None:
            process.close()
            return
        self._standby = process
        loop = asyncio.get_running_loop()
        self._discard = loop.call_later(self._idle_s, self._drop_standby)

    def _drop_standby(self) -> None:
        waiting, self._standby = self._standby, None
        if self._discard is not None:
            self._discard.cancel()
            self._discard = None
        if waiting is not None:
            waiting.close()

    # ---- how it is started

    def _uncaged(self, account: str) -> UncagedRequest:
        spec, place = self._spec, self._place
        return UncagedRequest(
            f"bridge {spec.name}",
            Uncaged(f"the operator configured the bridge {spec.name} without a cage"),
            place.command,
            cwd=str(place.directory),
            env=((MARK, mark_value(account)), *place.env),
        )

    def _caged(self, policy: CagePolicy) -> CageRequest:
        spec, place = self._spec, self._place
        return CageRequest(
            f"bridge {spec.name}",
            policy,
            place.command,
            kind=CageKind.SERVER,
            fixed_env=tuple((key, value) for key, value in place.env if key not in _CAGE_SETS),
            own_dirs=(os.fspath(place.directory),),
        )


# Inside a cage these are the cage's own; the host's would name places that are not there.
_CAGE_SETS: Final = frozenset({"HOME", "TMP", "TEMP", "TMPDIR", "USER", "PATH"})
