"""`McpToolTable`: the tools of one outside server, held against what the operator agreed to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from kaged.base import JsonObject, JsonValue
from kaged.base.log import get_logger
from kaged.config.jsonschemas import compile_schema
from kaged.mcp.catalog import MAX_PAGES, MAX_TOOLS, LeftOut, OutsideTool, parse_tools
from kaged.mcp.conversation import McpConversation
from kaged.mcp.errors import McpAnswerInvalid, McpServerUnavailable
from kaged.mcp.plan import OutsideParts, OutsidePlan
from kaged.mcp.texts import one_line

LIST_TIMEOUT_S: Final = 30.0

_log = get_logger("kaged.mcp")


class McpToolTable:
    """What a server offers: `offered` to agents, `held` back until the operator agrees to it."""

    def __init__(self, plan: OutsidePlan, parts: OutsideParts) -> None:
        self.offered: dict[str, OutsideTool] = {}
        self.held: dict[str, OutsideTool] = {}
        self._denied: list[OutsideTool] = []
        self._left_out: Sequence[LeftOut] = ()
        self._fits: dict[str, Callable[[Any], bool]] = {}
        self._plan = plan
        self._parts = parts
        self._reported: set[tuple[str, str]] = set()

    def fits(self, tool: OutsideTool) -> Callable[[Any], bool] | None:
        """Return a check whether an answer is the declared one; None when nothing is declared."""
        return self._fits.get(tool.original)

    async def fill(self, conversation: McpConversation) -> None:
        """Fetch the tools page by page and hold them against what was agreed to.

        Raises:
            KagedError: the server does not list them.
        """
        listed: list[JsonValue] = []
        cursor: JsonValue = None
        for _ in range(MAX_PAGES):
            params: JsonObject = {} if cursor is None else {"cursor": cursor}
            answer = await conversation.ask("tools/list", params, LIST_TIMEOUT_S)
            page = answer.get("tools") if isinstance(answer, dict) else None
            if not isinstance(answer, dict) or not isinstance(page, list):
                raise McpAnswerInvalid(f"{self._plan.name} answered tools/list with no list")
            listed += page
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str) or len(listed) > MAX_TOOLS:
                break
        tools, self._left_out = parse_tools(self._plan.name, listed)
        for one in self._left_out:
            _log.warning(
                "mcp.tool_left_out", server=self._plan.name, tool=one.original, why=one.why
            )
        self._sort(tools, await self._agreed_to(tools))

    async def agree(self, request_id: str | None, operator_id: str | None) -> None:
        """Approve the tools as they were last listed. Raises McpServerUnavailable."""
        tools = [*self.offered.values(), *self.held.values(), *self._denied]
        await self._keep(tools)
        self._parts.post(
            "mcp.tools_approved",
            {
                "server": self._plan.name,
                "tools": [one.original for one in tools],
                "how": "operator",
                "operator_id": operator_id,
            },
            request_id,
        )
        self._reported.clear()

    def as_json(self) -> list[JsonValue]:
        """Describe every tool, with the reason why it is not offered, if it is not."""
        return [
            *(_shown(one, "") for one in self.offered.values()),
            *(_shown(one, "changed or new; waits for approval") for one in self.held.values()),
            *(_shown(one, "config.toml does not allow it") for one in self._denied),
            *(
                {"name": "", "original": one.original, "offered": False, "why": one.why,
                 "digest": ""}
                for one in self._left_out
            ),
        ]  # fmt: skip

    # -- own -------------------------------------------------------------------------------------

    async def _agreed_to(self, tools: Sequence[OutsideTool]) -> frozenset[str]:
        """Return which tools are agreed to as they are; what is new about them is recorded."""
        approvals, server = self._parts.approvals, self._plan.name
        verdict = approvals.compare(server, tools)
        follow = verdict.first or self._plan.follow
        now = {one.original: one for one in tools}
        for name, before in verdict.changed.items():
            self._tell("changed", name, before, now[name].digest, offered=follow)
        for name in verdict.added:
            self._tell("added", name, "", now[name].digest, offered=follow)
        for name in verdict.removed:
            self._tell("removed", name, "", "", offered=False)
        if not follow or verdict.same:
            return verdict.agreed
        await self._keep(tools)
        if verdict.first:
            names: list[JsonValue] = [one.original for one in tools]
            self._parts.post(
                "mcp.tools_approved", {"server": server, "tools": names, "how": "first use"}
            )
        return frozenset(now)

    async def _keep(self, tools: Sequence[OutsideTool]) -> None:
        try:
            await asyncio.to_thread(self._parts.approvals.agree, self._plan.name, tools)
        except OSError as error:
            # What cannot be kept was not agreed to: after a restart it would pass for new.
            raise McpServerUnavailable(
                f"what was agreed to about {self._plan.name} cannot be kept: {error}",
                fix="free some disk space, or make the home writable",
            ) from error

    def _sort(self, tools: Sequence[OutsideTool], agreed: frozenset[str]) -> None:
        self.offered, self.held, self._denied, self._fits = {}, {}, [], {}
        for one in tools:
            if not self._plan.takes(one.original):
                self._denied.append(one)
            elif one.original in agreed:
                self.offered[one.original] = one
                if one.output is not None:
                    self._fits[one.original] = compile_schema(one.output).is_valid
            else:
                self.held[one.original] = one

    def _tell(self, what: str, tool: str, before: str, after: str, *, offered: bool) -> None:
        """Put a change of what was agreed to on record, once."""
        if (tool, f"{what}{after}") in self._reported:
            return
        self._reported.add((tool, f"{what}{after}"))
        self._parts.post(
            "mcp.tool_changed",
            {
                "server": self._plan.name,
                "tool": one_line(tool, 100),
                "what": what,
                "before": before,
                "after": after,
                "offered": offered,
            },
        )


def _shown(tool: OutsideTool, why: str) -> JsonObject:
    return {
        "name": tool.name,
        "original": one_line(tool.original, 100),
        "offered": not why,
        "why": why,
        "digest": tool.digest,
    }
