"""How a command is started: in its caller's cage, or with the daemon's own powers when it has none.

There is no third way: a caged caller without a launcher gets an error, never a process.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kaged.cage import (
    CageKind,
    CageProcess,
    CageRequest,
    Pty,
    Spawner,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.stragglers import MARK, mark_value
from kaged.kernel.policy import CagePolicy

TERMINAL: Final = Pty(rows=50, cols=120, keys=False)
QUIET: Final = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}
"""What keeps programs from asking questions and painting, for a reader that is no person."""

OWN_VARIABLES: Final = ("KAGED_READY_FD", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID")
"""The daemon's own business, which no child has a part in."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command to start: where, with which variables on top, for whom."""

    request_id: str
    caller: str
    text: str
    cwd: str
    env: Mapping[str, str]

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return ("/bin/sh", "-c", self.text)


CageLauncher: TypeAlias = Callable[[CagePolicy, Command], Awaitable[CageProcess]]
"""Starts a command inside the cage of a policy, on a terminal."""


def caged_launcher(spawner: Spawner) -> CageLauncher:
    """Give the launcher that every caged caller's commands go through."""

    async def launch(policy: CagePolicy, command: Command) -> CageProcess:
        return await spawner.spawn(
            CageRequest(
                f"shell {command.caller}",
                policy,
                command.argv,
                kind=CageKind.AGENT,
                cwd=command.cwd,
                env=tuple(QUIET.items()),
                fixed_env=tuple(command.env.items()),
                stdio=TERMINAL,
            )
        )

    return launch


async def launch_uncaged(
    spawner: Spawner, command: Command, environ: Mapping[str, str], scrub: tuple[str, ...]
) -> CageProcess:
    """Start a command of a caller without a cage, in the daemon's environment.

    `scrub` are names or globs of variables that stay behind.
    """
    hidden = (*OWN_VARIABLES, *scrub)
    kept = {
        name: value
        for name, value in environ.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in hidden)
    }
    env = {**kept, **QUIET, "PWD": command.cwd, **command.env, MARK: mark_value(command.request_id)}
    env.setdefault("PATH", os.defpath)
    return await spawner.spawn(
        UncagedRequest(
            f"shell {command.caller}",
            Uncaged("shell.bash of an agent without a cage"),
            command.argv,
            cwd=command.cwd,
            env=tuple(env.items()),
            stdio=TERMINAL,
        )
    )


__all__ = ["CageLauncher", "Command", "caged_launcher", "launch_uncaged"]
