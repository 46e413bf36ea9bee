"""`build_program`: the command that makes a compiled program, run before the debugger starts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from kaged.base import JsonValue, KagedError
from kaged.cage import CageProcess
from kaged.cage.collect import Collected, collect
from kaged.cage.orphan_processes import end_orphans
from kaged.toolbox.dap.adapters import BUILD_S, AdapterPlan, Kind
from kaged.toolbox.dap.errors import DapRequestFailed

OUTPUT_CHARS: Final = 4000
OUTPUT_BYTES: Final = 4 * 1024 * 1024

Start = Callable[[AdapterPlan, str], Awaitable[CageProcess]]
"""Starts a command with the powers of the caller; the text marks what it leaves behind."""


async def build_program(
    start: Start, command: Sequence[str], env: Mapping[str, str], limit_s: float = BUILD_S
) -> None:
    """Run a build to its end: in the caller's cage, without a shell.

    Raises DapRequestFailed with the end of its output when it fails or takes too long; nothing of
    it goes on then.
    """
    plan = AdapterPlan(
        "build", "build", Kind.DAP, tuple(command), requires_ptrace=False, env=tuple(env.items())
    )
    mark = f"build_{secrets.token_hex(16)}"
    process: CageProcess | None = None
    try:
        async with asyncio.timeout(limit_s):
            process = await start(plan, mark)
            ended = await collect(process, limit_bytes=OUTPUT_BYTES)
    except TimeoutError as error:
        raise DapRequestFailed(
            f"the build did not end within {limit_s:g} seconds; the debugger was not started",
            fix="build with shell.bash first and leave `build` out",
        ) from error
    except KagedError as error:
        raise DapRequestFailed(
            f"the build did not start: {error.message}", fix=error.fix or ""
        ) from error
    finally:
        if process is not None and not process.caged:
            await asyncio.to_thread(end_orphans, mark)
    if ended.report.exit_code != 0:
        raise _failed(ended)


def _failed(ended: Collected) -> DapRequestFailed:
    said = (ended.stdout + ended.stderr).decode("utf-8", "replace").strip()[-OUTPUT_CHARS:]
    code: JsonValue = ended.report.exit_code
    return DapRequestFailed(
        f"the build failed with exit code {code}; the debugger was not started: {said}",
        fix="mend what it says and launch again",
        detail={"exit_code": code, "output": said},
    )
