"""`Elicitations`: questions about refused calls, shown by the MCP client that makes the call.

Clients of the older protocol are asked while their call waits. Since 2026-07-28 the call is
answered with the question, and made again with the answer: what it had begun waits meanwhile, and
goes on where it was. The question itself is one of the inbox, whoever shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from kaged.base import KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.inbox import NO
from kaged.kernel.describe import SCOPE_WORDS
from kaged.serve.mcp.client_session import MAX_OPEN_CALLS

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from kaged.base import JsonObject, JsonValue
    from kaged.inbox import InboxRequest
    from kaged.serve.mcp.client_session import McpClientSession
    from kaged.tools.context import ReachPerson

ASKED_AGAIN_SINCE: Final = "2026-07-28"
"""From this protocol on questions are answers of calls, which are then made again."""

ANSWER: Final = "answer"

Answer = Callable[["McpClientSession", str, str], Awaitable[None]]
Begin = Callable[["ReachPerson | None"], Coroutine[Any, Any, "JsonValue"]]


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is being made: its work, and the questions that came up."""

    client_session: McpClientSession
    name: str
    arguments: JsonObject
    asked: asyncio.Queue[InboxRequest]
    work: asyncio.Task[JsonValue]


class Elicitations:
    """Makes calls of clients, and lets the client ask its person on the way."""

    def __init__(self, tasks: Tasks, answer: Answer) -> None:
        self._tasks = tasks
        self._answer = answer
        self._parked: dict[str, _Call] = {}

    async def call(
        self,
        ctx: ServerRequestContext[Any],
        client_session: McpClientSession,
        params: types.CallToolRequestParams,
        begin: Begin,
    ) -> JsonValue | types.InputRequiredResult:
        """Return the result of a call, or the question that it waits for.

        Raises:
            KagedError: what the call ends with.
        """
        arguments: JsonObject = dict(params.arguments or {})
        call = self._resumed(client_session, params, arguments)
        if call is None:
            asked: asyncio.Queue[InboxRequest] = asyncio.Queue()
            reach = asked.put_nowait if _can_ask(ctx) else None
            # In a task of its own: the SDK cancels again at every step until a handler has ended,
            # which would tear a tool out of its own cleaning up.
            work = self._tasks.start(begin(reach), f"call {params.name}")
            call = _Call(client_session, params.name, arguments, asked, work)
        else:
            await self._take_answers(client_session, params)
        return await self._go_on(ctx, call)

    def forget(self, client_session_id: str) -> None:
        """End the calls of a client that has left and that wait for its answer."""
        for state, call in list(self._parked.items()):
            if call.client_session.id == client_session_id:
                del self._parked[state]
                call.work.cancel()

    async def _go_on(
        self, ctx: ServerRequestContext[Any], call: _Call
    ) -> JsonValue | types.InputRequiredResult:
        while True:
            question = self._tasks.start(call.asked.get(), "question")
            try:
                await asyncio.wait({call.work, question}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                call.work.cancel()
                raise
            finally:
                question.cancel()
            if call.work.done():
                return call.work.result()
            request = question.result()
            if ctx.protocol_version >= ASKED_AGAIN_SINCE:
                return self._park(call, request)
            self._tasks.start(self._elicit(ctx, call.client_session, request), request.id)

    # -- the call is made again with the answer ----------------------------------------------------

    def _park(self, call: _Call, request: InboxRequest) -> types.InputRequiredResult:
        """Let a call wait until it is made again; it ends by itself when nobody answers."""
        mine = [one for one in self._parked.values() if one.client_session is call.client_session]
        if len(mine) < MAX_OPEN_CALLS:
            self._parked[request.id] = call
            call.work.add_done_callback(lambda _work: self._parked.pop(request.id, None))
        else:
            call.work.cancel()
        asks = types.ElicitRequest(
            params=types.ElicitRequestFormParams(
                message=_message(request), requested_schema=_schema(request)
            )
        )
        return types.InputRequiredResult(
            input_requests={request.id: asks}, request_state=request.id
        )

    def _resumed(
        self,
        client_session: McpClientSession,
        params: types.CallToolRequestParams,
        arguments: JsonObject,
    ) -> _Call | None:
        """Return the call that a client goes on with; None for a new one.

        It must be the same client and the same call: an answer to one is none to another.
        """
        call = self._parked.get(params.request_state or "")
        if call is None or call.client_session.id != client_session.id:
            return None
        if (call.name, call.arguments) != (params.name, arguments):
            return None
        del self._parked[params.request_state or ""]
        call.client_session = client_session
        return call

    async def _take_answers(
        self, client_session: McpClientSession, params: types.CallToolRequestParams
    ) -> None:
        state = params.request_state or ""
        given = (params.input_responses or {}).get(state)
        choice = _choice(given) if isinstance(given, types.ElicitResult) else NO
        await self._send(client_session, state, choice)

    # -- the client is asked meanwhile -------------------------------------------------------------

    async def _elicit(
        self,
        ctx: ServerRequestContext[Any],
        client_session: McpClientSession,
        request: InboxRequest,
    ) -> None:
        try:
            said = await ctx.session.elicit_form(
                _message(request), _schema(request), related_request_id=ctx.request_id
            )
        except (MCPError, ValidationError):
            # It says that it can ask, and cannot: as if nobody had agreed.
            await self._send(client_session, request.id, NO)
            return
        await self._send(client_session, request.id, _choice(said))

    async def _send(self, client_session: McpClientSession, request_id: str, choice: str) -> None:
        try:
            await self._answer(client_session, request_id, choice)
        except KagedError as error:
            if error.code != "inbox_request_closed" and choice != NO:
                # Nothing was granted, so nothing may be left waiting for that either.
                await self._send(client_session, request_id, NO)


def _can_ask(ctx: ServerRequestContext[Any]) -> bool:
    """Return whether a client offers to show forms to its person."""
    said = ctx.session.client_capabilities
    offered = None if said is None else said.elicitation
    # An empty one, the only shape of old, is for forms.
    if offered is None or (offered.form is None and offered.url is not None):
        return False
    return ctx.protocol_version >= ASKED_AGAIN_SINCE or ctx.session.can_send_request


def _message(request: InboxRequest) -> str:
    return "\n".join((request.title, *request.details))


def _schema(request: InboxRequest) -> dict[str, Any]:
    words = {scope.value: said for scope, said in SCOPE_WORDS.items()} | {NO: "it stays refused"}
    meaning = "; ".join(f"{one}: {words.get(one, one)}" for one in request.choices)
    return {
        "type": "object",
        "properties": {
            ANSWER: {
                "type": "string",
                "title": "Answer",
                "description": meaning,
                "enum": list(request.choices),
            }
        },
        "required": [ANSWER],
    }


def _choice(said: types.ElicitResult) -> str:
    """Return what was chosen; everything but an accepted form is a no."""
    chosen = (said.content or {}).get(ANSWER)
    return chosen if said.action == "accept" and isinstance(chosen, str) else NO
