"""`shell.bash`: one command line, its merged output and its exit code; `shell.python` and more."""

from __future__ import annotations

import os
import stat
from dataclasses import field, replace
from functools import partial
from typing import Final, cast

from kaged.base import Clock, JsonObject, JsonValue, KagedError, SystemClock
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageProcess, Spawner
from kaged.toolbox.shell.background import BackgroundCommands
from kaged.toolbox.shell.broker import CommandExit, PtyBroker, PtySession, ShellSpawnFailed
from kaged.toolbox.shell.interpreters import (
    MORE_INTERPRETERS,
    SHELL,
    TIMEOUT_RANGE_MS,
    Interpreter,
    ShellSettings,
    definition_of,
)
from kaged.toolbox.shell.launch import CageLauncher, ShellCommand, launch_uncaged
from kaged.tools import InvalidToolParams, Tool, ToolInvocation, one_path

COMMAND_LIMIT_BYTES: Final = 64 * 1024
_LISTED_PATHS: Final = 20
_LOGGED_CHARS: Final = 200


def shell_tools(runner: CommandRunner) -> tuple[Tool, ...]:
    """Return the shell's tools. Without a launcher commands of caged callers are refused."""
    chosen = runner.settings
    return tuple(
        Tool(
            definition_of(one, chosen),
            _Bash(one, runner).run,
            paths=one_path("cwd"),
            changes=True,
            check=partial(_check, argument=one.argument),
        )
        for one in (SHELL, *(MORE_INTERPRETERS[name] for name in chosen.interpreters))
    )


@dataclass(frozen=True, slots=True)
class _Bash:
    _interpreter: Interpreter
    _runner: CommandRunner

    async def run(self, call: ToolInvocation) -> JsonValue:
        """Run one command to its end."""
        args = call.args
        cwd = call.paths[0]
        timeout_ms = self._runner.timeout_ms(cast("int", args["timeout"]))
        command = ShellCommand(
            request_id=call.context.request_id,
            caller=call.context.caller,
            text=cast("str", args[self._interpreter.argument]),
            cwd=cwd.resolved,
            env=cast("dict[str, str]", args["env"]),
            session_id=call.context.session_id,
            project_id=call.context.project_id,
            timeout_s=timeout_ms / 1000,
            identity=call.context.identity,
            program=self._interpreter.program,
            tool_name=self._interpreter.tool_name,
            terminal=cast("bool", args["terminal"]),
            ask_host=call.context.ask_host,
        )
        said: JsonObject = {"command": command.text[:_LOGGED_CHARS], "cwd": cwd.relative}
        if args["background"]:
            return await self._runner.begin(call, command, said)
        return await self._runner.run(call, command, "shell.executed", said)


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """Runs commands of agents to their end, on terminals, caged as their callers are."""

    broker: PtyBroker
    spawner: Spawner
    launcher: CageLauncher | None
    settings: ShellSettings = field(default_factory=ShellSettings)
    clock: Clock = field(default_factory=SystemClock)
    background: BackgroundCommands | None = None

    def timeout_ms(self, wanted_ms: int) -> int:
        """Return how long a command may take that asks for so much."""
        return min(max(wanted_ms, TIMEOUT_RANGE_MS[0]), self.settings.longest_ms)

    async def run(
        self, call: ToolInvocation, command: ShellCommand, event: str, said: JsonObject
    ) -> JsonObject:
        """Run one command to its end; the audit event `event` says `said` and how it ended.

        Raises:
            ShellSpawnFailed: it could not be started.
        """
        _require_directory(command.cwd, call.paths[0].relative)
        began_s = self.clock.monotonic_s()
        session = await self.broker.spawn(
            command.request_id, lambda: self._start(call, command), terminal=command.terminal
        )
        try:
            ended = await session.finish(command.timeout_s)
        finally:
            await self.broker.dispose(session)
        shown = session.scrollback
        call.emit(
            event,
            **said,
            exit_code=ended.exit_code,
            timed_out=ended.timed_out,
            duration_ms=round((self.clock.monotonic_s() - began_s) * 1000, 1),
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
        return result | _protected(session.process)

    async def begin(
        self, call: ToolInvocation, command: ShellCommand, said: JsonObject
    ) -> JsonObject:
        """Start a command in the background; returns its handle.

        Nobody is asked for hosts while it runs: the run that could ask may be over.

        Raises:
            ShellSpawnFailed: it could not be started.
            ToolError: `too_many_commands`; as many of the session run as may.
        """
        kept = self.background
        if kept is None:
            raise ShellSpawnFailed("the shell could not start: nothing runs in the background here")
        kept.require_room(call)
        _require_directory(command.cwd, call.paths[0].relative)
        command = replace(command, timeout_s=self.settings.background_s, ask_host=None)
        began_s = self.clock.monotonic_s()
        session = await self.broker.spawn(
            command.request_id, lambda: self._start(call, command), terminal=command.terminal
        )

        def ended(session: PtySession, end: CommandExit) -> None:
            call.emit(
                "shell.executed",
                **said,
                exit_code=end.exit_code,
                timed_out=end.timed_out,
                duration_ms=round((self.clock.monotonic_s() - began_s) * 1000, 1),
                truncated=session.scrollback.truncated,
            )

        made = kept.keep(call, session, command.text, command.timeout_s, ended, self.broker.dispose)
        call.emit("shell.backgrounded", **said, handle=made.handle)
        return {"stdout": "", "stderr": "", "handle": made.handle}

    async def _start(self, call: ToolInvocation, command: ShellCommand) -> CageProcess:
        policy = call.context.cage_policy
        try:
            if policy is None:
                return await launch_uncaged(
                    self.spawner, command, self.settings.environ, self.settings.scrub_env
                )
            if self.launcher is None:
                raise ShellSpawnFailed(
                    "the shell could not start: cages are not available on this host, and a "
                    "caged agent's commands never run without one",
                    fix="ask the operator to run `kaged doctor`",
                )
            return await self.launcher(policy, command)
        except ShellSpawnFailed:
            raise
        except (KagedError, OSError) as error:
            reason = error.message if isinstance(error, KagedError) else str(error)
            raise ShellSpawnFailed(
                f"the shell could not start: {reason}",
                fix=(error.fix or "") if isinstance(error, KagedError) else "",
                detail={"code": error.code} if isinstance(error, KagedError) else None,
            ) from error


def _protected(process: CageProcess) -> JsonObject:
    """Return what the agent is told about protected paths that its command wrote."""
    found = process.findings
    said: JsonObject = {}
    if found.taken_back:
        taken: list[JsonValue] = [
            {
                "path": one.path,
                "reason": one.reason,
                **({"keys": list(one.keys)} if one.keys else {}),
            }
            for one in found.taken_back[:_LISTED_PATHS]
        ]
        said["taken_back"] = taken
    if found.changed:
        changed: list[JsonValue] = [
            {"path": one.path, "why": one.why} for one in found.changed[:_LISTED_PATHS]
        ]
        said["to_review"] = changed
    return said


def _check(args: JsonObject, *, argument: str) -> None:
    command = cast("str", args[argument])
    if not command.strip():
        raise InvalidToolParams.of_field(argument, "is blank")
    if "\0" in command:
        raise InvalidToolParams.of_field(argument, "holds a NUL character")
    size = len(command.encode("utf-8", errors="surrogatepass"))
    if size > COMMAND_LIMIT_BYTES:
        raise InvalidToolParams.of_field(
            argument,
            f"has {size} bytes, and {COMMAND_LIMIT_BYTES} are allowed",
            fix="write a script into a file and run that",
        )
    for name, value in cast("dict[str, str]", args["env"]).items():
        if not name or "=" in name or "\0" in name:
            raise InvalidToolParams.of_field("env", f"{name!r} cannot be the name of a variable")
        if "\0" in value:
            raise InvalidToolParams.of_field("env", f"{name} holds a NUL character")


def _require_directory(resolved: str, shown: str) -> None:
    """Raise with the system's own words for what is wrong with a working directory."""
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
