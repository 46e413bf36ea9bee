"""`BackgroundCommands`: commands that go on after their call, known by a handle.

They belong to the agent of the session that started them, and to nobody else. They outlive turns
and runs; they end with their session, their project, their time, and the daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from kaged.base import Clock, Ids, JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.shell.broker import CommandExit, PtySession
from kaged.tools import ToolError, ToolInvocation

MAX_RUNNING: Final = 8
"""How many commands of one session run in the background at a time."""

MAX_KEPT: Final = 32
"""How many of a session are remembered, those that have ended among them."""

MAX_WAIT_S: Final = 60.0
COMMAND_CHARS: Final = 200

_Owner: TypeAlias = tuple[str, str, str]
OnEnd: TypeAlias = Callable[[PtySession, CommandExit], None]


class NoSuchCommand(ToolError):
    """The agent has no background command of this handle in its session."""

    code = "command_not_found"


@dataclass(eq=False)
class BackgroundCommand:
    """One of them. `ended` is how, once it has."""

    handle: str
    owner: _Owner
    text: str
    began_s: float
    session: PtySession
    over: asyncio.Future[None]
    ended: CommandExit | None = None
    stopped: bool = False

    def as_json(self, now_s: float) -> JsonObject:
        """Return it for the agent."""
        found: JsonObject = {
            "handle": self.handle,
            "command": self.text,
            "running": self.ended is None,
            "seconds": round(now_s - self.began_s, 1),
            "output_bytes": self.session.scrollback.size,
        }
        if self.ended is not None:
            found |= {"exit_code": self.ended.exit_code, "timed_out": self.ended.timed_out}
            found["stopped"] = self.stopped
        return found


class BackgroundCommands:
    """Keeps background commands, and ends them."""

    def __init__(self, ids: Ids, clock: Clock) -> None:
        self._ids = ids
        self._clock = clock
        self._commands: dict[str, BackgroundCommand] = {}
        self._tasks = Tasks("background commands")

    async def close(self) -> None:
        """End every command."""
        await self._tasks.close()

    def require_room(self, call: ToolInvocation) -> None:
        """Refuse one more than a session may have. Raises `too_many_commands`."""
        session = call.context.session_id
        running = [
            one for one in self._commands.values() if one.owner[1] == session and one.ended is None
        ]
        if len(running) >= MAX_RUNNING:
            raise ToolError(
                f"{MAX_RUNNING} commands of this session run in the background already",
                code="too_many_commands",
                fix="stop one with shell.jobs",
            )

    def keep(
        self,
        call: ToolInvocation,
        session: PtySession,
        text: str,
        timeout_s: float,
        on_end: OnEnd,
        dispose: Callable[[PtySession], Awaitable[None]],
    ) -> BackgroundCommand:
        """Let a command that was started go on; returns it with its handle.

        After its end `on_end` is told, and `dispose` lets go of it.
        """
        made = BackgroundCommand(
            self._ids.tagged("cmd"),
            _owner(call),
            text[:COMMAND_CHARS],
            self._clock.monotonic_s(),
            session,
            asyncio.get_running_loop().create_future(),
        )
        self._commands[made.handle] = made
        self._forget_oldest(made.owner[1])
        self._tasks.start(self._watch(made, timeout_s, on_end, dispose), made.handle)
        return made

    def list(self, call: ToolInvocation) -> list[JsonValue]:
        """Return the commands of the calling agent's session, the newest last."""
        now_s, owner = self._clock.monotonic_s(), _owner(call)
        mine = (one for one in self._commands.values() if one.owner == owner)
        return [one.as_json(now_s) for one in mine]

    async def read(
        self, call: ToolInvocation, handle: str, offset: int, limit: int, wait_s: float
    ) -> JsonObject:
        """Return a part of what a command has written, by bytes; waits for its end that long.

        Raises:
            NoSuchCommand: the agent has none of this handle.
        """
        found = self._find(call, handle)
        await self._over_within(found, min(wait_s, MAX_WAIT_S))
        text, following = found.session.scrollback.part(
            offset, limit, final=found.ended is not None
        )
        shown: JsonObject = {
            **found.as_json(self._clock.monotonic_s()),
            "output": text,
            "next_offset": following,
        }
        if found.session.scrollback.truncated:
            shown |= {"truncated": True, "tail": found.session.scrollback.tail()}
        return shown

    async def stop(self, call: ToolInvocation, handle: str) -> JsonObject:
        """End a command with everything it started. Raises NoSuchCommand."""
        found = self._find(call, handle)
        if found.ended is None:
            found.stopped = True
            await found.session.end()
            await self._over_within(found, MAX_WAIT_S)
        return found.as_json(self._clock.monotonic_s())

    # -- what ends them ----------------------------------------------------------------------------

    def session_ended(self, session_id: str) -> None:
        """End the commands of a session that is gone, and forget them."""
        self._drop([one for one in self._commands.values() if one.owner[1] == session_id])

    def project_unloaded(self, project_id: str) -> None:
        """End the commands of a project that is gone, or not trusted any more."""
        self._drop([one for one in self._commands.values() if one.owner[0] == project_id])

    # -- own ---------------------------------------------------------------------------------------

    def _find(self, call: ToolInvocation, handle: str) -> BackgroundCommand:
        found = self._commands.get(handle)
        if found is None or found.owner != _owner(call):
            # Another agent's and an unknown one look the same.
            raise NoSuchCommand(
                f"there is no background command {handle[:80]!r} in this session",
                fix="shell.jobs with action list shows those that there are",
            )
        return found

    async def _over_within(self, found: BackgroundCommand, seconds: float) -> None:
        if found.ended is None and seconds > 0:
            await asyncio.wait({found.over}, timeout=seconds)

    async def _watch(
        self,
        made: BackgroundCommand,
        timeout_s: float,
        on_end: OnEnd,
        dispose: Callable[[PtySession], Awaitable[None]],
    ) -> None:
        try:
            made.ended = await made.session.finish(timeout_s)
            on_end(made.session, made.ended)
        finally:
            await dispose(made.session)
            if not made.over.done():
                made.over.set_result(None)

    def _drop(self, gone: list[BackgroundCommand]) -> None:
        for one in gone:
            del self._commands[one.handle]
            if one.ended is None:
                one.stopped = True
                self._tasks.start(one.session.end(), f"end {one.handle}")

    def _forget_oldest(self, session_id: str) -> None:
        kept = [one for one in self._commands.values() if one.owner[1] == session_id]
        over = [one for one in kept if one.ended is not None]
        for one in over[: max(0, len(kept) - MAX_KEPT)]:
            del self._commands[one.handle]


def _owner(call: ToolInvocation) -> _Owner:
    context = call.context
    return context.project_id, context.session_id, context.caller
