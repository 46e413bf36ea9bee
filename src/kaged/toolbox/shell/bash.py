"""`shell.bash`: one command line, its merged output and its exit code."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from kaged.base import Clock, JsonObject, JsonValue, KagedError, SystemClock
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement
from kaged.toolbox.shell.broker import PtyBroker
from kaged.toolbox.shell.errors import ShellSpawnFailed
from kaged.toolbox.shell.launch import CageLauncher, Command, launch_uncaged
from kaged.tools.definition import PathParam, Tool, ToolDefinition
from kaged.tools.errors import InvalidParams

if TYPE_CHECKING:
    from kaged.cage import CageProcess, Spawner
    from kaged.tools.call import ToolCall

COMMAND_LIMIT_BYTES: Final = 64 * 1024
ENV_LIMIT: Final = 64
TIMEOUT_MS: Final = 120_000
TIMEOUT_RANGE_MS: Final = (1_000, 600_000)
_LOGGED_CHARS: Final = 200

PARAMETERS: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "command": {
            "type": "string",
            "minLength": 1,
            "description": "The command line, run as /bin/sh -c. At most 64 KB.",
        },
        "cwd": {
            "type": "string",
            "default": "./",
            "description": "Where it runs, relative to the project root.",
        },
        "timeout": {
            "type": "integer",
            "default": TIMEOUT_MS,
            "description": "Milliseconds until it is ended, between 1000 and 600000; "
            "values beyond are taken as the nearest of the two.",
        },
        "env": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "maxProperties": ENV_LIMIT,
            "default": {},
            "description": "Variables on top of those that are set anyway.",
        },
    },
    "required": ["command"],
    "additionalProperties": False,
}
RETURNS: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "stdout": {"type": "string"},
        "stderr": {"type": "string", "const": ""},
        "exit_code": {"type": "integer"},
        "timed_out": {"type": "boolean"},
        "truncated": {"type": "boolean"},
        "tail": {"type": "string"},
        "signal": {"type": "integer"},
    },
    "required": ["stdout", "stderr", "exit_code", "timed_out"],
    "additionalProperties": False,
}
DEFINITION: Final = ToolDefinition(
    name="shell.bash",
    namespace="shell",
    description=(
        "Run a shell command (/bin/sh -c) in the project and get its output and exit code. "
        "stdout holds both streams as a terminal shows them; stderr is always empty. A non-zero "
        "exit code is a result, not an error. Nobody can answer questions: standard input is "
        "empty. Background processes end with the command. Output beyond 1 MB is cut; then "
        "`tail` has its last lines. Prefer file.*, edit.* and search.* for files."
    ),
    parameters=PARAMETERS,
    returns=RETURNS,
    requires=(FsRequirement(FsMode.RW), CapabilityRequirement("shell")),
)


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """What the operator sets: `scrub_env` are variables that uncaged commands do not see."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    scrub_env: tuple[str, ...] = ()


def shell_tools(
    broker: PtyBroker,
    spawner: Spawner,
    launcher: CageLauncher | None,
    *,
    settings: ShellSettings | None = None,
    clock: Clock | None = None,
) -> tuple[Tool, ...]:
    """Give the shell's tools. Without a launcher commands of caged callers are refused."""
    bash = _Bash(broker, spawner, launcher, settings or ShellSettings(), clock or SystemClock())
    return (Tool(DEFINITION, bash.run, paths=_paths, changes=True, check=_check),)


class _Bash:
    def __init__(
        self,
        broker: PtyBroker,
        spawner: Spawner,
        launcher: CageLauncher | None,
        settings: ShellSettings,
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._spawner = spawner
        self._launcher = launcher
        self._settings = settings
        self._clock = clock

    async def run(self, call: ToolCall) -> JsonValue:
        """Run one command to its end."""
        args = call.args
        cwd = call.paths[0]
        _require_directory(cwd.resolved, cwd.relative)
        timeout_ms = _clamped(cast("int", args["timeout"]))
        command = Command(
            request_id=call.context.request_id,
            caller=call.context.caller,
            text=cast("str", args["command"]),
            cwd=cwd.resolved,
            env=cast("dict[str, str]", args["env"]),
            session_id=call.context.session_id,
            timeout_s=timeout_ms / 1000,
            identity=call.context.identity,
        )
        began_s = self._clock.monotonic_s()
        session = await self._broker.spawn(command.request_id, lambda: self._start(call, command))
        try:
            ended = await session.finish(timeout_ms / 1000)
        finally:
            await self._broker.dispose(session)
        shown = session.scrollback
        call.emit(
            "shell.executed",
            command=command.text[:_LOGGED_CHARS],
            cwd=cwd.relative,
            exit_code=ended.exit_code,
            timed_out=ended.timed_out,
            duration_ms=round((self._clock.monotonic_s() - began_s) * 1000, 1),
            truncated=shown.truncated,
        )
        result: JsonObject = {
            "stdout": shown.text(),
            "stderr": "",
            "exit_code": ended.exit_code,
            "timed_out": ended.timed_out,
        }
        if shown.truncated:
            result |= {"truncated": True, "tail": shown.tail()}
        if ended.signal is not None:
            result["signal"] = int(ended.signal)
        return result

    async def _start(self, call: ToolCall, command: Command) -> CageProcess:
        policy = call.context.cage_policy
        try:
            if policy is None:
                return await launch_uncaged(
                    self._spawner, command, self._settings.environ, self._settings.scrub_env
                )
            if self._launcher is None:
                raise ShellSpawnFailed(
                    "the shell could not start: cages are not available on this host, and a "
                    "caged agent's commands never run without one",
                    fix="ask the operator to run `kaged doctor`",
                )
            return await self._launcher(policy, command)
        except ShellSpawnFailed:
            raise
        except (KagedError, OSError) as error:
            reason = error.message if isinstance(error, KagedError) else str(error)
            raise ShellSpawnFailed(
                f"the shell could not start: {reason}",
                fix=(error.fix or "") if isinstance(error, KagedError) else "",
                detail={"code": error.code} if isinstance(error, KagedError) else None,
            ) from error


def _paths(args: JsonObject) -> tuple[PathParam, ...]:
    return (PathParam("cwd", cast("str", args["cwd"])),)


def _check(args: JsonObject) -> None:
    command = cast("str", args["command"])
    if not command.strip():
        raise InvalidParams.of_field("command", "is blank")
    if "\0" in command:
        raise InvalidParams.of_field("command", "holds a NUL character")
    size = len(command.encode("utf-8", errors="surrogatepass"))
    if size > COMMAND_LIMIT_BYTES:
        raise InvalidParams.of_field(
            "command",
            f"has {size} bytes, and {COMMAND_LIMIT_BYTES} are allowed",
            fix="write a script into a file and run that",
        )
    for name, value in cast("dict[str, str]", args["env"]).items():
        if not name or "=" in name or "\0" in name:
            raise InvalidParams.of_field("env", f"{name!r} cannot be the name of a variable")
        if "\0" in value:
            raise InvalidParams.of_field("env", f"{name} holds a NUL character")


def _clamped(timeout_ms: int) -> int:
    low, high = TIMEOUT_RANGE_MS
    return min(max(timeout_ms, low), high)


def _require_directory(resolved: str, shown: str) -> None:
    """Say what is wrong with a working directory in the system's own words."""
    try:
        found = os.stat(resolved)  # noqa: PTH116 - a path that passed the guard stays a text
    except OSError as error:
        raise ShellSpawnFailed(
            f"the shell could not start in {shown}: {error.strerror}",
            fix="name a directory that exists",
            detail={"errno": error.errno, "cwd": shown},
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ShellSpawnFailed(
            f"the shell could not start in {shown}: Not a directory",
            fix="name a directory",
            detail={"cwd": shown},
        )


__all__ = ["COMMAND_LIMIT_BYTES", "DEFINITION", "ShellSettings", "shell_tools"]
