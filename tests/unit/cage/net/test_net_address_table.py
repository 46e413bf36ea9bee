from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage.net.address_table import AddressTable, is_synthetic, synthetic_address


def test_addresses_are_distinct_and_stay_in_their_range() -> None:
    found = {synthetic_address(place) for place in range(254 * 256)}
    assert len(found) == 254 * 256
    network = ipaddress.ip_network("127.77.0.0/16")
    assert all(ipaddress.ip_address(one) in network and is_synthetic(one) for one in found)
    assert "127.77.255.254" not in found
    with pytest.raises(ValueError, match="synthetic"):
        synthetic_address(254 * 256)


def test_an_ungranted_name_has_no_address() -> None:
    table = AddressTable((("api.test", "127.77.0.1"),), open_names=False, limit=10)
    assert table.address_of("api.test") == "127.77.0.1"
    assert table.name_of("127.77.0.1") == "api.test"
    assert table.address_of("evil.test") is None
    assert table.name_of("127.77.0.2") is None


def test_where_every_name_is_granted_a_name_keeps_the_address_it_was_first_given() -> None:
    table = AddressTable((("api.test", "127.77.0.1"),), open_names=True, limit=10)
    first = table.address_of("a.test")
    assert first == "127.77.0.2"
    assert table.address_of("b.test") == "127.77.0.3"
    assert table.address_of("a.test") == first
    assert table.name_of("127.77.0.2") == "a.test"


def test_every_name_does_not_include_localhost() -> None:
    assert AddressTable((), open_names=True, limit=10).address_of("localhost") is None
    granted = AddressTable((("localhost", "127.77.0.1"),), open_names=True, limit=10)
    assert granted.address_of("localhost") == "127.77.0.1"


def test_the_name_not_used_for_longest_gives_its_address_back() -> None:
    table = AddressTable((), open_names=True, limit=2)
    a, b = table.address_of("a.test"), table.address_of("b.test")
    assert a is not None
    assert table.name_of(a) == "a.test"  # a connection counts as use
    assert table.address_of("c.test") == b
    assert b is not None
    assert table.name_of(b) == "c.test"
    assert table.address_of("a.test") == a


@given(st.lists(st.sampled_from([f"n{number}.test" for number in range(12)])))
def test_a_name_and_its_address_always_point_at_each_other(names: list[str]) -> None:
    table = AddressTable((("g.test", "127.77.0.1"),), open_names=True, limit=4)
    for name in names:
        address = table.address_of(name)
        assert address is not None
        assert table.name_of(address) == name
    assert table.name_of("127.77.0.1") == "g.test"
