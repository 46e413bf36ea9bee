from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.hosts import MAX_HOST_CHARS, NetTargetInvalid, is_local, normalise_host
from kaged.kernel.net import (
    ANYWHERE,
    NetTarget,
    decide_address,
    decide_net,
    matches,
    parse_target,
)
from unit.kernel.strategies import HOSTS, PORTS, anything, net_targets, patiently

LONG = ".".join(["a" * 63] * 3 + ["a" * 61])


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("example.org", "example.org"),
        ("EXAMPLE.Org.", "example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example.", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("localhost", "localhost"),
        ("3com.example", "3com.example"),
        ("1.2.3.4", "1.2.3.4"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("[2001:DB8::0:1]", "2001:db8::1"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"),
        (LONG, LONG),
        (LONG + ".", LONG),
    ],
)
def test_a_host_has_one_spelling(text: str, host: str) -> None:
    assert normalise_host(text) == host
    assert normalise_host(host) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "a.b..",
        ".a",
        "-a.example",
        "a-.example",
        "a_b.example",
        "a b.example",
        "a/b",
        "user@host",
        "*",
        "*.example.org",
        "a" * 64 + ".example",
        "a" + LONG,
        "a" * (MAX_HOST_CHARS + 3),
        "127.1",
        "127.0.0.1.",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "1.2.3.256",
        "[1.2.3.4]",
        "[::1",
        "::1]",
        "[]",
        "[fe80::1%eth0]",
        "fe80::1%eth0",
        # Names that IDNA would fold into another name.
        "straße.example",
        "βόλος.example",
        "\uff11\uff12\uff17.0.0.1",
        "\u2100.example",
        "exa\u200dmple.org",
        "\ud800.example",
        "ü" * 64,
        "example\u3002org",
        "example.org\n",
    ],
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(NetTargetInvalid):
        normalise_host(text)


@patiently
@given(anything)
def test_only_texts_are_hosts(value: object) -> None:
    if not isinstance(value, str):
        with pytest.raises(NetTargetInvalid):
            normalise_host(value)  # type: ignore[arg-type] # that is the test


@patiently
@given(st.text(max_size=20))
def test_a_normalised_host_stays_as_it_is(text: str) -> None:
    try:
        host = normalise_host(text)
    except NetTargetInvalid:
        return
    assert normalise_host(host) == host
    assert host.isascii()
    assert host == host.lower()


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("169.254.169.254", True),
        ("10.0.0.1", True),
        ("::1", True),
        ("8.8.8.8", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_local_places_are_known(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("*", ANYWHERE),
        ("Example.org:443", NetTarget("example.org", 443)),
        ("example.org.:*", NetTarget("example.org", None)),
        ("1.2.3.4:1", NetTarget("1.2.3.4", 1)),
        ("[::1]:65535", NetTarget("::1", 65535)),
        ("[2001:db8::1]:*", NetTarget("2001:db8::1", None)),
    ],
)
def test_a_target_is_read(text: str, target: NetTarget) -> None:
    assert parse_target(text) == target
    assert target.unrestricted is (text == "*")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "[]",
        "example.org",
        ":443",
        "example.org:",
        "example.org:0",
        "example.org:65536",
        "example.org:70000",
        "example.org:0443",
        "example.org:+1",
        "example.org:-1",
        "example.org:٤",
        "example.org:4 ",
        "example.org:http",
        "*:443",
        "*:*",
        "::1:443",
        "[::1]",
        "[example.org]:443",
        "https://example.org:443",
        "0.0.0.0:80",
        "[::]:80",
        "224.0.0.1:80",
        "255.255.255.255:80",
    ],
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(NetTargetInvalid) as caught:
        parse_target(text)
    assert caught.value.fix


def test_every_host_with_one_port_does_not_exist() -> None:
    with pytest.raises(ValueError, match="every port"):
        NetTarget(None, 443)


@patiently
@given(net_targets)
def test_printing_and_reading_gives_the_target_back(target: NetTarget) -> None:
    assert parse_target(target.text) == target


@patiently
@given(st.text(max_size=24))
def test_reading_and_printing_settles_after_one_step(text: str) -> None:
    try:
        target = parse_target(text)
    except NetTargetInvalid:
        return
    assert parse_target(target.text) == target


def test_names_are_matched_whole_and_in_any_spelling() -> None:
    grant = parse_target("api.test:443")

    assert matches(grant, "API.TEST.", 443)
    assert not matches(grant, "api.test", 80)
    assert not matches(grant, "evilapi.test", 443)
    assert not matches(grant, "www.api.test", 443)
    assert not matches(grant, "test", 443)


def test_a_name_does_not_grant_its_address_nor_the_other_way_round() -> None:
    assert not matches(parse_target("localhost:80"), "127.0.0.1", 80)
    assert not matches(parse_target("127.0.0.1:80"), "localhost", 80)
    assert matches(parse_target("[::ffff:127.0.0.1]:80"), "127.0.0.1", 80)


def test_any_port_is_any_port_of_that_host_only() -> None:
    grant = parse_target("api.test:*")

    assert matches(grant, "api.test", 1)
    assert matches(grant, "api.test", 65535)
    assert not matches(grant, "other.test", 1)


def test_anywhere_is_the_public_network_and_no_local_place() -> None:
    assert matches(ANYWHERE, "example.org", 443)
    assert matches(ANYWHERE, "8.8.8.8", 53)
    assert not matches(ANYWHERE, "localhost", 80)
    assert not matches(ANYWHERE, "169.254.169.254", 80)


@pytest.mark.parametrize("port", [0, -1, 65536, True, 1.0, "443", None])
def test_what_is_no_port_matches_nothing(port: object) -> None:
    assert not matches(ANYWHERE, "example.org", port)  # type: ignore[arg-type] # that is the test
    assert not decide_net([ANYWHERE], "example.org", port).allowed  # type: ignore[arg-type] # same


@patiently
@given(net_targets, net_targets)
def test_a_target_covers_another_when_it_reaches_all_of_it(
    one: NetTarget, other: NetTarget
) -> None:
    # A name and ports that no target mentions stand for all the others.
    world = [(h, p) for h in (*HOSTS, "other.example", "9.9.9.9") for p in (*PORTS, 9)]

    def reach(target: NetTarget) -> set[tuple[str, int]]:
        return {
            (host, port)
            for host, port in world
            if (target.host in (None, host) and target.port in (None, port))
            and not (target.host is None and is_local(host))
        }

    assert {d for d in world if matches(one, *d)} == reach(one)
    assert one.covers(other) is (reach(other) <= reach(one))


def test_a_denied_destination_says_which_grant_is_missing() -> None:
    decision = decide_net([parse_target("a.test:1")], "B.test.", 2)

    assert not decision.allowed
    assert decision.detail == "net:b.test:2"
    assert decision.remedy == "grant net:b.test:2"


def test_no_grants_reach_nothing() -> None:
    assert not decide_net([], "example.org", 443).allowed


def test_a_destination_that_is_none_is_denied_with_a_reason() -> None:
    decision = decide_net([ANYWHERE], "127.1", 80)

    assert not decision.allowed
    assert "not an address" in decision.detail
    assert decision.remedy


@pytest.mark.parametrize(
    ("grants", "host", "ip", "allowed"),
    [
        # A name goes wherever it resolves to, in public.
        (["api.test:80"], "api.test", "8.8.8.8", True),
        (["*"], "api.test", "2606:4700::1111", True),
        (["other.test:80"], "api.test", "8.8.8.8", False),
        # A name that leads to a special place needs that very address, too.
        (["api.test:80"], "api.test", "127.0.0.1", False),
        (["api.test:80"], "api.test", "169.254.169.254", False),
        (["api.test:80"], "api.test", "10.0.0.7", False),
        (["api.test:80"], "api.test", "::ffff:10.0.0.7", False),
        (["api.test:80"], "api.test", "64:ff9b::a00:7", False),
        (["*"], "api.test", "10.0.0.7", False),
        (["api.test:80", "10.0.0.7:80"], "api.test", "10.0.0.7", True),
        (["api.test:80", "10.0.0.7:*"], "api.test", "::ffff:10.0.0.7", True),
        (["*", "10.0.0.7:80"], "api.test", "10.0.0.7", True),
        (["api.test:80", "10.0.0.7:81"], "api.test", "10.0.0.7", False),
        (["api.test:80", "10.0.0.8:80"], "api.test", "10.0.0.7", False),
        (["10.0.0.7:80"], "api.test", "10.0.0.7", False),
        # The machine's own loopback goes by localhost, and by no other name.
        (["localhost:80"], "localhost", "127.0.0.1", True),
        (["localhost:*"], "LOCALHOST.", "::1", True),
        (["localhost:80"], "localhost", "10.0.0.7", False),
        (["localhost:80"], "localhost", "8.8.8.8", False),
        (["localhost:81"], "localhost", "127.0.0.1", False),
        (["localhost:80"], "127.0.0.1", "127.0.0.1", False),
        (["localhost:80", "api.test:80"], "api.test", "127.0.0.1", False),
        (["*"], "localhost", "127.0.0.1", False),
        # An address goes to itself alone.
        (["10.0.0.7:80"], "10.0.0.7", "10.0.0.7", True),
        (["10.0.0.7:80", "10.0.0.8:80"], "10.0.0.7", "10.0.0.8", False),
        (["*"], "8.8.8.8", "8.8.8.8", True),
        (["*"], "8.8.8.8", "9.9.9.9", False),
        (["*"], "10.0.0.7", "10.0.0.7", False),
        (["[::1]:80"], "[::1]", "0:0::1", True),
        # Nothing is reached at places that are no destination.
        (["api.test:80"], "api.test", "0.0.0.0", False),
        (["api.test:80"], "api.test", "224.0.0.1", False),
        (["api.test:80"], "api.test", "fe80::1%eth0", False),
        (["api.test:80"], "api.test", "not an address", False),
    ],
)
def test_the_gate_checks_the_address_behind_the_name(
    grants: list[str], host: str, ip: str, allowed: bool
) -> None:
    decision = decide_address(map(parse_target, grants), host, 80, ip)

    assert decision.allowed is allowed
    assert not decision.fault


def test_a_refused_address_says_where_the_name_leads() -> None:
    decision = decide_address([parse_target("api.test:80")], "api.test", 80, "10.0.0.7")

    assert decision.detail == "net:api.test:80 leads to the private address 10.0.0.7"
    assert decision.remedy == "grant net:10.0.0.7:80 as well, if that is meant"


@patiently
@given(st.lists(net_targets, max_size=3), st.sampled_from(HOSTS), st.ip_addresses().map(str))
def test_an_allowed_address_is_public_or_named(grants: list[NetTarget], host: str, ip: str) -> None:
    if decide_address(grants, host, 1, ip).allowed and is_local(normalise_host(ip)):
        named = NetTarget(normalise_host(ip), 1)
        assert any(g.host is not None and g.covers(named) for g in grants) or host == "localhost"


@patiently
@given(anything, anything, anything, anything)
def test_deciding_on_anything_never_raises(
    targets: object, host: object, port: object, ip: object
) -> None:
    one = decide_net(targets, host, port)  # type: ignore[arg-type] # that is the test
    two = decide_address(targets, host, port, ip)  # type: ignore[arg-type] # that is the test

    # Only a text, a number and a list that holds a grant can be allowed anything.
    if (
        not isinstance(host, str)
        or not isinstance(port, int)
        or not isinstance(targets, list | tuple)
    ):
        assert not one.allowed
        assert not two.allowed


def test_a_gate_that_is_handed_nonsense_denies_and_notes_the_fault() -> None:
    decision = decide_address(None, "a.test", 80, "8.8.8.8")  # type: ignore[arg-type] # the test

    assert not decision.allowed
    assert "TypeError" in decision.fault
