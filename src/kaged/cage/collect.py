"""`collect`: run a child to its end and keep what it said, up to a limit."""

from __future__ import annotations

import asyncio

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.process import CageProcess
from kaged.cage.report import ExitReport

DEFAULT_LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Collected:
    """What a child said and how it ended; `cut` when it said more than was kept."""

    stdout: bytes
    stderr: bytes
    report: ExitReport
    cut: bool = False


class _Keeper(asyncio.Protocol):
    """Keeps the first bytes and reads the rest away, so that the child is never blocked."""

    def __init__(self, limit: int) -> None:
        self.kept = bytearray()
        self.cut = False
        self._limit = limit
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        room = self._limit - len(self.kept)
        self.cut = self.cut or len(data) > room
        self.kept += data[:room]

    def connection_lost(self, exc: Exception | None) -> None:
        # A pseudo-terminal ends with an error instead of an end of file; both mean the same.
        if not self.ended.done():
            self.ended.set_result(None)


async def collect(
    process: CageProcess, stdin: bytes = b"", limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Collected:
    """Write `stdin` to a child, read its output to the end, wait for it and close it.

    Output beyond the limit is read and dropped. Cancelling kills the child.
    """
    async with process:
        keepers = {"stdout": _Keeper(limit_bytes)}
        transports = [(await process.connect_stdout(lambda: keepers["stdout"]))[0]]
        if process.stderr_fd is not None:
            keepers["stderr"] = _Keeper(limit_bytes)
            transports.append((await process.connect_stderr(lambda: keepers["stderr"]))[0])
        try:
            writer, _ = await process.connect_stdin(asyncio.BaseProtocol)
            writer.write(stdin)
            writer.close()
            report = await process.wait()
            # Whatever it started is gone with it, so the pipes end now; uncaged ones may be held
            # open by a process that left the group.
            async with asyncio.timeout(_AFTER_EXIT_S):
                await asyncio.gather(*(keeper.ended for keeper in keepers.values()))
        except TimeoutError:
            report = await process.wait()
        finally:
            for transport in transports:
                transport.close()
    errors = keepers.get("stderr")
    return Collected(
        stdout=bytes(keepers["stdout"].kept),
        stderr=bytes(errors.kept) if errors is not None else b"",
        report=report,
        cut=any(keeper.cut for keeper in keepers.values()),
    )


_AFTER_EXIT_S = 1.0
