"""HTTP/1.1 between a program in a cage and a bound host, one request after the other.

Both sides are parsed and written by h11: what the server reads was written anew from what was
decided about, never passed on as bytes. A request is sent when its head, and as much of its body as
is looked at first, may be sent; then both bodies stream.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11

from kaged.credentials.authority import HTTP1
from kaged.credentials.bodies import RequestBody
from kaged.credentials.conversation import Conversation
from kaged.credentials.http1_answer import UPGRADE, AnswerRelay, headers_of
from kaged.credentials.link import Link
from kaged.credentials.refusals import Refusal, RefusalRule, RequestRefused, refused
from kaged.credentials.request_places import Header
from kaged.credentials.requests import Admitted, RequestHead
from kaged.credentials.websocket import asks_for_websocket, serve_websocket

MAX_HEAD_BYTES: Final = 80 * 1024
_GRACE_S: Final = 0.1
_LINGER_S: Final = 1.0
_LINGER_BYTES: Final = 256 * 1024
_CONTINUE: Final = 100
_HTTP_1_1: Final = b"1.1"


async def serve_http1(client: Link, talk: Conversation, failure: Refusal | None = None) -> None:
    """Serve a program's connection until it or the server ends it.

    `failure` says why there is no server; every request is answered with it.
    """
    served = _Connection(client, talk, failure)
    while await served.exchange():
        pass


class _Connection:
    """The program's side of a connection; the server's is made anew when it has ended."""

    def __init__(self, client: Link, talk: Conversation, failure: Refusal | None) -> None:
        self._client = client
        self._talk = talk
        self._failure = failure
        self._inward = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._outward: h11.Connection | None = None

    async def exchange(self) -> bool:
        """Serve one request; return whether another one may come."""
        try:
            event = await self._from_client()
        except h11.RemoteProtocolError as error:
            await self._refuse_malformed(error)
            return False
        if not isinstance(event, h11.Request):
            await self._client.finish()
            return False
        head = _head_of(event)
        admitted: Admitted | None = None
        try:
            if event.http_version != _HTTP_1_1 and _has(event, b"transfer-encoding"):
                raise refused(RefusalRule.MALFORMED, "HTTP/1.0 has no chunks.", status=400)
            if self._failure is not None:
                raise RequestRefused(self._failure)
            admitted = self._talk.admit(head)
            return await self._serve(event, head, admitted)
        except RequestRefused as error:
            self._talk.record_refusal(head, error.refusal, admitted)
            return await self._answer(error.refusal)
        except h11.RemoteProtocolError as error:
            # The program's body came to an end in the middle, or the server's answer is none.
            self._talk.drop_server()
            return await self._answer(_bad_gateway(self._talk.host, error))

    async def _serve(self, event: h11.Request, head: RequestHead, admitted: Admitted) -> bool:
        body = RequestBody(admitted)
        first, ended = await self._first_of_body(body)
        target, headers = await self._talk.fill_in(admitted)
        websocket = asks_for_websocket(event)
        if websocket and (first or not ended):
            raise refused(RefusalRule.UPGRADE, "A request for a WebSocket has no body.", status=400)
        server, outward = await self._server()
        framing = [(n, v) for n, v in head.headers if n == b"transfer-encoding"]
        if any(v.lower() != b"chunked" for _, v in framing):
            raise refused(RefusalRule.MALFORMED, "The body's encoding is unknown.", status=400)
        request = h11.Request(
            method=head.method,
            target=target,
            headers=[
                (b"host", head.authority),
                *headers,
                *framing,
                *(UPGRADE if websocket else ()),
            ],
        )
        try:
            data = outward.send(request) or b""
            if first:
                data += outward.send(h11.Data(data=first)) or b""
            if ended:
                data += outward.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise refused(
                RefusalRule.MALFORMED, f"The request is malformed: {error}.", status=400
            ) from None
        try:
            await server.write(data)
        except OSError:
            self._talk.drop_server()
            raise refused(
                RefusalRule.SERVER, f"{self._talk.host} ended the connection.", status=502
            ) from None
        if ended:
            return await self._relay_answer(server, outward, admitted, head, websocket=websocket)
        upload = _Upload()
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send_rest(server, outward, body, upload))
                again = await self._relay_answer(
                    server, outward, admitted, head, websocket=False, upload=upload
                )
                if not sending.done():
                    sending.cancel()  # the server has answered before it had all of it
                    again = False
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        if upload.refusal is not None:
            self._talk.record_refusal(head, upload.refusal, admitted)
            return False
        return again and not upload.failed

    async def _first_of_body(self, body: RequestBody) -> tuple[bytes, bool]:
        """Return what of the body may be sent with the head, and whether it is all of it."""
        if self._inward.they_are_waiting_for_100_continue:
            continued = h11.InformationalResponse(status_code=_CONTINUE, headers=[])
            await self._client.write(self._inward.send(continued) or b"")
        while not body.released:
            try:
                async with asyncio.timeout(_GRACE_S if body.may_go_early else None):
                    event = await self._from_client()
            except TimeoutError:
                # Who talks in both directions at once may wait for the answer.
                return body.release(), False
            if isinstance(event, h11.EndOfMessage):
                return body.end(), True
            if not isinstance(event, h11.Data):
                raise refused(RefusalRule.MALFORMED, "The body has no end.", status=400)
            data = body.feed(bytes(event.data))
            if body.released:
                return data, False
        return b"", False

    async def _send_rest(
        self, server: Link, outward: h11.Connection, body: RequestBody, upload: _Upload
    ) -> None:
        try:
            while True:
                event = await self._from_client()
                if isinstance(event, h11.Data):
                    data = body.feed(bytes(event.data))
                    if data:
                        await server.write(outward.send(h11.Data(data=data)) or b"")
                elif isinstance(event, h11.EndOfMessage):
                    data = body.end()
                    last = (outward.send(h11.Data(data=data)) or b"") if data else b""
                    await server.write(last + (outward.send(h11.EndOfMessage()) or b""))
                    return
                else:
                    raise ConnectionResetError("the program ended in the middle of a body")
        except RequestRefused as error:
            upload.refusal = error.refusal
            server.abort()
        except (h11.ProtocolError, OSError):
            upload.failed = True
            server.abort()

    async def _relay_answer(
        self,
        server: Link,
        outward: h11.Connection,
        admitted: Admitted,
        head: RequestHead,
        *,
        websocket: bool,
        upload: _Upload | None = None,
    ) -> bool:
        secrets = self._talk.secrets
        relay = AnswerRelay(self._client, server, self._inward, outward, secrets)
        try:
            answer = await relay.head()
            self._talk.record_use(admitted, str(answer.status_code))
            if isinstance(answer, h11.Response):
                await relay.pass_on(answer)
                return await self._next_cycle(outward)
            if not websocket:
                raise refused(
                    RefusalRule.UPGRADE, "The server switched to an unknown protocol.", status=502
                )
            await relay.switch(answer)
        except RequestRefused as error:
            self._talk.drop_server()
            if relay.begun or upload is not None:
                raise ConnectionResetError(error.message) from None
            raise
        except (OSError, h11.RemoteProtocolError) as error:
            self._talk.drop_server()
            if relay.begun:
                raise ConnectionResetError("the answer ended in the middle") from error
            if upload is not None and upload.refusal is not None:
                return await self._answer(upload.refusal)
            refusal = _bad_gateway(self._talk.host, error)
            self._talk.record_refusal(head, refusal, admitted)
            return await self._answer(refusal)
        early = bytes(self._inward.trailing_data[0]), bytes(outward.trailing_data[0])
        await serve_websocket(self._client, server, secrets, *early)
        return False

    async def _next_cycle(self, outward: h11.Connection) -> bool:
        if outward.our_state is h11.DONE and outward.their_state is h11.DONE:
            outward.start_next_cycle()
        else:
            self._talk.drop_server(broken=outward.our_state is not h11.MUST_CLOSE)
        if self._inward.our_state is h11.DONE and self._inward.their_state is h11.DONE:
            self._inward.start_next_cycle()
            return True
        await self._client.finish()
        return False

    async def _server(self) -> tuple[Link, h11.Connection]:
        """Return the server's side, ready for a request."""
        server, outward = self._talk.server, self._outward
        if server is not None and outward is not None:
            ready = outward.our_state is h11.IDLE and outward.their_state is h11.IDLE
            if ready and not server.stale():
                return server, outward
            self._talk.drop_server()
            server = None
        if server is None or server.protocol not in ("", HTTP1):
            failure = await self._talk.connect([HTTP1])
            if failure is not None:
                raise RequestRefused(failure)
        outward = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._outward = outward
        server = self._talk.server
        if server is None:
            raise ConnectionResetError("the server has gone")
        return server, outward

    @property
    def _ending(self) -> bool:
        """Whether this connection takes no more requests."""
        return self._inward.our_state is not h11.DONE

    async def _from_client(self) -> type[h11.PAUSED | h11.NEED_DATA] | h11.Event:
        return await _next(self._client, self._inward)

    async def _refuse_malformed(self, error: h11.RemoteProtocolError) -> None:
        refusal = Refusal(
            400,
            RefusalRule.MALFORMED.value,
            f"The request cannot be sent to a bound host: {error}.",
            "send a well-formed request",
        )
        self._talk.record_refusal(RequestHead(b"", b"", b"", []), refusal)
        await self._answer(refusal)

    async def _answer(self, refusal: Refusal) -> bool:
        """Answer for the server; return whether the connection goes on."""
        if self._inward.our_state not in (h11.SEND_RESPONSE, h11.IDLE):
            return False
        complete = self._inward.their_state is h11.DONE
        headers: list[Header] = list(refusal.headers)
        if not complete:
            headers.append((b"connection", b"close"))
        response = h11.Response(status_code=refusal.status, headers=headers)
        data = self._inward.send(response) or b""
        data += self._inward.send(h11.Data(data=refusal.body)) or b""
        data += self._inward.send(h11.EndOfMessage()) or b""
        await self._client.write(data)
        if complete and not self._ending:
            self._inward.start_next_cycle()
            return True
        await self._client.finish()
        await _linger(self._client)
        return False


class _Upload:
    """How the rest of a request's body fared."""

    def __init__(self) -> None:
        self.refusal: Refusal | None = None
        self.failed = False


async def _next(
    link: Link, protocol: h11.Connection
) -> type[h11.PAUSED | h11.NEED_DATA] | h11.Event:
    while True:
        event = protocol.next_event()
        if event is not h11.NEED_DATA:
            return event
        protocol.receive_data(await link.read())


async def _linger(link: Link) -> None:
    # Closing with unread bytes breaks the connection, and the answer is lost on the way.
    left = _LINGER_BYTES
    try:
        async with asyncio.timeout(_LINGER_S):
            while left > 0:
                data = await link.read()
                if not data:
                    return
                left -= len(data)
    except (TimeoutError, OSError):
        return


def _head_of(event: h11.Request) -> RequestHead:
    headers = headers_of(event)
    authority = next((value for name, value in headers if name == b"host"), b"")
    return RequestHead(bytes(event.method), bytes(event.target), authority, headers)


def _has(event: h11.Request, name: bytes) -> bool:
    return any(one == name for one, _ in event.headers)


def _bad_gateway(host: str, error: Exception) -> Refusal:
    return Refusal(
        502, RefusalRule.SERVER.value, f"{host} gave no valid answer: {type(error).__name__}."
    )
