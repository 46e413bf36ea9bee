"""Escape attempts E55 to E65: the network, from inside, as root's daemon and as a plain user's."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from fakes.gatelab import METADATA, OTHER, PUBLIC, PUBLIC6, Case, Result, identities, run_case

# What the kernel can do decides how a connection meets the gate; no way may let more through.
MODES = {
    "trap": {"trap": True, "route": True, "ipv6": True},
    "ports": {"trap": False, "route": True, "ipv6": True},
    "bare": {"trap": False, "route": False, "ipv6": False},
    "uvloop": {"trap": True, "route": True, "ipv6": True},
}
TRAPS = {"trap", "uvloop"}
NOT_REACHED = {"ECONNRESET", "ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL"}
FORBIDDEN = "HTTP/1.1 403 Forbidden"
GRANTED = f"{PUBLIC} 443"

STANDARD = Case(
    grants=["api.test:443"],
    hosts={
        "api.test": [PUBLIC],
        "evil.test": [OTHER],
        "evilapi.test": [OTHER],
        "other.test": [OTHER],
    },
    servers=[
        (PUBLIC, 443, "name"),
        (PUBLIC, 80, "name"),
        (OTHER, 443, "name"),
        (OTHER, 8443, "name"),
        (METADATA, 80, "name"),
        ("127.0.0.1", 6379, "name"),
        ("127.0.0.1", 9090, "name"),
        (PUBLIC6, 443, "name"),
        (PUBLIC, 9999, "udp"),
        ("8.8.8.8", 53, "udp"),
    ],
    neighbours=["other.test:8443", "localhost:9090"],
    code=f"""
say("granted", attempt("api.test", 443))
say("granted by proxy", ask_connect("api.test:443"))
say("granted by socks", ask_socks(socks_name("api.test"), 443))
say("E55", attempt("{OTHER}", 443))
say("E56", attempt("127.0.0.1", 6379))
say("E57 direct", attempt("{METADATA}", 80))
say("E57 connect", ask_connect("{METADATA}:80"))
say("E57 socks", ask_socks(socks_ip("{METADATA}"), 80))
say("E58 direct", attempt("api.test", 80))
say("E58 connect", ask_connect("api.test:80"))
say("E59 connect", [ask_connect(a) for a in ("evil.test:443", "127.0.0.1:6379", "{PUBLIC}:443")])
say("E59 socks", [ask_socks(socks_name("evil.test"), 443), ask_socks(socks_ip("127.0.0.1"), 6379),
                  ask_socks(socks_ip("{PUBLIC}"), 443), ask_socks(socks_name("{PUBLIC}"), 443)])
say("E60 socks", [ask_socks(socks_name("api.test"), 443, command) for command in (2, 3)])
say("E60 get", speak(b"GET http://api.test/ HTTP/1.1\\r\\nHost: api.test\\r\\n\\r\\n"))
say("E61 lookup", attempt("evil.test", 443))
say("E61 dns", ask_dns("evil.test"))
say("E61 direct dns", ask_dns("evil.test", server="8.8.8.8"))
def send_udp(family, place):
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(b"x", place)
            return "sent"
        except OSError as error:
            return named(error)
say("E62 udp", send_udp(socket.AF_INET, ("{PUBLIC}", 9999)))
say("E62 ipv6", attempt("{PUBLIC6}", 443, family=socket.AF_INET6))
say("E63 suffix", [attempt("evilapi.test", 443), ask_connect("evilapi.test:443")])
say("E63 spelling", [attempt("API.Test", 443), attempt("api.test.", 443),
                     ask_connect("API.TEST:443"), ask_connect("api.test.:443"),
                     ask_dns("ApI.tEsT")])
say("E64", [attempt(f"127.77.0.{{n}}", 8443) for n in (1, 2)] + [attempt("127.0.0.1", 9090)])
""",
)


@functools.cache
def table(who: str, mode: str) -> Result:
    return run_case(replace(STANDARD, facts=MODES[mode], uvloop=mode == "uvloop"), who)


@pytest.fixture(params=identities())
def who(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def result(who: str, mode: str) -> Result:
    return table(who, mode)


def test_the_granted_host_is_reached_each_way_and_nobody_else_is_visited(result: Result) -> None:
    assert result.said["granted"] == GRANTED
    assert result.said["granted by proxy"] == f"HTTP/1.1 200 Connection established|{GRANTED}"
    assert result.said["granted by socks"] == f"code 0|{GRANTED}"
    assert set(result.visits) == {GRANTED}
    assert set(result.resolved) == {"api.test"}
    assert result.leaked_fds == 0
    assert result.open_connections == 0


def test_e55_connect_to_an_ungranted_address(result: Result, mode: str) -> None:
    assert result.said["E55"] in NOT_REACHED
    if mode in TRAPS:
        assert result.said["E55"] == "ECONNRESET"
        (denial,) = result.denied(host=OTHER, port=443, protocol="direct")
        assert denial["reason"] == f"net:{OTHER}:443"


def test_e56_a_service_on_the_hosts_loopback(result: Result) -> None:
    assert result.said["E56"] == "ECONNREFUSED"


def test_e57_the_cloud_metadata_address(result: Result, mode: str) -> None:
    assert result.said["E57 direct"] in NOT_REACHED
    assert result.said["E57 connect"] == FORBIDDEN
    assert result.said["E57 socks"] == "code 2"
    assert result.denied(host=METADATA, port=80, protocol="connect")
    assert result.denied(host=METADATA, port=80, protocol="socks5")
    assert bool(result.denied(host=METADATA, port=80, protocol="direct")) is (mode in TRAPS)


def test_e58_the_granted_host_on_another_port(result: Result, mode: str) -> None:
    assert result.said["E58 direct"] in NOT_REACHED
    assert result.said["E58 connect"] == FORBIDDEN
    assert bool(result.denied(host="api.test", port=80, protocol="direct")) is (mode in TRAPS)


def test_e59_the_proxy_asked_for_what_is_not_granted(result: Result) -> None:
    assert result.said["E59 connect"] == [FORBIDDEN] * 3
    assert result.said["E59 socks"] == ["code 2"] * 4


def test_e60_the_proxy_asked_for_more_than_connections(result: Result) -> None:
    assert result.said["E60 socks"] == ["code 7"] * 2
    assert result.said["E60 get"].startswith("HTTP/1.1 405 ")
    assert "only supports CONNECT" in result.said["E60 get"]


def test_e61_an_ungranted_name_is_not_found_and_not_asked_for_outside(result: Result) -> None:
    assert result.said["E61 lookup"] == "unknown"
    assert result.said["E61 dns"] == "rcode 3"
    assert result.said["E61 direct dns"] in NOT_REACHED
    assert "evil.test" not in result.resolved
    assert result.denied(host="evil.test", protocol="dns")


def test_e62_udp_and_ipv6_to_the_outside(result: Result) -> None:
    assert result.said["E62 udp"] in NOT_REACHED | {"sent"}  # sent into the cage's own loopback
    assert result.said["E62 ipv6"] in NOT_REACHED
    assert not [visit for visit in result.visits if "udp" in visit or ":" in visit]


def test_e63_a_name_that_only_ends_like_a_granted_one(result: Result) -> None:
    assert result.said["E63 suffix"] == ["unknown", FORBIDDEN]
    direct, dotted, connect, connect_dotted, dns = result.said["E63 spelling"]
    assert [direct, dotted] == [GRANTED] * 2
    assert [connect, connect_dotted] == [f"HTTP/1.1 200 Connection established|{GRANTED}"] * 2
    assert dns == "127.77.0.1"


def test_e64_another_cages_listeners(result: Result) -> None:
    assert set(result.said["E64"]) <= NOT_REACHED
    assert result.said["E64"][2] == "ECONNREFUSED"


def test_e65_a_cage_without_grants_has_no_listener_and_no_variable(who: str) -> None:
    result = run_case(
        Case(
            servers=[(PUBLIC, 443, "name"), ("127.0.0.1", 808, "name")],
            neighbours=["*"],
            code=f"""
say("listening", listening())
say("variables", proxy_variables())
say("direct", attempt("{PUBLIC}", 443))
say("ipv6", attempt("{PUBLIC6}", 443, family=socket.AF_INET6))
say("proxy", attempt("127.0.0.1", 808))
say("dns", ask_dns("api.test"))
say("lookup", attempt("api.test", 443))
say("localhost", socket.gethostbyname("localhost"))
""",
        ),
        who,
    )
    assert result.said == {
        "listening": [],
        "variables": {},
        "direct": "ENETUNREACH",
        "ipv6": "ENETUNREACH",
        "proxy": "ECONNREFUSED",
        "dns": "ECONNREFUSED",
        "lookup": "unknown",
        "localhost": "127.0.0.1",
    }
    assert result.visits == []
    assert result.events == []
