"""Requests made to be read differently by the gate and by the server behind it.

Whatever is sent, a request that the server sees with the value was allowed by its own line.
"""

from __future__ import annotations

import base64

import pytest

from fakes.bound_world import VALUE, BoundWorld, Recorder, placeholder

HELD = placeholder(1)
OTHER = placeholder(2)
FOREIGN = placeholder(9)
A = f"Authorization: Bearer {HELD}"
HIDDEN = f"GET /admin HTTP/1.1\nHost: api.test\n{A}\n\n"
PERCENT = "".join(f"%{ord(c):02x}" for c in HELD)


def _basic(text: str) -> str:
    return "Authorization: Basic " + base64.b64encode(text.encode()).decode()


CORPUS = {
    # Two lengths
    "cl-te": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: 4\n"
    f"Transfer-Encoding: chunked\n\n0\n\n{HIDDEN}",
    "te-cl": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n"
    f"Content-Length: 0\n\n0\n\n{HIDDEN}",
    "cl-cl": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: 0\n"
    f"Content-Length: 90\n\n{HIDDEN}",
    "cl-list": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: 0, 90\n\n{HIDDEN}",
    "cl-same-twice": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: 0\n"
    f"Content-Length: 0\n\n{HIDDEN}",
    "cl-plus": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: +90\n\n{HIDDEN}",
    "cl-minus": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: -1\n\n{HIDDEN}",
    "cl-hex": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: 0x5a\n\n{HIDDEN}",
    "cl-empty": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length:\n\n{HIDDEN}",
    "cl-underscore": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent_Length: 90\n\n{HIDDEN}",
    "cl-number-underscore": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: 9_0\n\n"
    f"{HIDDEN}",
    "cl-huge": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: {'9' * 40}\n\n{HIDDEN}",
    "cl-on-get": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\nContent-Length: 5\n\nGET /{HIDDEN}",
    # Encodings of the body
    "te-identity": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: identity\n\n"
    f"{HIDDEN}",
    "te-two": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: gzip, chunked\n\n0\n\n"
    f"{HIDDEN}",
    "te-twice": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n"
    f"Transfer-Encoding: identity\n\n0\n\n{HIDDEN}",
    "te-vtab": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: \x0bchunked\n\n0\n\n"
    f"{HIDDEN}",
    "te-x": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: xchunked\n\n{HIDDEN}",
    "te-case": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: cHuNkEd\n\n0\n\n"
    f"{HIDDEN}",
    "te-quoted": f'POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: "chunked"\n\n0\n\n'
    f"{HIDDEN}",
    "te-space-before-colon": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\n"
    f"Transfer-Encoding : chunked\n\n0\n\n{HIDDEN}",
    "te-folded": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding:\n chunked\n\n0\n\n"
    f"{HIDDEN}",
    "te-1.0": f"POST /ok/a HTTP/1.0\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n\n0\n\n"
    f"{HIDDEN}",
    "te-connection": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n"
    f"Connection: transfer-encoding\n\n0\n\n{HIDDEN}",
    "chunk-extension": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n\n"
    f"1;a=b\nx\n0\n\n{HIDDEN}",
    "chunk-size-junk": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n\n"
    f"0x1\nx\n0\n\n{HIDDEN}",
    "chunk-size-huge": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n\n"
    f"{'f' * 20}1\nx\n0\n\n{HIDDEN}",
    "chunk-trailers": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nTransfer-Encoding: chunked\n\n"
    f"0\nHost: evil.test\nX-Api-Key: {HELD}\n\n{HIDDEN}",
    # Heads
    "fold": f"GET /ok/a HTTP/1.1\nHost: api.test\nX: a\n {A}\n\n{HIDDEN}",
    "fold-first": f"GET /ok/a HTTP/1.1\n {A}\nHost: api.test\n\n{HIDDEN}",
    "bare-lf-in-value": f"GET /ok/a HTTP/1.1\nHost: api.test\nX: a\\n{A}\n\n{HIDDEN}",
    "nul-in-value": f"GET /ok/a HTTP/1.1\nHost: api.test\nX: a\x00b\n{A}\n\n{HIDDEN}",
    "cr-in-value": f"GET /ok/a HTTP/1.1\nHost: api.test\nX: a\rY: b\n{A}\n\n{HIDDEN}",
    "space-in-name": f"GET /ok/a HTTP/1.1\nHost: api.test\nX Y: a\n{A}\n\n{HIDDEN}",
    "no-colon": f"GET /ok/a HTTP/1.1\nHost: api.test\nX\n{A}\n\n{HIDDEN}",
    "no-host": f"GET /ok/a HTTP/1.1\n{A}\n\n{HIDDEN}",
    "two-hosts": f"GET /ok/a HTTP/1.1\nHost: api.test\nHost: evil.test\n{A}\n\n{HIDDEN}",
    "other-host": f"GET /ok/a HTTP/1.1\nHost: evil.test\n{A}\n\n{HIDDEN}",
    "host-at": f"GET /ok/a HTTP/1.1\nHost: api.test@evil.test\n{A}\n\n{HIDDEN}",
    "host-port": f"GET /ok/a HTTP/1.1\nHost: api.test:8443\n{A}\n\n{HIDDEN}",
    "host-list": f"GET /ok/a HTTP/1.1\nHost: api.test, evil.test\n{A}\n\n{HIDDEN}",
    "host-suffix": f"GET /ok/a HTTP/1.1\nHost: api.test.evil.test\n{A}\n\n{HIDDEN}",
    "host-path": f"GET /ok/a HTTP/1.1\nHost: api.test/admin\n{A}\n\n{HIDDEN}",
    "absolute-form": f"GET http://api.test/admin HTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "absolute-other": f"GET http://evil.test/ok/a HTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "authority-form": f"CONNECT evil.test:443 HTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "asterisk-form": f"OPTIONS * HTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "http-0.9": f"GET /ok/a\nHost: api.test\n{A}\n\n{HIDDEN}",
    "http-2-preface": f"PRI * HTTP/2.0\n\nSM\n\n{HIDDEN}",
    "http-1.2": f"GET /ok/a HTTP/1.2\nHost: api.test\n{A}\n\n{HIDDEN}",
    "lower-method": f"get /ok/a HTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "space-in-target": f"GET /ok/a /admin HTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "tab-line": f"GET\t/admin\tHTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "h2c": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\nConnection: Upgrade, HTTP2-Settings\n"
    f"Upgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n\n{HIDDEN}",
    "upgrade-other": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\nConnection: upgrade\n"
    f"Upgrade: tcp\n\n{HIDDEN}",
    "upgrade-body": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\nConnection: upgrade\n"
    f"Upgrade: websocket\nContent-Length: 3\n\nabc{HIDDEN}",
    "connection-authorization": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\n"
    f"Connection: authorization\n\n{HIDDEN}",
    "long-head": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\nX: {'a' * 200_000}\n\n{HIDDEN}",
    "many-headers": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\n" + "X: a\n" * 400 + f"\n{HIDDEN}",
    "two-authorizations": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\n{A}\n\n{HIDDEN}",
    # Other lines than the one that is decided about
    "override": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nX-HTTP-Method-Override: DELETE\n\n",
    "override-underscore": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\n"
    "X_HTTP_Method_Override: DELETE\n\n",
    "original-url": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\nX-Original-URL: /admin\n\n",
    "rewrite-url": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\nX-Rewrite-URL: /admin\n\n",
    "pipelined": f"GET /ok/a HTTP/1.1\nHost: api.test\n{A}\n\n{HIDDEN}",
    "expect-twice": f"POST /ok/a HTTP/1.1\nHost: api.test\n{A}\nExpect: 100-continue\n"
    f"Expect: 100-continue\nContent-Length: 0\n\n{HIDDEN}",
    # Paths
    **{
        f"path {path}": f"GET {path} HTTP/1.1\nHost: api.test\n{A}\n\n"
        for path in (
            "/admin",
            "/ok/../admin",
            "/ok/%2e%2e/admin",
            "/ok/.%2e/admin",
            "/ok/..%2fadmin",
            "/ok/%2e%2e%2fadmin",
            "/ok/..;/admin",
            "/ok/%252e%252e/admin",
            "/ok/..%5cadmin",
            "/ok/..\\admin",
            "//admin",
            "/OK/a",
            "/okay",
            "/ok%2fsecret/a",
            "/ok/secret/a",
            "/ok/SECRET/a",
            "/ok/%73ecret/a",
            "/ok//secret/a",
            "/ok/secret%2fa",
            "/ok/a%00",
            "/ok/a%0d%0aX:b",
            "/ok/a#/../admin",
            "/%6fk/../admin",
            "ok/a",
            "/ok/\u00e4",
        )
    },
}


@pytest.mark.parametrize("case", CORPUS)
async def test_only_requests_whose_own_line_is_allowed_carry_the_value(
    world: BoundWorld, recorder: Recorder, case: str
) -> None:
    raw = CORPUS[case].replace("\n", "\r\n").replace("\\r\\n", "\n").encode("latin-1", "replace")
    # The last one ends the connection, so that everything before it has been dealt with.
    await world.send(raw + b"GET /ok/end HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n")
    for seen in recorder.seen:
        assert seen.target.partition("?")[0].startswith("/ok/"), seen
        assert "secret" not in seen.target.lower()
        assert seen.method in ("GET", "POST", "HEAD")
        assert seen.header("host") == "api.test"
        lengths = [n for n, _ in seen.headers if n in ("content-length", "transfer-encoding")]
        assert len(lengths) <= 1
        assert not {n for n, _ in seen.headers} & {
            "x-http-method-override",
            "x_http_method_override",
            "x-original-url",
            "x-rewrite-url",
            "upgrade",
            "http2-settings",
        }
    # What the server reads are the requests that were decided about, and nothing between them.
    assert recorder.raw.count(VALUE.encode()) == sum(
        1 for seen in recorder.seen if VALUE in str(seen.headers)
    )
    assert b"/admin" not in bytes(recorder.raw).replace(HIDDEN.encode(), b"")


MISPLACED = {
    "other header": f"X-Other: {HELD}",
    "cookie": f"Cookie: a={HELD}",
    "header with words": f"X-Api-Key: key {HELD}",
    "header twice over": f"X-Api-Key: {HELD}{HELD}",
    "user agent": f"User-Agent: {HELD}",
    "wrong scheme": f"Authorization: Digest {HELD}",
    "no scheme": f"Authorization: {HELD}",
    "bearer with more": f"Authorization: Bearer {HELD} x",
    "upper case": f"Authorization: Bearer {HELD.upper()}",
    "basic in words": _basic(f"me:a{HELD}"),
    "basic user": _basic(f"{HELD}:x"),
    "basic two": _basic(f"{HELD}:{OTHER}"),
    "basic without colon": _basic(HELD),
    "base64": "X-Other: " + base64.b64encode(f"ab{HELD}".encode()).decode(),
    "base64 of another offset": "X-Other: " + base64.b64encode(f"abc{HELD}".encode()).decode(),
    "base64 of the third offset": "X-Other: " + base64.b64encode(f"a{HELD}".encode()).decode(),
    "hex": f"X-Other: {HELD.encode().hex()}",
    "percent": f"X-Other: {PERCENT}",
    "referer": f"Referer: https://api.test/?key={HELD}",
    "forwarded": f"X-Forwarded-Host: {HELD}.evil.test",
    "proxy": f"Proxy-Authorization: Bearer {HELD}",
    "connection": f"Connection: {HELD}",
    "range": f"Range: {HELD}",
    "two places": f"{A}\nX-Api-Key: {HELD}",
    "another's placeholder": f"X-Api-Key: {OTHER}",
    "another cage's placeholder": f"X-Api-Key: {FOREIGN}",
    "name": f"{HELD}: x",
}


@pytest.mark.parametrize("case", MISPLACED)
async def test_a_placeholder_elsewhere_is_refused_and_nothing_is_sent(
    world: BoundWorld, recorder: Recorder, case: str
) -> None:
    head = f"GET /ok/a HTTP/1.1\nHost: api.test\n{MISPLACED[case]}\nConnection: close\n\n"
    came = await world.send(head.replace("\n", "\r\n").encode())
    assert came.partition(b" ")[2][:3] in (b"403", b"400"), came
    assert b"kaged-refused: credential." in came
    assert b'"message"' in came
    assert recorder.seen == []
    assert "credential.refused" in {event.name for event in world.events}
    assert VALUE not in repr(world.events)


@pytest.mark.parametrize(
    "target",
    [
        f"/ok/{HELD}",
        f"/ok/{PERCENT}",
        f"/ok/a?other={HELD}",
        f"/ok/a?key=x{HELD}",
        f"/ok/a?key={HELD}&key={HELD}",
        f"/ok/a?{HELD}",
        f"/ok/a?{HELD}=key",
        f"/ok/a?key={HELD};x",
        f"/ok/a?other={PERCENT}",
        f"/ok/a?key={OTHER}",
        f"/ok/a?key={FOREIGN}",
        f"/ok/a?redirect=https://evil.test/{HELD}",
    ],
)
async def test_a_placeholder_elsewhere_in_the_target_is_refused(
    world: BoundWorld, recorder: Recorder, target: str
) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n"
    came = await world.send(head.encode())
    assert came.partition(b" ")[2][:3] == b"403", came
    assert recorder.seen == []
    assert HELD not in repr(world.events)


BODIES = {
    "plain": HELD.encode(),
    "json": f'{{"a": "{HELD}"}}'.encode(),
    "upper": HELD.upper().encode(),
    "form": f"a=b&token={HELD}".encode(),
    "at the window's edge": b"x" * (65536 - 20) + HELD.encode() + b"x" * 10,
    "foreign": FOREIGN.encode(),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_placeholder_in_a_body_is_refused(
    world: BoundWorld, recorder: Recorder, case: str
) -> None:
    body = BODIES[case]
    head = (
        f"POST /ok/a HTTP/1.1\r\nHost: api.test\r\n{A}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    came = await world.send(head.encode() + body)
    assert came.startswith(b"HTTP/1.1 403"), came
    assert not any(seen.complete for seen in recorder.seen)
    assert b"kgd_" not in recorder.raw.lower()


async def test_a_placeholder_late_in_a_long_body_never_arrives(
    world: BoundWorld, recorder: Recorder
) -> None:
    body = b"x" * 1_000_000 + HELD.encode() + b"x" * 1_000_000
    head = f"POST /ok/a HTTP/1.1\r\nHost: api.test\r\n{A}\r\nContent-Length: {len(body)}\r\n\r\n"
    came = await world.send(head.encode() + body)
    assert came == b"" or came.startswith(b"HTTP/1.1 403"), came
    assert [seen.complete for seen in recorder.seen] in ([], [False])
    assert b"kgd_" not in recorder.raw
    assert "credential.refused" in {event.name for event in world.events}


async def test_a_request_without_a_credential_is_under_the_rules_too(
    world: BoundWorld, recorder: Recorder
) -> None:
    came = await world.send(b"GET /admin HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n")
    assert came.startswith(b"HTTP/1.1 403")
    assert recorder.seen == []
