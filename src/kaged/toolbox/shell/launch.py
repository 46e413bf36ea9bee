"""How a command is started: in its caller's cage, or with the daemon's own powers when it has none.

There is no third way: a caged caller without a launcher gets an error, never a process.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.cage import (
    CageKind,
    CageProcess,
    CageRequest,
    HostMount,
    Pipes,
    Pty,
    Spawner,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.gate_port import AskHost, Service
from kaged.cage.orphan_processes import MARK, mark_value
from kaged.cage.toolchains.kit import path_with
from kaged.credentials.cage_kit import NOTHING, CageKit, with_kit
from kaged.kernel.identity import Actor
from kaged.kernel.policy import CagePolicy

TERMINAL: Final = Pty(rows=50, cols=120, keys=False)
PLAIN: Final = Pipes(merge_stderr=True, stdin=False)
"""One pipe for both streams, so that their order stays; a terminal moves 4 KB at a time."""

QUIET: Final = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
}
"""What keeps programs from asking questions and painting, for a reader that is no person."""

OWN_VARIABLES: Final = (
    *("KAGED_READY_FD", "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID"),
    *("ASH_CONTEXT_TOKEN*", "ASH_RPC_*"),
)
"""The daemon's own business, which no child has a part in."""


@dataclass(frozen=True, slots=True)
class RunningSkill:
    """The skill that a command runs for, and the account capabilities that it may use.

    `folder` is where the daemon keeps the files that run.
    """

    name: str
    capabilities: tuple[str, ...]
    folder: str


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command to start: where, with which variables on top, for whom.

    With a `skill` the host itself chose the program, which is the whole command; `text` says what
    it is.
    """

    request_id: str
    caller: str
    text: str
    cwd: str
    env: Mapping[str, str]
    session_id: str = ""
    project_id: str = ""
    timeout_s: float = 0.0
    identity: Actor | None = None
    program: tuple[str, ...] = ("/bin/sh", "-c")
    tool_name: str = "shell.bash"
    skill: RunningSkill | None = None
    terminal: bool = True
    ask_host: AskHost | None = None

    @property
    def stdio(self) -> Pty | Pipes:
        """What its standard streams are."""
        return TERMINAL if self.terminal else PLAIN

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return self.program if self.skill is not None else (*self.program, self.text)


CageLauncher: TypeAlias = Callable[[CagePolicy, ShellCommand], Awaitable[CageProcess]]
"""Starts a command inside the cage of a policy, with the standard streams that it names."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What the host itself adds to the cage of one command.

    `env` wins over whatever the command or the policy sets, the variables of the `kit` of
    credentials over that; `usual_env` is what both of them may set otherwise. `path_dirs` go to the
    end of PATH, `first_dirs` to its beginning.
    """

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[HostMount, ...] = ()
    usual_env: tuple[tuple[str, str], ...] = ()
    path_dirs: tuple[str, ...] = ()
    first_dirs: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    kit: CageKit = NOTHING


Attach: TypeAlias = Callable[[CagePolicy, ShellCommand], Attachment]
"""Asked before each caged command what to add; most get nothing."""


def caged_launcher(
    spawner: Spawner, attach: Attach = lambda _policy, _command: Attachment()
) -> CageLauncher:
    """Return the launcher that every caged caller's commands go through."""

    async def launch(policy: CagePolicy, command: ShellCommand) -> CageProcess:
        added = attach(policy, command)
        kit = added.kit
        return await spawner.spawn(
            CageRequest(
                f"shell {command.caller}",
                with_kit(policy, kit),
                command.argv,
                kind=CageKind.AGENT,
                cwd=command.cwd,
                env=(*QUIET.items(), *added.usual_env),
                fixed_env=(
                    *command.env.items(),
                    *path_with(
                        added.first_dirs, policy, added.path_dirs, command.env.get("PATH", "")
                    ),
                    *added.env,
                    *kit.env,
                ),
                mounts=added.mounts,
                services=added.services,
                files=kit.files,
                bound=kit.bound,
                stdio=command.stdio,
                ask_host=command.ask_host,
            )
        )

    return launch


async def launch_uncaged(
    spawner: Spawner, command: ShellCommand, environ: Mapping[str, str], scrub: tuple[str, ...]
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
            Uncaged(f"{command.tool_name} of an agent without a cage"),
            command.argv,
            cwd=command.cwd,
            env=tuple(env.items()),
            stdio=command.stdio,
        )
    )
