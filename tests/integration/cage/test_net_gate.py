"""Granted destinations from inside a real cage, by every road the gate offers."""

from __future__ import annotations

import pytest

from fakes.gatelab import OTHER, PRIVATE, PUBLIC, PUBLIC6, Case, identities, run_case
from requirements import requirement

MODES = {
    "trap": {"trap": True, "route": True, "ipv6": True},
    "ports": {"trap": False, "route": True, "ipv6": True},
    "bare": {"trap": False, "route": False, "ipv6": False},
}
OPENED = "HTTP/1.1 200 Connection established|"
REFUSED = {"ECONNRESET", "ECONNREFUSED", "ENETUNREACH"}


@pytest.fixture(params=identities())
def who(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@requirement("PH-CAP-04")
def test_a_host_and_port_is_reached_by_name_and_other_ports_are_not(who: str, mode: str) -> None:
    result = run_case(
        Case(
            grants=["api.test:8443", "db.test:5432"],
            hosts={"api.test": [PUBLIC], "db.test": [OTHER]},
            servers=[(PUBLIC, 8443, "name"), (PUBLIC, 8444, "name"), (OTHER, 5432, "name")],
            facts=MODES[mode],
            code="""
say("granted", [attempt("api.test", 8443), attempt("db.test", 5432)])
say("other ports", [attempt("api.test", 8444), attempt("db.test", 8443), attempt("api.test", 5432)])
say("other ports by proxy", [ask_connect("api.test:8444"), ask_connect("db.test:8443")])
""",
        ),
        who,
    )
    assert result.said["granted"] == [f"{PUBLIC} 8443", f"{OTHER} 5432"]
    assert set(result.said["other ports"]) <= REFUSED
    assert result.said["other ports by proxy"] == ["HTTP/1.1 403 Forbidden"] * 2
    assert sorted(result.visits) == sorted([f"{PUBLIC} 8443", f"{OTHER} 5432"])


@requirement("PH-CAP-05")
def test_every_port_of_a_host_is_reached_and_another_host_is_not(who: str, mode: str) -> None:
    ports = (443, 8443) if mode == "trap" else (80, 443)
    result = run_case(
        Case(
            grants=["api.test:*"],
            hosts={"api.test": [PUBLIC], "evil.test": [OTHER]},
            servers=[(PUBLIC, port, "name") for port in (80, 443, 8443)] + [(OTHER, 443, "name")],
            facts=MODES[mode],
            code=f"""
say("direct", [attempt("api.test", port) for port in {ports}])
say("proxy", [ask_connect("api.test:443"), ask_connect("api.test:8443")])
say("other", [attempt("evil.test", 443), ask_connect("evil.test:443"), attempt("{OTHER}", 443)])
say("around", os.environ["NO_PROXY"].split(","))
""",
        ),
        who,
    )
    assert result.said["direct"] == [f"{PUBLIC} {port}" for port in ports]
    assert result.said["proxy"] == [f"{OPENED}{PUBLIC} 443", f"{OPENED}{PUBLIC} 8443"]
    unknown, forbidden, direct = result.said["other"]
    assert (unknown, forbidden) == ("unknown", "HTTP/1.1 403 Forbidden")
    assert direct in REFUSED
    # Where not every port can be served in place, clients must not be told to avoid the proxy.
    assert ("api.test" in result.said["around"]) is (mode == "trap")
    assert not [visit for visit in result.visits if visit.startswith(OTHER)]


@requirement("PH-CAP-16")
def test_localhost_is_the_machines_loopback_and_only_for_those_who_name_it(
    who: str, mode: str
) -> None:
    code = """
say("all", [attempt("localhost", 5432), attempt("127.0.0.1", 5432), ask_connect("localhost:5432"),
            ask_connect("127.0.0.1:5432")])
"""
    server = [("127.0.0.1", 5432, "name")]
    facts = MODES[mode]
    hosts = {"example.org": ["127.0.0.1"], "localhost": [PUBLIC]}
    named = run_case(Case(["localhost:5432"], code, server, facts=facts, hosts=hosts), who)
    here = "127.0.0.1 5432"
    assert named.said["all"] == [here, here, OPENED + here, "HTTP/1.1 403 Forbidden"]
    other = run_case(Case(["example.org:5432"], code, server, facts=facts, hosts=hosts), who)
    assert set(other.said["all"][:2]) == {"ECONNREFUSED"}
    assert other.said["all"][2:] == ["HTTP/1.1 403 Forbidden"] * 2
    assert other.visits == []


@requirement("PH-CAP-16")
def test_every_port_of_localhost_leaves_the_cage_its_own_loopback(who: str) -> None:
    result = run_case(
        Case(
            grants=["localhost:*"],
            servers=[("127.0.0.1", 5432, "name"), ("::1", 5433, "name")],
            code="""
say("outside", [attempt("localhost", 5432), attempt("localhost", 5433)])
with socket.create_server(("127.0.0.1", 0)) as own:
    with socket.create_connection(own.getsockname(), timeout=5) as sock:
        peer, _ = own.accept()
        peer.sendall(b"mine")
        say("inside", answer(sock))
        peer.close()
""",
        ),
        who,
    )
    assert result.said["outside"] == ["127.0.0.1 5432", "::1 5433"]
    assert result.said["inside"] == "mine"


def test_addresses_of_both_families_are_reached_where_they_are(who: str) -> None:
    result = run_case(
        Case(
            grants=[f"{PUBLIC}:443", f"[{PUBLIC6}]:443", f"{PRIVATE}:5432"],
            servers=[(PUBLIC, 443, "name"), (PUBLIC6, 443, "name"), (PRIVATE, 5432, "name")],
            code=f"""
say("direct", [attempt("{PUBLIC}", 443), attempt("{PUBLIC6}", 443), attempt("{PRIVATE}", 5432)])
say("proxy", [ask_connect("{PUBLIC}:443"), ask_connect("[{PUBLIC6}]:443")])
say("socks", [ask_socks(socks_ip("{PUBLIC}"), 443), ask_socks(socks_ip("{PUBLIC6}"), 443)])
""",
        ),
        who,
    )
    places = [f"{PUBLIC} 443", f"{PUBLIC6} 443"]
    assert result.said["direct"] == [*places, f"{PRIVATE} 5432"]
    assert result.said["proxy"] == [OPENED + place for place in places]
    assert result.said["socks"] == [f"code 0|{place}" for place in places]


def test_a_name_for_a_private_address_needs_both_grants(who: str) -> None:
    hosts = {"db.internal": [PRIVATE]}
    servers = [(PRIVATE, 5432, "name")]
    code = 'say("direct", attempt("db.internal", 5432))'
    alone = run_case(Case(["db.internal:5432"], code, servers, hosts=hosts), who)
    assert alone.said["direct"] == "ECONNRESET"
    (denial,) = alone.denied()
    assert denial["address"] == PRIVATE
    grants = ["db.internal:5432", f"{PRIVATE}:5432"]
    both = run_case(Case(grants, code, servers, hosts=hosts), who)
    assert both.said["direct"] == f"{PRIVATE} 5432"


@pytest.mark.parametrize("uvloop", [False, True])
def test_everything_granted_reaches_any_public_name_address_and_port(
    who: str, *, uvloop: bool
) -> None:
    result = run_case(
        Case(
            grants=["*"],
            hosts={"a.test": [PUBLIC], "b.test": [OTHER]},
            servers=[(PUBLIC, 443, "name"), (OTHER, 9418, "name"), (PUBLIC6, 7777, "name")],
            uvloop=uvloop,
            code=f"""
say("names", [attempt("a.test", 443), attempt("b.test", 9418), ask_connect("b.test:9418")])
say("addresses", [attempt("{PUBLIC}", 443), attempt("{PUBLIC6}", 7777)])
say("unknown", attempt("c.test", 443))
say("dns", [ask_dns("a.test"), ask_dns("b.test"), ask_dns("a.test", 28)])
""",
        ),
        who,
    )
    assert result.said["names"] == [f"{PUBLIC} 443", f"{OTHER} 9418", f"{OPENED}{OTHER} 9418"]
    assert result.said["addresses"] == [f"{PUBLIC} 443", f"{PUBLIC6} 7777"]
    assert result.said["unknown"] == "ECONNRESET"
    assert result.connected(host="c.test", outcome="unknown_host")
    first, second, none = result.said["dns"]
    assert first.startswith("127.77.")
    assert second.startswith("127.77.")
    assert first != second
    assert none == "empty"


@pytest.mark.parametrize("uvloop", [False, True])
def test_large_transfers_arrive_whole_in_both_directions(who: str, *, uvloop: bool) -> None:
    amount = 24 << 20
    result = run_case(
        Case(
            grants=["api.test:*"],
            hosts={"api.test": [PUBLIC]},
            servers=[(PUBLIC, 1, "flood"), (PUBLIC, 2, "sink")],
            amount=amount,
            uvloop=uvloop,
            code=f"""
import hashlib
want, got, count = hashlib.sha256(bytes(range(256)) * ({amount} // 256)), hashlib.sha256(), 0
with socket.create_connection(("api.test", 1), timeout=20) as sock:
    while data := sock.recv(1 << 16):
        got.update(data)
        count += len(data)
say("down", [count, got.digest() == want.digest()])
with socket.create_connection(("api.test", 2), timeout=20) as sock:
    sock.sendall(bytes({amount}))
    sock.shutdown(socket.SHUT_WR)
    say("up", answer(sock))
""",
        ),
        who,
    )
    assert result.said["down"] == [amount, True]
    assert result.said["up"] == f"got {amount}"
    (down,) = result.connected(port=1)
    assert (down["bytes_up"], down["bytes_down"], down["outcome"]) == (0, amount, "closed")
    (up,) = result.connected(port=2)
    assert (up["bytes_up"], up["bytes_down"]) == (amount, len(f"got {amount}"))


def test_each_connection_is_recorded_with_who_where_how_much_and_how_it_ended(who: str) -> None:
    result = run_case(
        Case(
            grants=["api.test:*", "gone.test:80"],
            hosts={"api.test": [PUBLIC], "gone.test": [OTHER]},
            servers=[(PUBLIC, 443, "name")],
            code="""
with socket.create_connection(("api.test", 443), timeout=5) as sock:
    answer(sock)
    sock.sendall(b"12345")
    answer(sock)
say("refused", attempt("api.test", 444))
say("refused by proxy", ask_connect("api.test:444"))
say("refused by socks", ask_socks(socks_name("gone.test"), 80))
""",
        ),
        who,
    )
    (event,) = result.connected(port=443)
    assert event.pop("duration_ms") >= 0
    sent = len(f"{PUBLIC} 443")
    assert event == {
        "name": "cage.net.connected",
        "cage_id": "lab",
        "what": "plugin:lab",
        "protocol": "direct",
        "host": "api.test",
        "port": 443,
        "address": PUBLIC,
        "outcome": "closed",
        "detail": "",
        "bytes_up": 5,
        "bytes_down": sent + 5,
    }
    assert result.said["refused"] == "ECONNRESET"
    assert result.said["refused by proxy"] == "HTTP/1.1 502 Bad Gateway"
    assert result.said["refused by socks"] == "code 5"
    assert [one["outcome"] for one in result.connected(port=444)] == ["refused"] * 2
    assert [one["protocol"] for one in result.connected(port=80)] == ["socks5"]


def test_many_connections_at_once_are_all_served(who: str) -> None:
    result = run_case(
        Case(
            grants=["api.test:443"],
            hosts={"api.test": [PUBLIC]},
            servers=[(PUBLIC, 443, "name")],
            code="""
socks = [socket.create_connection(("api.test", 443), timeout=10) for _ in range(150)]
say("answers", sorted({answer(sock) for sock in socks}))
for sock in socks:
    sock.close()
""",
        ),
        who,
    )
    assert result.said["answers"] == [f"{PUBLIC} 443"]
    assert len(result.connected()) == 150
    assert result.leaked_fds == 0
    assert result.open_connections == 0


def test_a_cage_that_ends_in_the_middle_leaves_nothing_open(who: str) -> None:
    result = run_case(
        Case(
            grants=["api.test:*"],
            hosts={"api.test": [PUBLIC]},
            servers=[(PUBLIC, 1, "flood"), (PUBLIC, 2, "silent"), (PUBLIC, 3, "name")],
            amount=1 << 30,
            code="""
socks = [socket.create_connection(("api.test", port), timeout=5) for port in (1, 2, 3) * 5]
for sock in socks:
    if sock.getpeername()[1] != 2:
        answer(sock)
done()
sys.stdout.flush()
os._exit(0)
""",
        ),
        who,
    )
    assert result.leaked_fds == 0
    assert result.open_connections == 0
    assert len(result.connected()) == 15
    assert {event["outcome"] for event in result.connected(port=1)} <= {"reset", "cut"}


def test_programs_find_the_network_by_themselves(who: str) -> None:
    """Name lookups that insist on a configured address, and plain HTTP clients, just work."""
    result = run_case(
        Case(
            grants=["api.test:80", "api.test:443"],
            hosts={"api.test": [PUBLIC]},
            servers=[(PUBLIC, 80, "name"), (PUBLIC, 443, "name")],
            code="""
import urllib.request
flags = socket.AI_ADDRCONFIG
say("lookup", [row[4][0] for family in (0, socket.AF_INET)
               for row in socket.getaddrinfo("api.test", 80, family, socket.SOCK_STREAM, 0, flags)])
say("proxies", urllib.request.getproxies())
say("bypass", urllib.request.proxy_bypass("api.test:443"))
""",
        ),
        who,
    )
    assert result.said["lookup"] == ["127.77.0.1"] * 2
    assert result.said["proxies"]["https"] == "http://127.0.0.1:808"
    assert "http" not in result.said["proxies"]
    assert result.said["bypass"]
