from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.addresses import AddressClass, address_class, canonical_address
from unit.kernel.strategies import anything, patiently


@pytest.mark.parametrize(
    ("ip", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
        ("127.0.0.1", "loopback"),
        ("127.255.0.3", "loopback"),
        ("::1", "loopback"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("172.32.0.1", "public"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("fd12::1", "private"),
        ("fec0::1", "private"),
        ("64:ff9b:1::1", "private"),
        ("169.254.1.1", "link_local"),
        ("fe80::1", "link_local"),
        ("fe80::1%eth0", "link_local"),
        ("169.254.169.254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("240.0.0.1", "reserved"),
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("192.0.2.1", "reserved"),
        ("198.18.0.1", "reserved"),
        ("2001:db8::1", "reserved"),
        ("2001:0:4136::1", "reserved"),
        ("100::1", "reserved"),
        ("4000::1", "reserved"),
        # An IPv4 address in IPv6 clothes is what the IPv4 address is.
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:8.8.8.8", "public"),
        ("::ffff:169.254.169.254", "metadata"),
        ("::127.0.0.1", "loopback"),
        ("::8.8.8.8", "reserved"),
        ("64:ff9b::169.254.169.254", "metadata"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::8.8.8.8", "public"),
        ("2002:7f00:1::", "loopback"),
        ("2002:808:808::1", "public"),
        # Not addresses.
        ("", "invalid"),
        ("127.1", "invalid"),
        ("0x7f000001", "invalid"),
        ("2130706433", "invalid"),
        ("0177.0.0.1", "invalid"),
        ("example.org", "invalid"),
    ],
)
def test_every_address_has_a_class(ip: str, kind: str) -> None:
    assert address_class(ip) == kind


def test_parsed_addresses_are_taken_as_they_are() -> None:
    assert address_class(ipaddress.ip_address("127.0.0.1")) is AddressClass.LOOPBACK
    assert address_class(ipaddress.ip_address("::ffff:10.0.0.1")) is AddressClass.PRIVATE


@pytest.mark.parametrize("kind", AddressClass)
def test_only_real_destinations_can_be_connected_to(kind: AddressClass) -> None:
    never = {"multicast", "broadcast", "unspecified", "invalid"}
    assert kind.connectable is (kind not in never)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("::FFFF:1.2.3.4", "1.2.3.4"),
        ("::ffff:102:304", "1.2.3.4"),
        ("fe80::1%eth0", None),
        ("01.2.3.4", None),
        ("host", None),
    ],
)
def test_an_address_has_one_spelling(text: str, canonical: str | None) -> None:
    assert canonical_address(text) == canonical


@patiently
@given(st.ip_addresses())
def test_what_the_standard_library_calls_not_global_is_never_public(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not ip.is_global or ip.is_loopback or ip.is_multicast or ip.is_link_local:
        # One that stands for an IPv4 address is what that is; newer Pythons call all 6to4 private.
        inner = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None) or ip
        if inner is ip:
            assert address_class(ip) is not AddressClass.PUBLIC
    assert canonical_address(str(ip)) is not None


@patiently
@given(anything)
def test_nothing_but_an_address_has_a_class(value: object) -> None:
    if not isinstance(value, str):
        assert address_class(value) is AddressClass.INVALID  # type: ignore[arg-type] # that is the test
