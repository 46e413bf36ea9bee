from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage.net.handshake import (
    Asked,
    More,
    ProxyHandshake,
    ProxyKind,
    ProxyOutcome,
    ProxyRefused,
    Step,
    reply_for,
)

LIMIT = 8192
HELLO = b"\x05\x01\x00"


def feed(data: bytes, limit: int = LIMIT) -> Step:
    return ProxyHandshake(limit).feed(data)


def connect(authority: str, fields: str = "") -> bytes:
    return f"CONNECT {authority} HTTP/1.1\r\nHost: x\r\n{fields}\r\n".encode("latin-1")


def socks(address: bytes, port: int, command: int = 1) -> bytes:
    return b"\x05" + bytes([command]) + b"\x00" + address + struct.pack(">H", port)


def name(text: bytes) -> bytes:
    return b"\x03" + bytes([len(text)]) + text


def status(step: Step) -> int:
    assert isinstance(step, ProxyRefused)
    assert step.reply.startswith(b"HTTP/1.1 ")
    assert step.reply.endswith(step.reason.encode() + b"\n")
    return int(step.reply.split(b" ")[1])


def socks_code(step: Step) -> int:
    assert isinstance(step, ProxyRefused)
    assert step.reply[-10:-9] == b"\x05"
    return step.reply[-9]


def test_connect_asks_for_host_and_port() -> None:
    assert feed(connect("api.test:443")) == Asked(ProxyKind.CONNECT, "api.test", 443, b"")
    assert feed(connect("[2606::1]:80")) == Asked(ProxyKind.CONNECT, "[2606::1]", 80, b"")


def test_what_follows_the_question_is_kept_for_the_destination() -> None:
    step = feed(connect("api.test:443") + b"\x16\x03\x01 hello")
    assert step == Asked(ProxyKind.CONNECT, "api.test", 443, b"\x16\x03\x01 hello")


@pytest.mark.parametrize(
    "authority",
    [
        "user:pass@api.test:443",
        "user@api.test:443",
        "http://api.test:443",
        "http://api.test/",
        "/",
        "*",
        "api.test",
        "api.test:",
        "api.test:0",
        "api.test:65536",
        "api.test:99999999999",
        "api.test:+443",
        "api.test:-1",
        "api.test:4 43",
        "api.test:443/",
        "api.test:443#",
        "api.test:443?x",
        "api.test:0x1bb",
        "api.test:44\u00b3",
        "2606::1:80",
        "[2606::1%lo]:80",
        "[]:80",
        ":443",
        "api%2etest:443",
        "api.test\\:443",
        "api.test\t:443",
    ],
)
def test_anything_but_host_and_port_is_a_bad_request(authority: str) -> None:
    assert status(feed(connect(authority))) == 400


@pytest.mark.parametrize(
    "line",
    [
        "connect api.test:443 HTTP/1.1",
        "CONNECT  api.test:443 HTTP/1.1",
        "CONNECT api.test:443 HTTP/2.0",
        "CONNECT api.test:443",
        "CONNECT api.test:443 HTTP/1.1 x",
        "CONNECT\tapi.test:443 HTTP/1.1",
        "CONNECT api.test:443\0 HTTP/1.1",
        "CONNECT api.test:443 HTTP/1.1\nX: y",
    ],
)
def test_a_request_line_with_other_spacing_or_versions_is_refused(line: str) -> None:
    assert status(feed(f"{line}\r\n\r\n".encode("latin-1"))) == 400


@pytest.mark.parametrize(
    "field", ["X\r\n", " folded: x\r\n", "X : y\r\n", ": y\r\n", "X: a\0b\r\n", "X: a\nb: c\r\n"]
)
def test_a_malformed_header_field_is_refused(field: str) -> None:
    assert status(feed(connect("api.test:443", field))) == 400


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "TRACE", "PUT"])
def test_plain_requests_are_refused_with_the_reason(method: str) -> None:
    step = feed(f"{method} http://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n".encode())
    assert status(step) == 405
    assert isinstance(step, ProxyRefused)
    assert b"Allow: CONNECT\r\n" in step.reply
    assert "only supports CONNECT" in step.reason


def test_a_header_without_end_is_cut_at_the_limit() -> None:
    handshake = ProxyHandshake(100)
    step = handshake.feed(b"CONNECT api.test:443 HTTP/1.1\r\n")
    assert step == More()
    step = handshake.feed(b"X: " + b"a" * 100)
    assert status(step) == 431
    with pytest.raises(RuntimeError):
        handshake.feed(b"more")


def test_a_header_longer_than_the_limit_is_refused_though_it_ends() -> None:
    assert status(feed(connect("api.test:443", "X: " + "a" * 200 + "\r\n"), 100)) == 431
    assert status(feed(connect("api.test:443", "X: a\r\n" * 80))) == 431


@pytest.mark.parametrize(
    "first", [b"\x16\x03\x01\x02\x00", b"\x00", b"\xff", b"get / HTTP/1.1\r\n\r\n"]
)
def test_what_is_neither_protocol_is_refused_at_once(first: bytes) -> None:
    assert status(feed(first)) == 400


def test_socks_asks_for_names_and_addresses() -> None:
    handshake = ProxyHandshake(LIMIT)
    assert handshake.feed(HELLO) == More(b"\x05\x00")
    asked = handshake.feed(socks(name(b"api.test"), 443) + b"rest")
    assert asked == Asked(ProxyKind.SOCKS5, "api.test", 443, b"rest")
    step = feed(HELLO + socks(b"\x01\x09\x09\x09\x09", 53))
    assert step == Asked(ProxyKind.SOCKS5, "9.9.9.9", 53, b"", before=b"\x05\x00")
    step = feed(HELLO + socks(b"\x04" + bytes(15) + b"\x01", 53))
    assert step == Asked(ProxyKind.SOCKS5, "::1", 53, b"", before=b"\x05\x00")


@pytest.mark.parametrize("command", [0, 2, 3, 4, 255])
def test_socks_bind_and_udp_are_refused(command: int) -> None:
    step = feed(HELLO + socks(name(b"api.test"), 443, command))
    assert socks_code(step) == 7
    assert isinstance(step, ProxyRefused)
    assert "CONNECT" in step.reason


@pytest.mark.parametrize("raw", [b"", b"api.test\0.evil", b"api\xc3\xa9.test", b"a\r\nb", b"\x7f"])
def test_a_socks_name_that_is_no_name_is_refused(raw: bytes) -> None:
    assert socks_code(feed(HELLO + socks(name(raw), 443))) == 2


def test_other_socks_malformations_are_refused_in_socks() -> None:
    assert socks_code(feed(HELLO + socks(b"\x01\x09\x09\x09\x09", 0))) == 2
    assert socks_code(feed(HELLO + socks(b"\x02\x09\x09\x09\x09", 1))) == 8
    assert socks_code(feed(HELLO + b"\x04" + socks(name(b"a"), 1)[1:])) == 1
    assert socks_code(feed(HELLO + b"\x05\x01\x01" + socks(name(b"a"), 1)[3:])) == 1


def test_socks_with_a_password_and_socks4_are_refused() -> None:
    assert feed(b"\x05\x01\x02") == ProxyRefused(
        b"\x05\xff", "only SOCKS5 without authentication is served"
    )
    assert feed(b"\x05\x00") == ProxyRefused(
        b"\x05\xff", "only SOCKS5 without authentication is served"
    )
    step = feed(b"\x04\x01\x00\x50\x01\x02\x03\x04\x00")
    assert isinstance(step, ProxyRefused)
    assert step.reply[:2] == b"\x00\x5b"


@pytest.mark.parametrize("outcome", list(ProxyOutcome))
def test_every_outcome_can_be_said_in_both_protocols(outcome: ProxyOutcome) -> None:
    http = reply_for(ProxyKind.CONNECT, outcome, "why\r\nX: y")
    assert http.endswith(b"\r\n\r\n") if outcome is ProxyOutcome.OPEN else b"why\\r\\nX" in http
    code = reply_for(ProxyKind.SOCKS5, outcome, "why")[1]
    assert (code == 0) is (outcome is ProxyOutcome.OPEN)
    assert (code == 2) is (outcome is ProxyOutcome.DENIED)


conversations = st.one_of(
    st.binary(max_size=64),
    st.builds(lambda rest: HELLO + rest, st.binary(max_size=64)),
    st.builds(lambda rest: HELLO + socks(name(b"api.test"), 443) + rest, st.binary(max_size=8)),
    st.builds(lambda rest: connect("api.test:443") + rest, st.binary(max_size=8)),
)


@given(conversations)
def test_a_conversation_means_the_same_in_one_piece_and_byte_by_byte(data: bytes) -> None:
    whole = feed(data)
    handshake = ProxyHandshake(LIMIT)
    said = b""
    step: Step = More()
    for place in range(len(data)):
        step = handshake.feed(data[place : place + 1])
        if not isinstance(step, More):
            rest = data[place + 1 :]
            break
        said += step.reply
    else:
        rest = b""
    match whole:
        case More(reply):
            assert isinstance(step, More)
            assert said == reply
        case ProxyRefused(reply, reason):
            assert isinstance(step, ProxyRefused)
            assert (said + step.reply, step.reason) == (reply, reason)
        case Asked():
            assert isinstance(step, Asked)
            assert (step.host, step.port, step.rest + rest) == (whole.host, whole.port, whole.rest)
            assert said + step.before == whole.before
