"""Requests over HTTP/2 that no client would send, and placeholders where none may stand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.bound_world import VALUE, Authorities, BoundWorld, bound_world, placeholder
from fakes.h2_client import RawH2
from fakes.h2_recorder import H2Recorder
from kaged.kernel.bindings import (
    BEARER,
    CageCredential,
    CredentialBinding,
    Destination,
    Place,
    PlaceKind,
)
from kaged.kernel.request_rules import RequestRule

HELD = placeholder(1)
Pairs = list[tuple[str, str]]


@pytest.fixture
async def recorder(outside: Authorities) -> AsyncIterator[H2Recorder]:
    """Return a server of HTTP/2 that records what reaches it."""
    server = H2Recorder()
    await server.start(outside.server("api.test", protocols=("h2",)))
    yield server
    await server.close()


@pytest.fixture
async def world(
    outside: Authorities, recorder: H2Recorder, tmp_path: Path
) -> AsyncIterator[BoundWorld]:
    """Return the gate of a cage whose credential may be used for `/ok/**`."""
    binding = CredentialBinding(
        "github",
        (Destination("api.test"),),
        (BEARER, Place(PlaceKind.QUERY, "key")),
        (RequestRule(("GET", "POST"), "/ok/**"),),
        ca_file=str(outside.file),
    )
    async with bound_world(CageCredential(binding, HELD), server_port=recorder.port) as one:
        yield one


def _head(
    *more: tuple[str, str],
    method: str = "GET",
    path: str = "/ok/a",
    authority: str = "api.test",
    scheme: str = "https",
) -> Pairs:
    return [
        (":method", method),
        (":scheme", scheme),
        (":authority", authority),
        (":path", path),
        *(more or (("authorization", f"Bearer {HELD}"),)),
    ]


BEARS = ("authorization", f"Bearer {HELD}")
HEADS: dict[str, Pairs] = {
    "cr lf in a value": _head(BEARS, ("x", "a\r\nhost: evil.test")),
    "lf in a value": _head(BEARS, ("x", "a\nx: b")),
    "nul in a value": _head(BEARS, ("x", "a\x00b")),
    "cr lf in a name": _head(BEARS, ("x\r\ny", "a")),
    "colon in a name": _head(BEARS, ("x: y", "a")),
    "space in a name": _head(BEARS, ("x y", "a")),
    "capital in a name": _head(BEARS, ("X-Other", "a")),
    "empty name": _head(BEARS, ("", "a")),
    "cr lf in the path": _head(path="/ok/a HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /admin"),
    "space in the path": _head(path="/ok/a /admin"),
    "absolute path": _head(path="https://api.test/admin"),
    "no slash": _head(path="admin"),
    "empty path": _head(path=""),
    "asterisk": _head(path="*", method="OPTIONS"),
    "fragment": _head(path="/ok/a#/admin"),
    "dots": _head(path="/ok/../admin"),
    "escaped dots": _head(path="/ok/%2e%2e/admin"),
    "admin": _head(path="/admin"),
    "cr lf in the method": _head(method="GET /admin HTTP/1.1\r\n"),
    "other method": _head(method="DELETE"),
    "lower method": _head(method="get"),
    "connect": [(":method", "CONNECT"), (":authority", "evil.test:443"), BEARS],
    "websocket over h2": [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/ok/a"),
        (":authority", "api.test"),
        BEARS,
    ],
    "http": _head(scheme="http"),
    "other scheme": _head(scheme="https://evil.test/?"),
    "other authority": _head(authority="evil.test"),
    "authority with a user": _head(authority="api.test@evil.test"),
    "authority with a port": _head(authority="api.test:8443"),
    "host beside it": _head(BEARS, ("host", "evil.test")),
    "two paths": [*_head(), (":path", "/admin")],
    "two methods": [(":method", "GET"), *_head()],
    "pseudo header late": [*_head()[:3], BEARS, (":path", "/ok/a")],
    "unknown pseudo header": [(":other", "a"), *_head()],
    "no method": _head()[1:],
    "transfer-encoding": _head(BEARS, ("transfer-encoding", "chunked")),
    "connection": _head(BEARS, ("connection", "authorization")),
    "upgrade": _head(BEARS, ("upgrade", "h2c")),
    "te": _head(BEARS, ("te", "gzip")),
    "two authorizations": _head(BEARS, BEARS),
    "underscore": _head(BEARS, ("content_length", "5")),
    "content-length": _head(BEARS, ("content-length", "5")),
    "two content-lengths": _head(BEARS, ("content-length", "0"), ("content-length", "5")),
    "other header": _head(("x-other", HELD)),
    "placeholder in the path": _head(path=f"/ok/{HELD}"),
    "placeholder in the query": _head(path=f"/ok/a?other={HELD}"),
    "placeholder in the authority": _head(authority=f"{HELD.replace('_', '-')}.api.test"),
    "placeholder in a cookie": _head(("cookie", f"a={HELD}")),
    "placeholder in a name": _head((HELD, "a")),
    "foreign placeholder": _head(("authorization", f"Bearer {placeholder(9)}")),
    "two placeholders": _head(BEARS, path=f"/ok/a?key={HELD}"),
}


@pytest.mark.parametrize("case", HEADS)
async def test_a_head_that_is_not_allowed_reaches_nobody(
    world: BoundWorld, recorder: H2Recorder, case: str
) -> None:
    talk = await RawH2.connect(world)
    number = talk.ask(HEADS[case])
    came = await talk.until(number)
    talk.close()
    assert came.status in (0, 400, 403, 421), came  # 0: the connection or the stream was ended
    if came.status:
        assert came.headers["kaged-refused"].startswith("credential.")
    assert recorder.seen == []
    assert VALUE not in repr(came)


async def test_a_refused_stream_leaves_its_neighbors_alone(
    world: BoundWorld, recorder: H2Recorder
) -> None:
    talk = await RawH2.connect(world)
    numbers = [talk.ask(_head(path=path)) for path in ("/ok/1", "/admin", "/ok/2")]
    came = [await talk.until(number) for number in numbers]
    talk.close()
    assert [one.status for one in came] == [200, 403, 200]
    assert sorted(one.target for one in recorder.seen) == ["/ok/1", "/ok/2"]


async def test_trailers_of_a_request_are_refused(world: BoundWorld, recorder: H2Recorder) -> None:
    talk = await RawH2.connect(world)
    number = talk.ask(_head(method="POST"), body=None)
    talk.protocol.send_data(number, b"x" * 100)
    talk.protocol.send_headers(number, [("x-key", HELD)], end_stream=True)
    came = await talk.until(number)
    talk.close()
    assert came.status == 400
    assert not any(seen.complete for seen in recorder.seen)
    assert HELD not in repr(recorder.seen)


async def test_a_program_that_ends_its_streams_at_once_harms_nobody(
    world: BoundWorld, recorder: H2Recorder
) -> None:
    talk = await RawH2.connect(world)
    for _ in range(300):
        number = talk.ask(_head())
        talk.protocol.reset_stream(number)
    await talk.flush()
    talk.close()
    again = await RawH2.connect(world)
    assert (await again.until(again.ask(_head()))).status == 200
    again.close()


async def test_a_name_in_tls_that_is_another_than_the_connections_is_refused(
    world: BoundWorld, recorder: H2Recorder
) -> None:
    with pytest.raises(OSError, match=r"(?i)alert|handshake|name"):
        await world.connect(name="evil.test")
    assert recorder.seen == []
    assert [event.rule for event in world.events] == ["credential.authority"]
