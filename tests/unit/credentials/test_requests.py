"""Admitting requests, with random heads; what goes on record; how many there may be."""

from __future__ import annotations

import ssl

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from kaged.base import ManualClock
from kaged.credentials.authority import CageAuthority
from kaged.credentials.events import RequestEvent, RequestLog
from kaged.credentials.rates import Rates
from kaged.credentials.refusals import RequestRefused
from kaged.credentials.requests import Admitted, RequestHead, admit
from kaged.kernel.bindings import (
    BEARER,
    CageCredential,
    CageCredentials,
    CredentialBinding,
    Destination,
    Place,
    PlaceKind,
    RequestLimits,
    new_placeholder,
)
from kaged.kernel.request_rules import RequestRule

HELD = new_placeholder(b"\1" * 20)
BINDING = CredentialBinding(
    "github",
    (Destination("api.test"), Destination("plain.test", 80, tls=False)),
    (
        BEARER,
        Place(PlaceKind.QUERY, "key"),
        Place(PlaceKind.BASIC, "me"),
        Place(PlaceKind.BASIC_USER),
    ),
    (RequestRule(("GET",), "/ok/**"),),
)
CAGE = CageCredentials([CageCredential(BINDING, HELD)])
BEARS = [(b"authorization", f"Bearer {HELD}".encode())]


def _admit(
    target: str = "/ok/a",
    headers: list[tuple[bytes, bytes]] | None = None,
    authority: bytes = b"api.test",
    *,
    tls: bool = True,
) -> Admitted:
    head = RequestHead(b"GET", target.encode(), authority, BEARS if headers is None else headers)
    return admit(CAGE, "api.test", 443, head, tls=tls)


PIECES = st.sampled_from(
    [b"kgd_", HELD.encode(), HELD.upper().encode(), b"%6b", b"key=", b"&", b"?", b"/", b"=", b"a"]
)
TEXT = st.lists(st.one_of(PIECES, st.binary(max_size=3)), max_size=6).map(b"".join)


@given(TEXT, st.lists(st.tuples(st.sampled_from([b"authorization", b"x", b"cookie"]), TEXT)))
def test_an_admitted_request_has_at_most_one_value_in_its_place(
    target: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    head = RequestHead(b"GET", b"/ok/" + target, b"api.test", headers)
    try:
        admitted = admit(CAGE, "api.test", 443, head, tls=True)
        sent, told = admitted.filled_in("the-value")
    except RequestRefused:
        return
    everything = sent + b"\n".join(name + b": " + value for name, value in told)
    assert b"kgd_" not in everything.lower() or HELD.encode() not in everything.lower()
    assert everything.count(b"the-value") <= 1
    assert sent.startswith(b"/ok/")


@pytest.mark.parametrize(
    "value", ["a\r\nb", "a\nb", "\x00", "", " a", "a ", "\u00e4", "x" * 20_000]
)
def test_a_value_that_cannot_stand_in_a_request_is_not_sent(value: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        _admit().filled_in(value)
    assert caught.value.refusal.status == 503


def test_a_value_with_anything_in_it_is_escaped_in_a_query() -> None:
    target, _ = _admit(f"/ok/a?x=1&key={HELD}", []).filled_in("a b&c=d#e%f?")
    assert target == b"/ok/a?x=1&key=a%20b%26c%3Dd%23e%25f%3F"


def test_without_tls_only_where_the_operator_said_so() -> None:
    with pytest.raises(RequestRefused, match="with TLS only"):
        _admit(tls=False, authority=b"api.test:443")
    head = RequestHead(b"GET", b"/ok/a", b"plain.test", BEARS)
    assert admit(CAGE, "plain.test", 80, head, tls=False).credential == "github"


def test_the_user_beside_a_password_must_be_the_one_that_is_named() -> None:
    def basic(text: str) -> list[tuple[bytes, bytes]]:
        import base64

        return [(b"authorization", b"Basic " + base64.b64encode(text.encode()))]

    assert _admit(headers=basic(f"me:{HELD}")).credential == "github"
    assert _admit(headers=basic(f"{HELD}:x")).credential == "github"
    assert _admit(headers=basic(f"{HELD}:{HELD}")).credential == "github"
    with pytest.raises(RequestRefused):
        _admit(headers=basic(f"you:{HELD}"))
    assert _admit(headers=basic("you:x")).credential == ""


def test_equal_events_are_counted_and_kinds_are_bounded() -> None:
    clock, seen = ManualClock(), list[RequestEvent]()
    log = RequestLog("agent:a", seen.append, clock)
    for _ in range(50):
        log.used("api.test", 443, "GET", "/a", "github", "200")
    for number in range(200):
        log.refused("api.test", 443, "GET", f"/{number}", "", rule="r", reason="no")
    assert len(seen) == 64
    clock.advance(11)
    log.used("api.test", 443, "GET", "/a", "github", "200")
    assert [(one.name, one.count) for one in seen[64:]] == [
        ("credential.used", 49),
        ("credential.refused", 137),
        ("credential.used", 1),
    ]
    log.used("api.test", 443, "GET", "/a", "github", "200")
    log.flush()
    assert sum(one.count for one in seen) == 252
    assert seen[0].data()["name"] == "github"
    log.client_refused("api.test", 443, "why")
    assert seen[-1].data()["reason"] == "why"


def test_a_placeholder_in_a_path_is_not_put_on_record() -> None:
    seen = list[RequestEvent]()
    log = RequestLog("agent:a", seen.append, ManualClock())
    log.refused("api.test", 443, "GET", f"/a/{HELD}", "", rule="r", reason="no")
    assert seen[0].path == "/a/kgd_..."


def test_requests_are_counted_by_the_minute() -> None:
    clock = ManualClock()
    rates = Rates(clock)
    binding = CredentialBinding(
        "github", (Destination("api.test"),), limits=RequestLimits(requests_per_minute=3)
    )
    assert [rates.take(binding) for _ in range(4)] == [True, True, True, False]
    clock.advance(21)
    assert [rates.take(binding) for _ in range(2)] == [True, False]
    assert all(rates.take(BINDING) for _ in range(100))


def test_an_authority_is_for_its_hosts_alone() -> None:
    authority = CageAuthority(("192.0.2.1", "api.test"), ManualClock(now_ms=1_700_000_000_000))
    certificate = x509.load_pem_x509_certificate(authority.pem.encode())
    constraints = certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    permitted = constraints.value.permitted_subtrees or []
    assert [str(one.value) for one in permitted] == ["192.0.2.1/32", "api.test"]
    assert "PRIVATE" not in authority.pem
    assert isinstance(authority.context("api.test", h2=True), ssl.SSLContext)
    assert authority.context("api.test", h2=True) is authority.context("api.test", h2=True)
    with pytest.raises(ValueError, match="not bound"):
        authority.context("evil.test", h2=False)
    assert authority.pem != CageAuthority(("api.test",), ManualClock()).pem
