"""`PeerProcess`: a started child with its conversation and the tail of its stderr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from kaged.base import JsonObject
from kaged.cage import CageProcess, ExitReport, Spawner, SpawnRequest, StopReport
from kaged.cage.errors import SpawnFailed
from kaged.cage.hints import resource_fix
from kaged.cage.pipe_end import PipeEnd
from kaged.peer.connection import Connection
from kaged.peer.stderr import StderrTail


class PeerProcess:
    """One child process and the one conversation with it. Made by `start`.

    The spawner owns the cage, the connection owns stdin and stdout, the tail owns stderr; this
    ties their ends together.
    """

    def __init__(self, process: CageProcess, connection: Connection, stderr: StderrTail) -> None:
        self.process = process
        self.connection = connection
        self.stderr = stderr

    @classmethod
    async def start(
        cls,
        spawner: Spawner,
        request: SpawnRequest,
        connection: Connection,
        on_stderr: Callable[[str], None],
        on_spawned: Callable[[CageProcess], None] | None = None,
    ) -> Self:
        """Start the child and attach the conversation. Raises CageError when it did not start.

        `on_spawned` is called before anything that the child says is heard.
        """
        process = await spawner.spawn(request)
        try:
            if on_spawned is not None:
                on_spawned(process)
            tail = StderrTail(on_stderr)
            await process.connect_stderr(lambda: tail)
            stdout = PipeEnd(process.take_fd("stdout"))
            stdin = PipeEnd(process.take_fd("stdin"))
            await connection.attach(stdout, stdin)
        except OSError as error:
            process.close()
            raise SpawnFailed(
                f"{process.name} could not be talked to: {error}", fix=resource_fix(error)
            ) from error
        except BaseException:
            process.close()
            raise
        return cls(process, connection, tail)

    async def stop(
        self, goodbye: tuple[str, JsonObject] | None, shutdown_timeout_s: float
    ) -> StopReport:
        """Send shutdown, wait; SIGTERM, wait two seconds; SIGKILL. Then close the conversation."""

        async def ask() -> None:
            if goodbye is not None:
                self.connection.notify(*goodbye)

        report = await self.process.stop(shutdown_timeout_s, ask if goodbye else None)
        await self.close()
        return report

    async def wait(self) -> ExitReport:
        """Wait until the process has ended and its stderr was read to the end."""
        report = await self.process.wait()
        await self.stderr.drained()
        return report

    async def close(self) -> None:
        """End the conversation, kill what still runs, read the rest of stderr."""
        self.process.close()
        await self.connection.close()
        await self.wait()
