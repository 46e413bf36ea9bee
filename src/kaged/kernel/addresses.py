"""`AddressClass`: which IP addresses are special, and in what way."""

from __future__ import annotations

import functools
import ipaddress
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address


class AddressClass(StrEnum):
    """What kind of place an address is. Everything but `public` needs a grant that names it."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link_local"
    METADATA = "metadata"
    MULTICAST = "multicast"
    BROADCAST = "broadcast"
    UNSPECIFIED = "unspecified"
    RESERVED = "reserved"
    INVALID = "invalid"

    @property
    def connectable(self) -> bool:
        """Whether a TCP connection to such an address can be meant at all."""
        return self not in _NEVER


_NEVER = frozenset(
    {
        AddressClass.MULTICAST,
        AddressClass.BROADCAST,
        # Linux connects 0.0.0.0 and :: to the machine's own loopback: never what a grant says.
        AddressClass.UNSPECIFIED,
        AddressClass.INVALID,
    }
)

# The first row that holds an address speaks, so single addresses stand before their networks. The
# tables are ours because `ipaddress.is_private` and friends change between Python releases.
_V4 = (
    ("169.254.169.254/32", AddressClass.METADATA),  # most clouds
    ("169.254.170.2/32", AddressClass.METADATA),  # container credentials
    ("169.254.170.23/32", AddressClass.METADATA),  # pod credentials
    ("169.254.42.42/32", AddressClass.METADATA),
    ("169.254.0.23/32", AddressClass.METADATA),
    ("100.100.100.200/32", AddressClass.METADATA),
    ("192.0.0.192/32", AddressClass.METADATA),
    ("168.63.129.16/32", AddressClass.METADATA),  # looks public and is not
    ("0.0.0.0/8", AddressClass.UNSPECIFIED),
    ("127.0.0.0/8", AddressClass.LOOPBACK),
    ("10.0.0.0/8", AddressClass.PRIVATE),
    ("172.16.0.0/12", AddressClass.PRIVATE),
    ("192.168.0.0/16", AddressClass.PRIVATE),
    ("100.64.0.0/10", AddressClass.PRIVATE),
    ("169.254.0.0/16", AddressClass.LINK_LOCAL),
    ("192.0.0.0/24", AddressClass.RESERVED),
    ("192.0.2.0/24", AddressClass.RESERVED),
    ("192.88.99.0/24", AddressClass.RESERVED),
    ("198.18.0.0/15", AddressClass.RESERVED),
    ("198.51.100.0/24", AddressClass.RESERVED),
    ("203.0.113.0/24", AddressClass.RESERVED),
    ("224.0.0.0/4", AddressClass.MULTICAST),
    ("255.255.255.255/32", AddressClass.BROADCAST),
    ("240.0.0.0/4", AddressClass.RESERVED),
)
_V6 = (
    ("fd00:ec2::254/128", AddressClass.METADATA),
    ("fd00:ec2::23/128", AddressClass.METADATA),
    ("fd20:ce::254/128", AddressClass.METADATA),
    ("fd00:42::42/128", AddressClass.METADATA),
    ("::/128", AddressClass.UNSPECIFIED),
    ("::1/128", AddressClass.LOOPBACK),
    ("fc00::/7", AddressClass.PRIVATE),
    ("fec0::/10", AddressClass.PRIVATE),
    ("64:ff9b:1::/48", AddressClass.PRIVATE),
    ("fe80::/10", AddressClass.LINK_LOCAL),
    ("ff00::/8", AddressClass.MULTICAST),
    ("2001::/23", AddressClass.RESERVED),
    ("2001:db8::/32", AddressClass.RESERVED),
    ("3fff::/20", AddressClass.RESERVED),
    ("2000::/3", AddressClass.PUBLIC),
    ("::/0", AddressClass.RESERVED),
)
# Networks whose addresses carry an IPv4 address, and how far from the right it stands.
_EMBEDDED = (("::/96", 0), ("64:ff9b::/96", 0), ("2002::/16", 80))

_Row = tuple[int, int, AddressClass]


def address_class(ip: str | IPv4Address | IPv6Address) -> AddressClass:
    """Return what kind of place an address is; `invalid` for anything that is no address.

    An IPv6 address that stands for an IPv4 one (mapped, compatible, NAT64, 6to4) is what that IPv4
    address is, so that no spelling hides a special place.
    """
    address = _parse(ip)
    if address is None:
        return AddressClass.INVALID
    if isinstance(address, IPv4Address):
        return _look_up(int(address), _rows_v4())
    number = int(address)
    own = _look_up(number, _rows_v6())
    if own in (AddressClass.LOOPBACK, AddressClass.UNSPECIFIED):
        return own
    for first, last, shift in _rows_embedded():
        if first <= number <= last:
            inner = _look_up(number >> shift & 0xFFFF_FFFF, _rows_v4())
            if inner is not AddressClass.PUBLIC:
                return inner
            # A public host behind NAT64 is public, although that prefix lies outside 2000::/3.
            return AddressClass.RESERVED if first == 0 else AddressClass.PUBLIC
    return own


def canonical_address(text: str) -> str | None:
    """Return the one spelling of an address literal, or None if the text is not one.

    IPv4-mapped IPv6 is written as the IPv4 address it is. A scope (`%eth0`) makes it no literal.
    """
    address = _parse(text)
    if address is None or (isinstance(address, IPv6Address) and address.scope_id is not None):
        return None
    return address.compressed


def _parse(ip: object) -> IPv4Address | IPv6Address | None:
    if isinstance(ip, str):
        try:
            ip = ipaddress.ip_address(ip)
        except ValueError:
            return None
    if isinstance(ip, IPv6Address):
        return ip.ipv4_mapped or ip
    return ip if isinstance(ip, IPv4Address) else None


def _look_up(number: int, rows: tuple[_Row, ...]) -> AddressClass:
    return next(
        (kind for first, last, kind in rows if first <= number <= last), AddressClass.PUBLIC
    )


@functools.cache
def _rows_v4() -> tuple[_Row, ...]:
    return tuple((*_bounds(text), kind) for text, kind in _V4)


@functools.cache
def _rows_v6() -> tuple[_Row, ...]:
    return tuple((*_bounds(text), kind) for text, kind in _V6)


@functools.cache
def _rows_embedded() -> tuple[tuple[int, int, int], ...]:
    return tuple((*_bounds(text), shift) for text, shift in _EMBEDDED)


def _bounds(text: str) -> tuple[int, int]:
    network = ipaddress.ip_network(text)
    return int(network.network_address), int(network.broadcast_address)
