"""Who may come in. Every rule of both listeners, one request at a time."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import KagedError, ManualClock
from kaged.config.coresections import AuthMode
from kaged.config.token_file import TokenFile, read_token
from kaged.kernel.identity import Actor, VouchedBy
from kaged.serve.http.access import (
    AccessRequest,
    AccessRules,
    Credentials,
    is_loopback,
    require_actor,
)
from kaged.serve.http.connection import PeerConnection
from kaged.serve.http.credentials import CookieSessions
from raising import raises_code

UID = 1000
HOST = b"127.0.0.1:7777"
RULES = AccessRules(AuthMode.SECURE, UID, "ada")
INSECURE = replace(RULES, mode=AuthMode.INSECURE)
TCP = PeerConnection("tcp", address="127.0.0.1")
UNIX = PeerConnection("unix", uid=UID, pid=1)

Headers = Sequence[tuple[bytes, bytes]]


@pytest.fixture
def credentials(tmp_path: Path, clock: ManualClock) -> Credentials:
    import os

    return Credentials(TokenFile.open(tmp_path / "token", os.getuid()), CookieSessions(clock))


def _token(credentials: Credentials) -> bytes:
    import os

    return read_token(credentials.token.path, os.getuid()).encode()


def _knock(
    *headers: tuple[bytes, bytes],
    method: str = "GET",
    path: str = "/api/v1/status",
    connection: PeerConnection | None = TCP,
    websocket: bool = False,
    host: bytes | None = HOST,
) -> AccessRequest:
    first: list[tuple[bytes, bytes]] = [] if host is None else [(b"host", host)]
    return AccessRequest(method, path, [*first, *headers], connection, websocket)


def test_the_daemons_own_uid_comes_in_over_the_unix_socket(credentials: Credentials) -> None:
    caller = require_actor(RULES, credentials, _knock(connection=UNIX, host=b"whatever"))
    assert caller == Actor.operator("ada", VouchedBy.UNIX)


@pytest.mark.parametrize("uid", [0, UID + 1, 65534, None])
def test_every_other_uid_is_turned_away_root_included(
    credentials: Credentials, uid: int | None
) -> None:
    with raises_code("access_denied"):
        require_actor(RULES, credentials, _knock(connection=PeerConnection("unix", uid=uid)))


def test_another_uid_does_not_get_in_with_the_right_token_either(credentials: Credentials) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    with raises_code("access_denied"):
        require_actor(RULES, credentials, _knock(bearer, connection=PeerConnection("unix", uid=7)))


def test_a_request_from_nowhere_is_turned_away(credentials: Credentials) -> None:
    with raises_code("access_denied"):
        require_actor(RULES, credentials, _knock(connection=None))


def test_a_page_has_no_business_on_the_unix_socket(credentials: Credentials) -> None:
    with raises_code("origin_not_allowed"):
        require_actor(RULES, credentials, _knock((b"origin", b"http://x"), connection=UNIX))


def test_the_bearer_token_opens_the_tcp_listener(credentials: Credentials) -> None:
    bearer = (b"authorization", b"bearer " + _token(credentials))
    assert require_actor(RULES, credentials, _knock(bearer)) == Actor.operator(
        "ada", VouchedBy.BEARER
    )


@pytest.mark.parametrize(
    "value",
    [b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic YTpi", b"Bearer \xff\xfe", b"\xff"],
)
def test_anything_else_in_authorization_does_not(credentials: Credentials, value: bytes) -> None:
    with raises_code("unauthenticated"):
        require_actor(RULES, credentials, _knock((b"authorization", value)))


def test_no_credential_is_not_enough_in_secure_mode(credentials: Credentials) -> None:
    with raises_code("unauthenticated"):
        require_actor(RULES, credentials, _knock())


def test_a_wrong_token_is_not_saved_by_a_good_cookie(credentials: Credentials) -> None:
    cookie = (b"cookie", b"kaged_session=" + credentials.cookies.open().encode())
    with raises_code("unauthenticated"):
        require_actor(RULES, credentials, _knock((b"authorization", b"Bearer no"), cookie))


def test_two_authorization_headers_are_refused(credentials: Credentials) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    with raises_code("access_denied"):
        require_actor(RULES, credentials, _knock(bearer, bearer))


def test_the_cookie_of_a_session_opens_the_tcp_listener(credentials: Credentials) -> None:
    cookie = (b"cookie", b"a=b; kaged_session=" + credentials.cookies.open().encode())
    assert require_actor(RULES, credentials, _knock(cookie)).vouched_by is VouchedBy.COOKIE


def test_an_ended_or_expired_session_does_not(credentials: Credentials, clock: ManualClock) -> None:
    ended, old = credentials.cookies.open(), credentials.cookies.open()
    credentials.cookies.close(ended)
    clock.advance(12 * 3600)
    for value in (ended, old, "", "made-up"):
        cookie = (b"cookie", b"kaged_session=" + value.encode())
        with raises_code("unauthenticated"):
            require_actor(RULES, credentials, _knock(cookie))


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example",
        b"evil.example:7777",
        b"127.0.0.1.evil.example",
        b"localhost.evil.example",
        b"127.0.0.1@evil.example",
        b"evil.example#127.0.0.1",
        b"127.0.0.1:7777:80",
        b"127.0.0.1:notaport",
        b"",
        b" ",
        b"[::1",
        b"::1",
        b"0.0.0.0",
        b"2130706433",
        b"localhost\x00",
    ],
)
def test_a_foreign_host_is_turned_away_before_any_credential(
    credentials: Credentials, host: bytes
) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    with raises_code("host_not_allowed"):
        require_actor(RULES, credentials, _knock(bearer, host=host))


def test_a_missing_or_doubled_host_is_turned_away(credentials: Credentials) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    with raises_code("host_not_allowed"):
        require_actor(RULES, credentials, _knock(bearer, host=None))
    with raises_code("access_denied"):
        require_actor(RULES, credentials, _knock(bearer, (b"host", b"evil.example")))


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:1", b"127.0.0.1", b"[::1]:7777"])
def test_loopback_names_are_ours_whatever_the_port(credentials: Credentials, host: bytes) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    assert require_actor(RULES, credentials, _knock(bearer, host=host)).person_id == "ada"


@pytest.mark.parametrize("websocket", [False, True])
@pytest.mark.parametrize(
    "origin",
    [
        b"http://evil.example",
        b"null",
        b"http://127.0.0.1:3000",
        b"http://127.0.0.1",
        b"https://127.0.0.1:7777",
        b"http://127.0.0.1:7777.evil.example",
        b"",
    ],
)
def test_a_page_of_another_origin_is_turned_away_even_with_the_token(
    credentials: Credentials, origin: bytes, websocket: bool
) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    with raises_code("origin_not_allowed"):
        require_actor(RULES, credentials, _knock(bearer, (b"origin", origin), websocket=websocket))


def test_our_own_page_and_a_configured_one_come_in(credentials: Credentials) -> None:
    cookie = (b"cookie", b"kaged_session=" + credentials.cookies.open().encode())
    rules = replace(RULES, origins=frozenset({"https://desk.example"}))
    for origin in (b"http://127.0.0.1:7777", b"https://desk.example"):
        knock = _knock(cookie, (b"origin", origin), method="POST", websocket=False)
        assert require_actor(rules, credentials, knock).vouched_by is VouchedBy.COOKIE


@pytest.mark.parametrize(
    ("method", "websocket"), [("POST", False), ("DELETE", False), ("GET", True)]
)
def test_a_cookie_alone_changes_nothing_and_opens_no_websocket(
    credentials: Credentials, method: str, websocket: bool
) -> None:
    cookie = (b"cookie", b"kaged_session=" + credentials.cookies.open().encode())
    with raises_code("origin_not_allowed"):
        require_actor(RULES, credentials, _knock(cookie, method=method, websocket=websocket))


@pytest.mark.parametrize("site", [b"cross-site", b"same-site", b"", b"strange"])
@pytest.mark.parametrize("rules", [RULES, INSECURE])
def test_another_page_in_the_same_browser_cannot_ride_along(
    credentials: Credentials, site: bytes, rules: AccessRules
) -> None:
    cookie = (b"cookie", b"kaged_session=" + credentials.cookies.open().encode())
    with raises_code("origin_not_allowed"):
        require_actor(rules, credentials, _knock(cookie, (b"sec-fetch-site", site)))


def test_insecure_mode_lets_everybody_on_loopback_in_as_nobody(credentials: Credentials) -> None:
    assert require_actor(INSECURE, credentials, _knock()) == Actor.operator(
        None, VouchedBy.INSECURE
    )
    assert require_actor(INSECURE, credentials, _knock(connection=UNIX)).person_id is None


def test_insecure_mode_still_checks_host_and_origin(credentials: Credentials) -> None:
    with raises_code("host_not_allowed"):
        require_actor(INSECURE, credentials, _knock(host=b"evil.example"))
    with raises_code("origin_not_allowed"):
        require_actor(INSECURE, credentials, _knock((b"origin", b"http://evil.example")))


def test_health_and_launch_need_no_credential_but_the_right_host(credentials: Credentials) -> None:
    for path in ("/healthz", "/api/v1/auth/launch"):
        assert require_actor(RULES, credentials, _knock(path=path)).vouched_by is VouchedBy.OPEN
        with raises_code("host_not_allowed"):
            require_actor(RULES, credentials, _knock(path=path, host=b"evil.example"))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/auth/launch"),
        ("POST", "/healthz"),
        ("GET", "/healthz/"),
        ("GET", "/healthz/../api/v1/status"),
        ("GET", "//healthz"),
        ("GET", "/metrics"),
        ("GET", "/api/v1/openapi.json"),
    ],
)
def test_nothing_else_is_open(credentials: Credentials, method: str, path: str) -> None:
    with raises_code("unauthenticated"):
        require_actor(RULES, credentials, _knock(method=method, path=path))


def test_a_websocket_on_an_open_path_is_not_open(credentials: Credentials) -> None:
    with raises_code("unauthenticated"):
        require_actor(RULES, credentials, _knock(path="/healthz", websocket=True))


PROXIED = replace(RULES, trusted_proxies=(ipaddress.ip_network("10.0.0.0/8"),))


def test_a_trusted_proxy_names_the_operator(credentials: Credentials) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    knock = _knock(
        bearer,
        (b"x-kaged-user-id", b"grace@example.org"),
        connection=PeerConnection("tcp", address="10.1.2.3"),
    )
    assert require_actor(PROXIED, credentials, knock).person_id == "grace@example.org"


@pytest.mark.parametrize("address", ["127.0.0.1", "11.0.0.1", "::1", None, "not-an-address"])
def test_the_same_header_from_anyone_else_is_not_believed(
    credentials: Credentials, address: str | None
) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    knock = _knock(
        bearer,
        (b"x-kaged-user-id", b"mallory"),
        connection=PeerConnection("tcp", address=address),
    )
    assert require_actor(PROXIED, credentials, knock).person_id == "ada"


def test_the_header_is_no_credential(credentials: Credentials) -> None:
    knock = _knock(
        (b"x-kaged-user-id", b"grace"), connection=PeerConnection("tcp", address="10.1.2.3")
    )
    with raises_code("unauthenticated"):
        require_actor(PROXIED, credentials, knock)


@pytest.mark.parametrize("value", [b"", b"a b", b"../x", b"a" * 129, b"\xe9", b"a\nb"])
def test_a_user_id_that_is_none_is_refused_not_replaced(
    credentials: Credentials, value: bytes
) -> None:
    bearer = (b"authorization", b"Bearer " + _token(credentials))
    knock = _knock(
        bearer,
        (b"x-kaged-user-id", value),
        connection=PeerConnection("tcp", address="10.1.2.3"),
    )
    with raises_code("access_denied"):
        require_actor(PROXIED, credentials, knock)


def test_in_insecure_mode_even_a_trusted_proxy_names_nobody(credentials: Credentials) -> None:
    rules = replace(PROXIED, mode=AuthMode.INSECURE)
    knock = _knock(
        (b"x-kaged-user-id", b"grace"), connection=PeerConnection("tcp", address="10.1.2.3")
    )
    assert require_actor(rules, credentials, knock).person_id is None


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_the_rest(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from(
                [b"host", b"origin", b"authorization", b"cookie", b"sec-fetch-site", b"x"]
            ),
            st.binary(max_size=40),
        ),
        max_size=6,
    ),
    method=st.sampled_from(["GET", "POST", "PUT", "BREW"]),
    websocket=st.booleans(),
)
def test_no_headers_without_a_credential_ever_get_in(
    headers: list[tuple[bytes, bytes]], method: str, websocket: bool
) -> None:
    """Whatever is sent, the answer is one of our errors: no crash, no entry."""
    credentials = Credentials(TokenFile(Path("/none"), b"\0" * 32), CookieSessions(ManualClock()))
    knock = AccessRequest(method, "/api/v1/projects", headers, TCP, websocket)
    with pytest.raises(KagedError) as caught:
        require_actor(RULES, credentials, knock)
    assert caught.value.code in {
        "access_denied",
        "unauthenticated",
        "host_not_allowed",
        "origin_not_allowed",
    }
