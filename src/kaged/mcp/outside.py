"""`OutsideServer`: one server that `[mcp.servers.*]` names, kept running and held to its word."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.base.log import get_logger
from kaged.cage import ExitReport
from kaged.mcp.catalog import OutsideTool
from kaged.mcp.content import parse_content
from kaged.mcp.conversation import McpConversation
from kaged.mcp.errors import McpAnswerInvalid, McpCallFailed, McpServerUnavailable
from kaged.mcp.plan import OutsideParts, OutsidePlan
from kaged.mcp.progress import PROGRESS
from kaged.mcp.relay import HEADERS
from kaged.mcp.states import OFFERING, McpServerState
from kaged.mcp.texts import one_line
from kaged.mcp.tool_table import McpToolTable
from kaged.peer import Again, PeerTimeout, RestartPolicy
from kaged.wire.errors import RpcError

LOG_LINES: Final = 200
RELIST_S: Final = 1.0
"""How long a burst of "my list has changed" is let pass before the list is fetched, once."""

_log = get_logger("kaged.mcp")


class OutsideServer:
    """Starts a server, starts it again when it dies, and calls its tools."""

    def __init__(self, plan: OutsidePlan, parts: OutsideParts) -> None:
        self.plan = plan
        self.state = McpServerState.DISABLED
        self.note = plan.fault
        self.restarts = 0
        self.calls = 0
        self.errors = 0
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self._parts = parts
        self._policy = RestartPolicy()
        self._conversation: McpConversation | None = None
        self._tool_table = McpToolTable(plan, parts)
        self._tasks = Tasks(f"mcp {plan.name}")
        self._turn = asyncio.Lock()
        self._relisting = False
        self._stale = False
        self._stopping = False

    @property
    def name(self) -> str:
        """Its name in config.toml, which is the only one it has here."""
        return self.plan.name

    @property
    def tools(self) -> Sequence[OutsideTool]:
        """The tools that agents can be given now."""
        return tuple(self._tool_table.offered.values()) if self.state in OFFERING else ()

    @property
    def held(self) -> Sequence[OutsideTool]:
        """The tools that wait for approval; none while it does not run."""
        running = self.state is McpServerState.RUNNING
        return tuple(self._tool_table.held.values()) if running else ()

    @property
    def conversation(self) -> McpConversation | None:
        """The running process."""
        return self._conversation

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start it. What goes wrong becomes its state and its note."""
        async with self._turn:
            await self._start()

    async def restart(self) -> None:
        """Stop it and start it with a clean record, also when it was given up."""
        async with self._turn:
            await self._stop()
            self._tasks = Tasks(f"mcp {self.name}")
            self._policy.reset()
            self._stopping = False
            await self._start()

    async def stop(self) -> None:
        """End it; its tools leave dispatch."""
        async with self._turn:
            await self._stop()

    async def _stop(self) -> None:
        self._stopping = True
        await self._tasks.close()
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            await conversation.stop()
            self._parts.post("mcp.server_stopped", {"server": self.name})
        if self.state is not McpServerState.DISABLED:
            self._enter(McpServerState.STOPPED)

    async def _start(self) -> None:
        if not self.plan.enabled or self.plan.request is None:
            return
        self._enter(McpServerState.SPAWNING)
        try:
            await self._open()
        except McpServerUnavailable as error:
            self._crashed(error.message)

    async def _open(self) -> None:
        assert self.plan.request is not None
        conversation = await McpConversation.open(
            self._parts.spawner,
            self._parts.with_credentials(self.name, self.plan.request),
            name=self.name,
            on_changed=self._list_changed,
            on_line=self.lines.append,
        )
        try:
            await self._tool_table.fill(conversation)
        except KagedError as error:
            await conversation.close()
            raise McpServerUnavailable(
                f"{self.name} does not list its tools: {one_line(error.message)}"
            ) from error
        except BaseException:
            await conversation.close()
            raise
        self._conversation = conversation
        self.note = ""
        self._policy.running(self._parts.clock.monotonic_s())
        self._enter(McpServerState.RUNNING)
        self._parts.post(
            "mcp.server_started",
            {
                "server": self.name,
                "claims": conversation.greeting.claims,
                "protocol_version": conversation.greeting.version,
                "tools": [one.name for one in self._tool_table.offered.values()],
                "held_back": [*sorted(self._tool_table.held)],
            },
        )
        self._tasks.start(self._watch(conversation), "watch")

    async def _watch(self, conversation: McpConversation) -> None:
        report = await conversation.exited()
        if self._stopping or self._conversation is not conversation:
            return
        self._conversation = None
        await conversation.close()
        self._crashed(conversation.broke or _ending(report))

    def _crashed(self, why: str) -> None:
        self.note = why
        self._enter(McpServerState.CRASHED)
        last: list[JsonValue] = [one_line(line) for line in list(self.lines)[-20:]]
        self._parts.post(
            "mcp.server_crashed", {"server": self.name, "reason": why, "last_stderr": last}
        )
        verdict = self._policy.failed(self._parts.clock.monotonic_s())
        if isinstance(verdict, Again):
            self._tasks.start(self._again(verdict.delay_s), "restart")
            return
        self._parts.post(
            "mcp.server_failed",
            {"server": self.name, "reason": why, "total_failures": verdict.failures},
        )
        self._enter(McpServerState.FAILED)

    async def _again(self, delay_s: float) -> None:
        await self._parts.sleep(delay_s)
        if not self._stopping:
            self.restarts += 1
            await self._start()

    # -- tools -----------------------------------------------------------------------------------

    async def call(
        self, tool: OutsideTool, arguments: JsonObject, headers: Mapping[str, str] | None = None
    ) -> JsonValue:
        """Call a tool; `headers` go with the request to a server behind HTTP.

        Raises:
            McpServerUnavailable: the server is not running, ended, or does not answer.
            McpCallFailed: it refused, the tool failed, or the answer is not the declared one.
        """
        conversation = self._ready()
        self.calls += 1
        try:
            answer = await self._ask(
                conversation,
                "tools/call",
                {"name": tool.original, "arguments": arguments},
                f"the tool {tool.name}",
                headers,
            )
            return parse_content(
                answer,
                self.name,
                tool.name,
                limit_bytes=self.plan.output_bytes,
                fits=self._tool_table.fits(tool),
            )
        except McpAnswerInvalid as error:
            self._parts.post(
                "mcp.answer_invalid",
                {"server": self.name, "tool": tool.name, "reason": error.message},
            )
            raise
        except KagedError:
            self.errors += 1
            raise

    async def fetch(
        self, method: str, params: JsonObject, headers: Mapping[str, str] | None = None
    ) -> JsonObject:
        """Ask for what is no tool: lists, prompts and resources. Raises as `call`."""
        answer = await self._ask(self._ready(), method, params, method, headers)
        if not isinstance(answer, dict):
            raise McpAnswerInvalid(f"{self.name} answered {method} with an invalid result")
        return answer

    async def _ask(
        self,
        conversation: McpConversation,
        method: str,
        params: JsonObject,
        what: str,
        headers: Mapping[str, str] | None = None,
    ) -> JsonValue:
        answered = False
        if headers and self.plan.endpoint is not None:
            # The relay in the cage takes them out again and sends them as what they are.
            params = {**params, "_meta": {HEADERS: {**headers}}}
        try:
            answer = await conversation.ask(method, params, self.plan.timeout_s, PROGRESS.get())
            answered = True
        except RpcError as error:
            answered = True
            raise McpCallFailed(f"{self.name} refused {what}: {one_line(error.message)}") from error
        except PeerTimeout as error:
            raise McpServerUnavailable(
                f"{self.name} did not answer {what} in {self.plan.timeout_s:g} s",
                fix="ask for less, or raise timeout_seconds of the server",
            ) from error
        except KagedError as error:
            raise McpServerUnavailable(
                f"{self.name} ended before it answered {what}",
                fix=f"try again; `kaged mcp logs {self.name}` shows why it ended",
            ) from error
        finally:
            if not answered and conversation is self._conversation and not self._stopping:
                # Given up on, by a timeout or the caller: is it slow, or stuck for everybody?
                self._tasks.start(self._check(conversation), "check")
        return answer

    async def _check(self, conversation: McpConversation) -> None:
        if not await conversation.alive() and self._conversation is conversation:
            conversation.kill("it does not answer any more")

    def _ready(self) -> McpConversation:
        conversation = self._conversation
        if self.state is not McpServerState.RUNNING or conversation is None:
            raise McpServerUnavailable(
                f"the MCP server {self.name} is not running ({self.state})",
                fix=f"`kaged mcp servers` says why; `kaged mcp restart {self.name}` starts it",
            )
        return conversation

    # -- what it offers --------------------------------------------------------------------------

    async def approve(
        self,
        request_id: str | None = None,
        operator_id: str | None = None,
        *,
        shown: JsonValue = None,
    ) -> None:
        """Approve its tools as they are now.

        Raises:
            McpServerUnavailable: it does not run.
            KagedError: `inbox_request_changed`; those that wait are not the ones that were `shown`
                (digests by the server's own names; None approves whatever waits).
        """
        async with self._turn:
            conversation = self._ready()
            if shown is not None and shown != {one.original: one.digest for one in self.held}:
                raise KagedError(
                    f"The tools of {self.name} have changed since they were shown.",
                    code="inbox_request_changed",
                    fix="look at them again and answer again",
                )
            await self._tool_table.agree(request_id, operator_id)
            await self._tool_table.fill(conversation)
            self._parts.on_tools(self)

    def _list_changed(self, what: str) -> None:
        """Called when a list has changed; however often that is, requests go out one at a time."""
        if what == "tools" and self.state is McpServerState.RUNNING:
            self._stale = True
            if not self._relisting:
                self._relisting = True
                self._tasks.start(self._relist(), "list again")

    async def _relist(self) -> None:
        try:
            while self._stale:
                await self._parts.sleep(RELIST_S)
                self._stale = False
                conversation = self._conversation
                if conversation is None:
                    return
                try:
                    await self._tool_table.fill(conversation)
                except KagedError as error:
                    conversation.kill(f"it does not list its tools: {one_line(error.message)}")
                    return
                self._parts.on_tools(self)
        finally:
            self._relisting = False

    # -- own -------------------------------------------------------------------------------------

    def status(self) -> JsonObject:
        """Describe it."""
        conversation = self._conversation
        process = None if conversation is None else conversation.peer.process
        request = self.plan.request
        return {
            "name": self.name,
            "state": self.state.value,
            "note": self.note,
            "command": [] if request is None else list(request.command),
            "pid": None if process is None else process.pid,
            "cage_id": None if process is None else process.cage_id,
            "failures": self._policy.failures,
            "restarts": self.restarts,
            "calls": self.calls,
            "errors": self.errors,
            "protocol_version": "" if conversation is None else conversation.greeting.version,
            "claims": "" if conversation is None else conversation.greeting.claims,
            "agents": list(self.plan.agents),
            "projects": list(self.plan.projects),
            "pending": len(self._tool_table.held),
            "tools": self._tool_table.as_json(),
        }

    def _enter(self, state: McpServerState) -> None:
        self.state = state
        _log.info("mcp.server_state_changed", server=self.name, state=state.value, note=self.note)
        self._parts.on_tools(self)


def _ending(report: ExitReport) -> str:
    return one_line(report.detail) or f"it ended with exit code {report.exit_code}"
