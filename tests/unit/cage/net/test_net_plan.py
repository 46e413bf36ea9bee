from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage.net.limits import MAX_GRANTED_NAMES
from kaged.cage.net.plan import (
    DNS_ADDRESS,
    PROXY_PORT,
    TRAP_PORT,
    CageListener,
    ListenerKind,
    NetFacts,
    NetPlan,
    NetPlanTooLarge,
    plan_network,
)
from kaged.kernel.net import NetTarget, parse_target

ALL = NetFacts()
PORTS_ONLY = NetFacts(trap=False)
BARE = NetFacts(trap=False, route=False, ipv6=False)


def plan(*grants: str, facts: NetFacts = ALL) -> NetPlan:
    return plan_network(tuple(parse_target(text) for text in grants), facts)


def file(made: NetPlan, path: str) -> list[str]:
    return dict(made.files)[path].splitlines()


def places(made: NetPlan, kind: ListenerKind) -> list[tuple[str, int, str]]:
    return [(one.address, one.port, one.host) for one in made.listeners if one.kind is kind]


def test_without_grants_there_is_nothing_to_open_and_nothing_to_set() -> None:
    made = plan()
    assert made.listeners == ()
    assert made.netlink == ()
    assert made.environment == ()
    assert file(made, "/etc/hosts") == ["127.0.0.1 localhost cage", "::1 localhost cage"]
    assert file(made, "/etc/nsswitch.conf")[-1] == "hosts: files"
    assert "/etc/resolv.conf" not in dict(made.files)


def test_each_granted_name_has_an_address_of_its_own() -> None:
    made = plan("api.test:443", "db.test:5432", "api.test:80")
    assert made.names == (("api.test", "127.77.0.1"), ("db.test", "127.77.0.2"))
    assert file(made, "/etc/hosts")[2:] == ["127.77.0.1 api.test", "127.77.0.2 db.test"]
    assert file(made, "/etc/resolv.conf")[0] == f"nameserver {DNS_ADDRESS}"
    assert file(made, "/etc/nsswitch.conf")[-1] == "hosts: files dns"


def test_with_the_trap_one_listener_per_family_takes_every_port() -> None:
    made = plan("api.test:443", "db.test:*", "9.9.9.9:53")
    assert [(one.kind, one.address, one.port) for one in made.listeners] == [
        (ListenerKind.TRAP, "0.0.0.0", TRAP_PORT),
        (ListenerKind.TRAP, "::", TRAP_PORT),
        (ListenerKind.PROXY, "127.0.0.1", PROXY_PORT),
        (ListenerKind.DNS, DNS_ADDRESS, 53),
    ]
    assert made.transparent
    assert [one.step for one in made.netlink] == ["address+route+route6", "trap"]


def test_without_the_trap_each_grant_has_its_own_listener() -> None:
    made = plan("api.test:8443", "9.9.9.9:53", "[2606::1]:80", "any.test:*", facts=PORTS_ONLY)
    assert places(made, ListenerKind.GRANT) == [
        ("127.77.0.1", 8443, "api.test"),
        ("9.9.9.9", 53, "9.9.9.9"),
        ("2606::1", 80, "2606::1"),
        ("127.77.0.2", 22, "any.test"),
        ("127.77.0.2", 80, "any.test"),
        ("127.77.0.2", 443, "any.test"),
    ]
    assert not made.transparent
    assert [one.step for one in made.netlink] == ["address+route+route6"]


def test_without_a_route_addresses_are_left_to_the_proxy() -> None:
    made = plan("api.test:443", "9.9.9.9:53", facts=BARE)
    assert places(made, ListenerKind.GRANT) == [("127.77.0.1", 443, "api.test")]
    assert made.netlink == ()
    assert [one.kind for one in made.listeners][1:] == [ListenerKind.PROXY, ListenerKind.DNS]


@pytest.mark.parametrize("facts", [ALL, PORTS_ONLY])
def test_a_port_of_localhost_is_served_on_the_cages_own_loopback(facts: NetFacts) -> None:
    made = plan("localhost:5432", facts=facts)
    assert places(made, ListenerKind.GRANT) == [
        ("127.0.0.1", 5432, "localhost"),
        ("::1", 5432, "localhost"),
    ]
    assert file(made, "/etc/hosts")[0] == "127.0.0.1 localhost cage"
    assert made.names == ()


def test_every_port_of_localhost_moves_the_name_and_leaves_the_cage_its_loopback() -> None:
    made = plan("localhost:*")
    assert file(made, "/etc/hosts") == ["127.0.0.1 cage", "::1 cage", "127.77.0.1 localhost"]
    assert places(made, ListenerKind.GRANT) == []


def test_a_loopback_address_is_served_in_place() -> None:
    made = plan("127.0.0.1:8080", "[::1]:8081", "localhost:8080")
    assert places(made, ListenerKind.GRANT) == [
        ("127.0.0.1", 8080, "127.0.0.1"),
        ("::1", 8081, "::1"),
        ("::1", 8080, "localhost"),
    ]


def test_everything_granted_without_the_trap_catches_the_common_ports_on_all_addresses() -> None:
    made = plan("*", "api.test:443", "api.test:8443", facts=PORTS_ONLY)
    assert places(made, ListenerKind.TRAP) == [
        (address, port, "") for port in (22, 80, 443) for address in ("0.0.0.0", "::")
    ]
    # 443 is caught already; a second socket on it could not be opened.
    assert places(made, ListenerKind.GRANT) == [("127.77.0.1", 8443, "api.test")]
    assert made.dangerous


def test_only_everything_is_called_dangerous() -> None:
    assert plan("*").dangerous
    assert not plan("api.test:*", "10.0.0.1:*").dangerous


def test_proxy_variables_come_in_both_spellings_and_never_for_plain_http() -> None:
    made = dict(plan("api.test:443").environment)
    url = f"http://127.0.0.1:{PROXY_PORT}"
    assert made == {
        "HTTPS_PROXY": url,
        "https_proxy": url,
        "NO_PROXY": "localhost,127.0.0.1,::1,api.test",
        "no_proxy": "localhost,127.0.0.1,::1,api.test",
    }


def test_a_grant_on_the_gates_own_ports_moves_the_proxy_and_keeps_the_responder() -> None:
    made = plan("localhost:808", "127.0.0.1:807", "127.0.0.53:53", facts=PORTS_ONLY)
    assert ("127.0.0.1", 808, "localhost") in places(made, ListenerKind.GRANT)
    assert places(made, ListenerKind.PROXY) == [("127.0.0.1", 806, "")]
    assert places(made, ListenerKind.DNS) == [("127.0.0.53", 53, "")]
    assert dict(made.environment)["HTTPS_PROXY"] == "http://127.0.0.1:806"


def test_what_only_the_proxy_can_reach_is_not_kept_from_the_proxy() -> None:
    made = dict(
        plan("localhost:*", "127.0.0.1:*", "api.test:*", "b.test:1", facts=PORTS_ONLY).environment
    )
    assert made["NO_PROXY"].split(",") == ["::1", "b.test"]


def test_with_the_trap_only_a_whole_loopback_address_needs_the_proxy() -> None:
    made = dict(plan("localhost:*", "127.0.0.1:*", "api.test:*").environment)
    assert made["NO_PROXY"].split(",") == ["localhost", "::1", "api.test"]


def test_without_ipv6_no_listener_is_of_that_family() -> None:
    made = plan("localhost:1", "[::1]:2", "[2606::1]:3", "*", facts=NetFacts(ipv6=False))
    assert not any(one.ipv6 for one in made.listeners)
    assert "route6" not in made.netlink[0].step
    assert CageListener(ListenerKind.GRANT, "::1", 1).ipv6


def test_a_name_that_is_not_in_its_normal_spelling_never_reaches_a_file() -> None:
    with pytest.raises(ValueError, match="normal spelling"):
        plan_network((NetTarget("API.test", 1),), ALL)
    with pytest.raises(Exception, match="not a host name"):
        plan_network((NetTarget("a\n1.2.3.4 b", 1),), ALL)


def test_too_many_names_or_ports_are_refused_with_the_remedy() -> None:
    names = tuple(NetTarget(f"h{number}.test", 1) for number in range(MAX_GRANTED_NAMES + 1))
    with pytest.raises(NetPlanTooLarge, match="grant fewer hosts"):
        plan_network(names, ALL)
    ports = tuple(NetTarget("localhost", port) for port in range(2000, 2600))
    with pytest.raises(NetPlanTooLarge, match="grant fewer ports"):
        plan_network(ports, ALL)


hosts = st.sampled_from(
    ["api.test", "db.test", "localhost", "127.0.0.1", "::1", "9.9.9.9", "2606::1"]
)
targets = st.one_of(
    st.just(NetTarget(None, None)),
    st.builds(NetTarget, hosts, st.one_of(st.none(), st.sampled_from([22, 80, 443, 5000]))),
)
facts = st.builds(NetFacts, trap=st.booleans(), route=st.booleans(), ipv6=st.booleans())


@given(st.lists(targets, min_size=1, max_size=8), facts)
def test_no_two_listeners_of_a_plan_would_be_refused_by_the_kernel(
    grants: list[NetTarget], facts: NetFacts
) -> None:
    made = plan_network(tuple(grants), facts)
    taken = set[tuple[str, str, int]]()
    for one in made.listeners:
        family = "6" if one.ipv6 else "4"
        udp = "u" if one.kind is ListenerKind.DNS else "t"
        here, everywhere = (udp + family, one.address, one.port), {"0.0.0.0", "::"}
        assert here not in taken
        for other_kind, address, port in taken:
            if other_kind == udp + family and port == one.port:
                assert one.address not in everywhere
                assert address not in everywhere
        taken.add(here)
    assert plan_network(tuple(grants), facts) == made
