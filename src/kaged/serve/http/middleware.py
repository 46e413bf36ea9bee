"""ASGI layers between the request's id and its route: access first, then body and time limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.identity import Actor, VouchedBy
from kaged.serve.http.access import (
    AccessRequest,
    AccessRules,
    Credentials,
    presented_sign_in,
    require_actor,
)
from kaged.serve.http.arrivals import arrival_of
from kaged.serve.http.connection import STATE_KEY, PeerConnection
from kaged.serve.http.errors import DaemonStopping, PayloadTooLarge, error_response
from kaged.serve.http.metrics import Metrics
from kaged.serve.http.person_access import WEBSOCKET, require_for_person, require_project
from kaged.serve.signin.admission import SignedIn
from kaged.serve.signin.errors import SignInUnavailable
from kaged.serve.signin.sign_in import SignIn

_log = get_logger("kaged.http")

MAX_BODY_BYTES = 1024 * 1024
# An exported session comes in one piece. By now the caller is known to be the operator.
_IMPORT_BYTES = 32 * 1024 * 1024
_IMPORT = re.compile(r"/api/v1/projects/[^/]+/sessions/import")
# What an agent's tool does for somebody is ended when they hang up; nobody else learns of it.
_CALL = re.compile(r"/api/v1/projects/[^/]+/tools/call")
BODY_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 120.0
SHOWN_CHARS = 200
STREAM_CHECK_S = 15.0
"""How often it is looked at whether a stream's client may still listen: tokens expire unseen."""
POLICY_VIOLATION = 1008
ACCESS_CHANGED = "access_changed"
"""The reason in the close of a stream whose client has to connect again to be let in as it is."""
_FREE = frozenset({"/", "/healthz"})  # they show nothing of any project


class AccessMiddleware:
    """ASGI layer that turns each request's maker into an `Actor`, or the request away.

    `rules` is asked for anew on each request, so a reloaded configuration holds from the next one
    on.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        rules: Callable[[], AccessRules],
        credentials: Credentials,
        sign_in: SignIn,
        metrics: Metrics,
        audit: AuditLog,
    ) -> None:
        self._app = app
        self._rules = rules
        self._credentials = credentials
        self._sign_in = sign_in
        self._refusals = Refusals(metrics, audit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through or answer it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        state = scope["state"]
        connection = state.get(STATE_KEY)
        access_request = AccessRequest(
            method=scope.get("method", "GET"),
            path=scope["path"],
            headers=scope["headers"],
            connection=connection if isinstance(connection, PeerConnection) else None,
            websocket=scope["type"] == "websocket",
            request_id=state["request_id"],
        )
        rules = self._rules()
        try:
            signed_in = await self._signed_in(rules, access_request)
            actor = require_actor(rules, self._credentials, access_request, signed_in)
            arrival = arrival_of(
                actor,
                access_request.headers,
                rules.shown_headers,
                keep_token=rules.keeps_tokens,
            )
            state["actor"] = replace(actor, arrival=arrival)
            method = WEBSOCKET if access_request.websocket else access_request.method
            require_for_person(state["actor"], method, access_request.path)
        except KagedError as error:
            self._refusals.note(error.code, access_request)
            answer = error_response(error, state["request_id"], rules.resource_metadata)
            await answer(scope, receive, send)
            return
        if (
            access_request.connection is not None
            and state["actor"].vouched_by is not VouchedBy.OPEN
        ):
            access_request.connection.vouch()
        state["access_request"] = access_request
        if _is_stream(access_request):
            admitted = _Admitted(state["actor"], signed_in)
            await self._while_admitted(admitted, access_request, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _while_admitted(
        self,
        admitted: _Admitted,
        access_request: AccessRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve a stream as long as what let it in would let the same actor in again."""
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._until_not_admitted(admitted, access_request))
                try:
                    await self._app(scope, receive, send)
                except Exception as error:  # noqa: BLE001 - raised again below, outside the group
                    failure = error
                finally:
                    watch.cancel()
        except* _NotAdmitted:
            _log.info("stream.access_changed", path=access_request.path[:SHOWN_CHARS])
            if access_request.websocket:
                await send(
                    {
                        "type": "websocket.close",
                        "code": POLICY_VIOLATION,
                        "reason": ACCESS_CHANGED,
                    }
                )
        if failure is not None:
            raise failure

    async def _until_not_admitted(self, admitted: _Admitted, access_request: AccessRequest) -> None:
        """Return never; raises _NotAdmitted when they may not come in, or are another, now."""
        while True:
            change = self._sign_in.next_change  # before the look: none in between is missed
            if await self._admitted_now(admitted, access_request) != admitted.actor:
                raise _NotAdmitted
            with suppress(TimeoutError):
                async with asyncio.timeout(STREAM_CHECK_S):
                    await change.wait()

    async def _admitted_now(
        self, admitted: _Admitted, access_request: AccessRequest
    ) -> Actor | None:
        """Return as whom the request would be let in now; None if it would not be."""
        rules = self._rules()
        try:
            try:
                signed_in = await self._signed_in(rules, access_request)
            except SignInUnavailable:
                signed_in = admitted.signed_in  # the provider is down: who is in stays in
            return require_actor(rules, self._credentials, access_request, signed_in)
        except KagedError:
            return None

    async def _signed_in(
        self, rules: AccessRules, access_request: AccessRequest
    ) -> SignedIn | None:
        """Return whose sign-in a request shows; None when it shows none, or one that is over."""
        presented = presented_sign_in(rules, self._credentials, access_request)
        if presented is None:
            return None
        if presented.via is VouchedBy.ACCESS_TOKEN:
            return await self._sign_in.by_token(presented.value)
        return await self._sign_in.by_cookie(presented.value, presented.host)


class Refusals:
    """Counts refusals and puts them on record."""

    def __init__(self, metrics: Metrics, audit: AuditLog) -> None:
        self._metrics = metrics
        self._audit = audit

    def note(self, reason: str, access_request: AccessRequest) -> None:
        """Count every refusal; the audit log folds what would fill the disk of a victim."""
        self._metrics.refused(reason)
        peer = access_request.connection
        event = AuditEvent(
            "access.denied",
            {
                "surface": "websocket" if access_request.websocket else "http",
                "reason": reason,
                "peer": peer.address if peer else None,
                "peer_uid": peer.uid if peer else None,
                "method": access_request.method[:SHOWN_CHARS],
                "path": access_request.path[:SHOWN_CHARS],
                "host": access_request.first(b"host")[:SHOWN_CHARS],
                "origin": access_request.first(b"origin")[:SHOWN_CHARS],
            },
            request_id=access_request.request_id,
        )
        # While the daemon stops, the trail may be closed already; the refusal itself stands.
        with suppress(AuditUnavailable):
            if self._audit.post_or_count(event):
                path = access_request.path[:SHOWN_CHARS]
                _log.warning("request.refused", code=reason, path=path)


class ProjectsMiddleware:
    """ASGI layer that holds people to the projects that the operator lets them use.

    Behind it `actor.projects` holds ids of loaded projects, whatever the operator wrote.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        ids_of: Callable[[Collection[str]], Awaitable[frozenset[str]]],
        refusals: Refusals,
    ) -> None:
        self._app = app
        self._ids_of = ids_of
        self._refusals = refusals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through, or answer that there is no such project."""
        state = scope.get("state", {})
        actor = state.get("actor")
        if isinstance(actor, Actor) and actor.projects is not None and scope["path"] not in _FREE:
            try:
                state["actor"] = replace(actor, projects=await self._ids_of(actor.projects))
                require_project(state["actor"], scope["path"])
            except KagedError as error:
                if error.code == "project_not_found":
                    self._refusals.note("project_not_allowed", state["access_request"])
                await error_response(error, state["request_id"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_stream(access_request: AccessRequest) -> bool:
    """Return whether an answer goes on for as long as the client listens."""
    mcp = access_request.method == "GET" and access_request.path.endswith("/mcp")
    return access_request.websocket or mcp


@dataclass(frozen=True, slots=True)
class _Admitted:
    """Who was let in, and whose sign-in that took."""

    actor: Actor
    signed_in: SignedIn | None


class _NotAdmitted(Exception):
    """Whoever listens would not be let in any more, or as somebody with other rights."""


class _HungUp(Exception):
    """Whoever asked is gone."""


class LimitsMiddleware:
    """ASGI layer that bounds what a request may send and how long it may take.

    The body is read here, before the route runs, so that a body which is too large or too slow gets
    its own answer whatever the route does with it, and half a body never reaches a route.
    """

    def __init__(self, app: ASGIApp, *, stopping: Callable[[], bool]) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request within its limits."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline: asyncio.Timeout | None = None
        answered = asyncio.Event()

        async def send_watched(message: Message) -> None:
            # The limit is for the answer to begin; a long export may take its time after that.
            if deadline is not None and message["type"] == "http.response.start":
                deadline.reschedule(None)
                answered.set()
            await send(message)

        try:
            if self._stopping() and scope["path"] != "/healthz":
                raise DaemonStopping("The daemon is stopping.", fix="Start it again and retry.")
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await _read_body(scope, receive)
            async with asyncio.timeout(REQUEST_TIMEOUT_S) as deadline:
                if _CALL.fullmatch(scope["path"]):
                    await self._run_for(scope, body, receive, send_watched, answered)
                else:
                    await self._app(scope, _replay(body, receive), send_watched)
        except _HungUp:
            _log.info("request.disconnected", path=scope["path"][:SHOWN_CHARS])
        except TimeoutError:
            if deadline is not None and deadline.when() is None:
                raise
            refusal: KagedError = KagedError(
                "The request took too long and was given up.", code="request_timeout"
            )
            await error_response(refusal, scope["state"]["request_id"])(scope, receive, send)
        except (PayloadTooLarge, DaemonStopping) as refusal:
            # The connection stays: whatever of the body is still to come is thrown away unread,
            # and the answer is not lost to a reset.
            await error_response(refusal, scope["state"]["request_id"])(scope, receive, send)

    async def _run_for(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, answered: asyncio.Event
    ) -> None:
        """Run the route while whoever asked is there; cancels it when they hang up.

        Raises:
            _HungUp: they did.
        """
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(_until_hung_up(receive, answered))
                try:
                    await self._app(scope, _replay(body, receive), send)
                except Exception as error:  # noqa: BLE001 - raised again below, outside the group
                    failure = error
                finally:
                    watch.cancel()
        except* _HungUp:
            failure = failure or _HungUp()
        if failure is not None:
            raise failure


async def _until_hung_up(receive: Receive, answered: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not answered.is_set():  # an answer that was given in full ends like this, too
        raise _HungUp


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    limit = _IMPORT_BYTES if _IMPORT.fullmatch(scope["path"]) else MAX_BODY_BYTES
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    # A number of more than fifteen digits is too large without being read.
    if declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body may have {limit} bytes.", limit_bytes=limit)
