"""`AdapterProcess`: a debug adapter as a child, caged as its caller or with the daemon's powers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self, TypeAlias

import structlog

from kaged.base import KagedError
from kaged.cage import (
    CageKind,
    CageProcess,
    CageRequest,
    HostMount,
    Spawner,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.orphan_processes import MARK, mark_value
from kaged.kernel.policy import CagePolicy
from kaged.peer import StderrTail
from kaged.toolbox.dap.adapters import AdapterPlan
from kaged.toolbox.dap.channels import Channels
from kaged.toolbox.dap.errors import DapAdapterNotFound
from kaged.toolbox.dap.protocol import DapConnection

TERM_GRACE_S: Final = 1.0

CageLauncher: TypeAlias = Callable[[CagePolicy, AdapterPlan, str], Awaitable[CageProcess]]
"""Starts an adapter inside the cage of a policy, in a working directory."""

_log = structlog.get_logger(__name__)


def caged_launcher(spawner: Spawner) -> CageLauncher:
    """Return the launcher that every caged caller's adapters go through."""

    async def launch(policy: CagePolicy, plan: AdapterPlan, cwd: str) -> CageProcess:
        return await spawner.spawn(
            CageRequest(
                f"debug {plan.runtime}",
                policy,
                plan.argv,
                kind=CageKind.AGENT,
                cwd=cwd,
                fixed_env=plan.env,
                mounts=tuple(HostMount(source, dest) for source, dest in plan.mounts),
            )
        )

    return launch


async def launch_uncaged(
    spawner: Spawner, plan: AdapterPlan, cwd: str, environ: Mapping[str, str], mark: str
) -> CageProcess:
    """Start an adapter for a caller without a cage, in the daemon's environment."""
    return await spawner.spawn(
        UncagedRequest(
            f"debug {plan.runtime}",
            Uncaged("the debugger of an agent without a cage"),
            plan.argv,
            cwd=cwd,
            env=tuple({**environ, **dict(plan.env), MARK: mark_value(mark)}.items()),
        )
    )


class AdapterProcess:
    """An adapter that runs, with its conversation and the tail of its stderr."""

    def __init__(
        self,
        process: CageProcess,
        hang_up: Callable[[], Awaitable[None]],
        stderr: StderrTail,
        mark: str,
    ) -> None:
        self.process = process
        self.mark = mark
        self.stderr = stderr
        self._hang_up = hang_up

    @classmethod
    async def start(
        cls,
        start: Callable[[], Awaitable[CageProcess]],
        plan: AdapterPlan,
        stream: DapConnection | Channels,
        hang_up: Callable[[], Awaitable[None]],
        mark: str,
    ) -> Self:
        """Start an adapter and let `stream` speak over its standard streams.

        Raises DapAdapterNotFound when it could not be started.
        """
        try:
            process = await start()
        except KagedError as error:
            raise DapAdapterNotFound(
                f"the debug adapter for {plan.runtime} did not start: {error.message}",
                fix=error.fix or "",
                detail={"runtime": plan.runtime, "command": list(plan.argv), "install": None},
            ) from error
        try:
            tail = StderrTail(lambda line: _log.debug("dap.stderr", line=line[:500]))
            await process.connect_stderr(lambda: tail)
            writer, _ = await process.connect_stdin(asyncio.BaseProtocol)
            stream.write_to(writer)
            await process.connect_stdout(lambda: stream)
        except BaseException:
            process.close()
            raise
        return cls(process, hang_up, tail, mark)

    async def end(self) -> int | None:
        """Close the conversation and end the adapter with all its children; returns its exit code.

        Closing first: some adapters live until their input ends.
        """
        await self._hang_up()
        report = await self.process.stop(term_grace_s=TERM_GRACE_S)
        self.process.close()
        return report.exit.exit_code
