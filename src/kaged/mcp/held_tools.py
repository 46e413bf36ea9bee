"""`HeldTools`: changed and new tools of outside servers, as requests of the inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kaged.base import JsonObject
from kaged.inbox import (
    NO,
    YES,
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestDraft,
    RequestKind,
    RequestState,
    chosen_yes,
)
from kaged.mcp.texts import one_line

if TYPE_CHECKING:
    from kaged.kernel.identity import Actor
    from kaged.mcp.host import McpHost
    from kaged.mcp.outside import OutsideServer


class HeldTools:
    """Asks the operator about the tools that are held back, while their server runs."""

    def __init__(self, inbox: Inbox, host: McpHost) -> None:
        self._inbox = inbox
        self._host = host
        self._refused: dict[str, str] = {}
        inbox.register(self, RequestKind.MCP_TOOLS)

    def update(self, server: OutsideServer) -> None:
        """Bring the inbox in line with what a server's tools wait for now.

        What was refused is asked about again once it reads differently.
        """
        held = server.held
        if not held:
            self._inbox.drop(_id(server.name))
            return
        draft = RequestDraft(
            _id(server.name),
            RequestKind.MCP_TOOLS,
            f"Offer the changed tools of the MCP server {server.name}?",
            [f"{one.name}: {one_line(one.description)}" for one in held],
            choices=(YES, NO),
            subject={"server": server.name, "tools": {one.original: one.digest for one in held}},
        )
        if self._refused.get(server.name) != draft.digest:
            self._inbox.hold(draft)

    async def approve(self, name: str, who: Actor) -> None:
        """Approve a server's tools as they are now; that answers what waits for it.

        Raises `mcp_server_not_found`, McpServerUnavailable.
        """
        server = self._host.get(name)
        if self._inbox.waiting(_id(name)) is None:
            await server.approve(who.request_id, who.person_id)
        else:
            await self._inbox.take_answer(_id(name), {"choice": YES}, AnsweredBy.of(who))

    # -- for the inbox ---------------------------------------------------------------------------

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is kept. Raises `inbox_answer_invalid`."""
        return CheckedAnswer({"choice": YES if chosen_yes(request, answer) else NO})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Approve exactly the tools that were shown, or remember that these were refused."""
        if request.state is not RequestState.ANSWERED or request.answer is None:
            return
        name = str(request.subject["server"])
        if request.answer["choice"] == NO:
            self._refused[name] = request.digest
            return
        server = self._host.get(name)
        person = None if by.actor is None else by.actor.person_id
        try:
            await server.approve(by.request_id, person, shown=request.subject["tools"])
        except BaseException:
            self.update(server)  # it waits for an answer again
            raise

    def event(self, request: InboxRequest) -> JsonObject:
        """Return which server it is about."""
        return {"server": request.subject["server"]}


def _id(server: str) -> str:
    return f"mcp_{server}"
