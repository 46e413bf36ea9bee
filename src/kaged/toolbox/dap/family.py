"""`Family`: a debug adapter whose programs are sessions of their own, shown as one.

An adapter may ask for a child session for every program it finds (`startDebugging`), each on a
connection of its own with the whole handshake. Threads and stops live in the children. Here they
become one adapter: numbers of threads, frames, variables and breakpoints say whose they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Final, cast

from kaged.base import JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.toolbox.dap.channels import MAX_CHANNELS, Channels
from kaged.toolbox.dap.errors import DapRequestFailed, DapSessionEnded
from kaged.toolbox.dap.numbers import BreakpointList, Numbers
from kaged.toolbox.dap.protocol import REQUEST_LIMIT_S, DapConnection, OnClosed, OnEvent, Taking

EXIT_S: Final = 5.0
_LISTS: Final = frozenset(
    {
        "setBreakpoints",
        "setExceptionBreakpoints",
        "setInstructionBreakpoints",
        "setDataBreakpoints",
    }
)
_ROOTS: Final = frozenset({"initialize", "launch", "attach", "configurationDone", "disconnect"})
_GOING_ON: Final = frozenset({"continue", "next", "stepIn", "stepOut"})
_EXIT_STATUS: Final = re.compile(r"^Process \d+ has exited with status (-?\d+)\s*$")

_log = get_logger(__name__)


@dataclass(slots=True)
class Member:
    """One session of the family; number 0 is the adapter's own."""

    number: int
    connection: DapConnection
    capabilities: JsonObject = field(default_factory=dict)
    initialized: asyncio.Event = field(default_factory=asyncio.Event)
    ready: bool = False


class Family:
    """Takes DAP requests for all sessions behind one adapter, and tells of their events.

    `tells_last` is an adapter that says how the program ended only when it is told goodbye.
    """

    def __init__(self, on_event: OnEvent, on_closed: OnClosed, *, tells_last: bool = False) -> None:
        self._on_event = on_event
        self._tells_last = tells_last
        self._on_closed = on_closed
        self.channels = Channels(self._printed, self._exited, self._lost)
        self._members: dict[int, Member] = {}
        self._numbers = Numbers()
        self._stops: dict[int, JsonObject] = {}
        self._shown = 0  # whose stop was told last
        self._greeting: JsonObject = {}
        self.runs_program = False  # started by us, beside the adapter, to end with it
        self._exit_known = asyncio.Event()
        self._ending = False
        self._over = False
        self._gone = False
        self._tasks = Tasks("debug sessions", _failed)
        self._root = self._join()

    # -- what a session talks to -----------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._root.connection.is_open

    async def request(
        self,
        command: str,
        arguments: JsonObject | None = None,
        limit_s: float = REQUEST_LIMIT_S,
        taking: Taking | None = None,
    ) -> JsonObject:
        """Ask whichever session is meant. Raises DapRequestFailed and DapSessionEnded."""
        given = arguments
        if command == "initialize":
            given = {
                **(arguments or {}),
                "supportsRunInTerminalRequest": True,
                "supportsStartDebuggingRequest": True,
            }
            self._greeting = given
        if command in _ROOTS:
            return await self._root.connection.request(command, given, limit_s, taking)
        if command in _LISTS:
            return await self._tell_all(command, arguments or {}, limit_s, taking)
        if command == "threads":
            return await self._all_threads(limit_s)
        whose, asked = self._numbers.addressed(arguments or {})
        member = self._speaker() if whose is None else self._member(whose)
        if command in _GOING_ON:
            self._stops.pop(member.number, None)
        answer = await member.connection.request(command, asked if arguments else None, limit_s)
        body = self._numbers.marked(member.number, answer)
        if taking is not None:
            taking(body)
        if command == "continue" and self._stops and member.number not in self._stops:
            # Another program is held meanwhile, and would be for ever.
            self._show_stop()
        return body

    async def close(self) -> None:
        """Let go of every connection; open requests fail."""
        await self._tasks.close()
        for member in list(self._members.values()):
            await member.connection.close()
        self.channels.close()

    # -- asking ----------------------------------------------------------------------------------

    async def _tell_all(
        self, command: str, arguments: JsonObject, limit_s: float, taking: Taking | None
    ) -> JsonObject:
        """Send a list to all; the answer of the one that runs the program counts."""
        numbers = self._numbers.new_list(command, arguments)
        speaker = self._speaker()
        for member in list(self._members.values()):
            if member is not speaker and (member.ready or member.number == 0):
                with contextlib.suppress(DapRequestFailed, DapSessionEnded):
                    taken = self._numbers.taking(member.number, numbers)
                    await member.connection.request(command, arguments, limit_s, taken)
        answered: JsonObject = {}
        taken = self._numbers.taking(speaker.number, numbers, answered, taking)
        await speaker.connection.request(command, arguments, limit_s, taken)
        return answered

    async def _all_threads(self, limit_s: float) -> JsonObject:
        children = [one for one in self._members.values() if one.number and one.ready]
        found: list[JsonValue] = []
        for member in children or [self._root]:
            body = await member.connection.request("threads", None, limit_s)
            listed = body.get("threads")
            for one in listed if isinstance(listed, list) else []:
                number = one.get("id") if isinstance(one, dict) else None
                if isinstance(one, dict) and type(number) is int:
                    found.append({**one, "id": self._numbers.thread(member.number, number)})
        return {"threads": found}

    def _speaker(self) -> Member:
        """Return the session that runs the program: the first child, or the adapter's own."""
        for number in sorted(self._members):
            if number and self._members[number].ready:
                return self._members[number]
        return self._root

    def _member(self, number: int) -> Member:
        found = self._members.get(number)
        if found is None:
            raise DapRequestFailed("that program has ended", fix="ask for the threads again")
        return found

    # -- hearing ---------------------------------------------------------------------------------

    def _heard(self, member: Member, event: str, body: JsonObject) -> None:
        if event == "output":
            self._look_for_exit(body)
        elif event == "breakpoint":
            told = self._numbers.renumbered(member.number, body.get("breakpoint"))
            body = {**body, "breakpoint": told}
        elif event in ("stopped", "continued", "thread"):
            body = self._numbers.placed(member.number, body)
            self._note_stop(member, event, body)
            if event == "continued" and self._stops:
                # Not all go on: a program that is held stays what is talked about.
                if self._shown not in self._stops:
                    self._show_stop()
                return
        if member.number == 0:
            if event == "terminated":
                self._ending = True
                self._tasks.start(self._end(), "end of the program")
            else:
                self._on_event(event, body)
            return
        match event:
            case "initialized":
                member.initialized.set()
            case "terminated" | "exited":
                self._forget(member)
            case "capabilities":
                more = body.get("capabilities")
                member.capabilities |= more if isinstance(more, dict) else {}
                self._on_event(event, body)
            case _:
                self._on_event(event, body)

    def _note_stop(self, member: Member, event: str, body: JsonObject) -> None:
        if event == "stopped":
            self._stops.pop(member.number, None)
            self._stops[member.number] = body
            self._shown = member.number
        elif event == "continued":
            self._stops.pop(member.number, None)

    def _show_stop(self) -> None:
        """Report the program that was stopped last."""
        self._shown = next(reversed(self._stops))
        self._on_event("stopped", self._stops[self._shown])

    def _look_for_exit(self, body: JsonObject) -> None:
        """Take delve's word for how the program ended: it has no event for that."""
        found = _EXIT_STATUS.match(str(body.get("output", "")))
        if found and body.get("category") == "console":
            self._on_event("exited", {"exitCode": int(found[1])})

    def _printed(self, stream: str, text: str) -> None:
        self._on_event("output", {"category": stream, "output": text})

    def _exited(self, code: int) -> None:
        self.runs_program = False
        self._on_event("exited", {"exitCode": code})
        self._exit_known.set()
        self._end_once()

    async def _end(self) -> None:
        """Report the end, once it is known how the program ended, or the time is up."""
        if self._tells_last:
            with contextlib.suppress(DapRequestFailed, DapSessionEnded):
                await self._root.connection.request("disconnect", {}, EXIT_S)
        elif self.runs_program:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exit_known.wait(), EXIT_S)
        self._end_once()

    def _end_once(self) -> None:
        if not self._over:
            self._over = True
            self._on_event("terminated", {})

    def _lost(self) -> None:
        if not self._gone:
            self._gone = True
            if self._ending:
                self._end_once()  # delve may leave before it is asked for its last words
            self._on_closed()

    # -- children --------------------------------------------------------------------------------

    def _join(self) -> Member:
        number = max(self._members, default=-1) + 1
        connection = DapConnection(
            lambda event, body: self._heard(member, event, body),
            self._asked,
            lambda: self._left(member),
        )
        member = Member(number, connection)
        connection.write_to(self.channels.open(connection))
        self._members[number] = member
        return member

    def _left(self, member: Member) -> None:
        if member.number == 0:
            self._lost()
        else:
            self._forget(member)

    def _forget(self, member: Member) -> None:
        if self._members.pop(member.number, None) is None:
            return
        self._numbers.forget(member.number)
        if self._stops.pop(member.number, None) is not None and self._shown == member.number:
            # What was stopped is no more.
            if self._stops:
                self._show_stop()
            else:
                self._on_event("continued", {})
        self._tasks.start(member.connection.close(), f"end of session {member.number}")

    async def _asked(self, command: str, arguments: JsonObject) -> JsonObject:
        """Answer what an adapter asks: a program to start, or another session."""
        answers: dict[str, Callable[[JsonObject], Awaitable[JsonObject]]] = {
            "startDebugging": self._start_debugging,
            "runInTerminal": self._run_in_terminal,
        }
        answer = answers.get(command)
        if answer is None:
            raise DapRequestFailed(f"{command} is not offered by this client")
        return await answer(arguments)

    async def _run_in_terminal(self, arguments: JsonObject) -> JsonObject:
        args, env = arguments.get("args"), arguments.get("env")
        if not isinstance(args, list) or not args or not all(isinstance(one, str) for one in args):
            raise DapRequestFailed("there is no program to run")
        self.runs_program = True
        try:
            pid = await self.channels.run(
                cast("list[str]", args),
                str(arguments.get("cwd") or ""),
                env if isinstance(env, dict) else {},
            )
        except DapRequestFailed:
            self.runs_program = False
            raise
        return {"processId": pid}

    async def _start_debugging(self, arguments: JsonObject) -> JsonObject:
        request, configuration = arguments.get("request"), arguments.get("configuration")
        if request not in ("launch", "attach") or not isinstance(configuration, dict):
            raise DapRequestFailed("that is no session to start")
        if len(self._members) >= MAX_CHANNELS:
            raise DapRequestFailed("there are too many debug sessions")
        member = self._join()
        self._tasks.start(
            self._shake_hands(member, request, configuration), f"session {member.number}"
        )
        return {}

    async def _shake_hands(self, member: Member, request: str, configuration: JsonObject) -> None:
        connection = member.connection
        try:
            await connection.request(
                "initialize", dict(self._greeting), REQUEST_LIMIT_S, member.capabilities.update
            )
            launching = self._tasks.start(
                connection.request(request, configuration), f"{request} of {member.number}"
            )
            waiting = self._tasks.start(member.initialized.wait(), f"opening of {member.number}")
            await asyncio.wait(
                {launching, waiting}, timeout=REQUEST_LIMIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            waiting.cancel()
            await self._catch_up(member)
            if member.capabilities.get("supportsConfigurationDoneRequest") is True:
                await connection.request("configurationDone")
            await launching
        except (DapRequestFailed, DapSessionEnded) as error:
            _log.info("dap.child_failed", error=error.message)
            self._forget(member)

    async def _catch_up(self, member: Member) -> None:
        """Send every list to a new session; its answers update the breakpoints."""
        lists = self._numbers.lists
        told: dict[tuple[str, str], BreakpointList] = {}
        while behind := [key for key, kept in lists.items() if told.get(key) is not kept]:
            for key in behind:
                told[key] = kept = lists[key]
                said: JsonObject = {}
                taken = self._numbers.taking(member.number, kept.numbers, said)
                try:
                    await member.connection.request(key[0], kept.arguments, REQUEST_LIMIT_S, taken)
                except DapRequestFailed as error:
                    _log.debug("dap.child_refused", command=key[0], error=error.message)
                for one in cast("list[JsonValue]", said.get("breakpoints", [])):
                    self._on_event("breakpoint", {"reason": "changed", "breakpoint": one})
        member.ready = True


def _failed(name: str, error: BaseException) -> None:
    _log.debug("dap.task_ended", task=name, error=repr(error))
