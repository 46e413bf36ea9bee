"""`NetlinkBatch`: the few kernel messages that lead a cage's traffic to the gate, as pure bytes.

Three things are said to the kernel, all inside the cage's own network namespace: lo has one more
address, every address is local (so that no packet is ever "unreachable" and the gate can record
who was asked for), and TCP to anything but the cage's own loopback is handed to one listener. The
listener is found with the `tproxy` statement of nf_tables: no address is rewritten and no
connection is tracked, so an accepted socket's own address *is* the destination asked for.

Written out here instead of calling `ip` and `nft`, because a host may have neither and starting
a program costs more than the rest of the gate.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from socket import AF_INET, AF_INET6, inet_pton

from kaged.base.lazy_dataclass import dataclass

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

_LO_INDEX = 1  # the loopback device is the first of every network namespace

_NLM_F_REQUEST = 0x1
_NLM_F_ACK = 0x4
_NLM_F_EXCL = 0x200
_NLM_F_CREATE = 0x400
_NLM_F_APPEND = 0x800
_CHANGE = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE

_NLA_F_NESTED = 0x8000

# Routes and addresses, from linux/rtnetlink.h
_RTM_NEWADDR = 20
_RTM_NEWROUTE = 24
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_RTA_OIF = 4
_RTA_PREFSRC = 7
_RT_TABLE_LOCAL = 255
_RTPROT_STATIC = 4
_RT_SCOPE_HOST = 254
_RTN_LOCAL = 2

# Rules, from linux/netfilter/nfnetlink.h and nf_tables.h
_NFNL_BATCH_BEGIN = 0x10
_NFNL_BATCH_END = 0x11
_NFNL_SUBSYS_NFTABLES = 10
_NFT_NEWTABLE = (_NFNL_SUBSYS_NFTABLES << 8) | 0
_NFT_NEWCHAIN = (_NFNL_SUBSYS_NFTABLES << 8) | 3
_NFT_NEWRULE = (_NFNL_SUBSYS_NFTABLES << 8) | 6
_NFPROTO_INET = 1
_NFPROTO_IPV4 = 2
_NFPROTO_IPV6 = 10
_HOOK_PREROUTING = 0
_PRIORITY_MANGLE = -150
_POLICY_ACCEPT = 1
_META_NFPROTO = 15
_META_L4PROTO = 16
_PAYLOAD_NETWORK = 1
_CMP_EQ = 0
_CMP_NEQ = 1
_REG = 1
_IPV4_DADDR = 16
_IPV6_DADDR = 24
_TCP = b"\x06"

_TABLE = b"kaged\0"
_CHAIN = b"trap\0"


@dataclass(frozen=True, slots=True)
class NetlinkBatch:
    """Bytes for one netlink socket of `protocol`, and how many acknowledgements they call for."""

    step: str
    protocol: int
    payload: bytes
    acks: int


def extra_address(address: str) -> NetlinkBatch:
    """Return the batch that adds one more address to lo.

    The C library hides IPv4 results (`AI_ADDRCONFIG`) from a machine whose only address is
    127.0.0.1; any second address makes name lookups work as they do outside.
    """
    raw = inet_pton(AF_INET, address)
    body = struct.pack("=BBBBI", AF_INET, 32, 0, _RT_SCOPE_HOST, _LO_INDEX)
    body += _attribute(_IFA_LOCAL, raw) + _attribute(_IFA_ADDRESS, raw)
    message = _message(_RTM_NEWADDR, _CHANGE | _NLM_F_EXCL, 1, body)
    return NetlinkBatch("address", NETLINK_ROUTE, message, 1)


def catch_all_route(*, ipv6: bool) -> NetlinkBatch:
    """Make every address of one family local to the cage.

    IPv4 names 127.0.0.1 as the source. Without it the kernel uses the destination itself, and a
    client whose port happens to equal the one it asks for would be connected to itself.
    """
    family = AF_INET6 if ipv6 else AF_INET
    body = struct.pack(
        "=BBBBBBBBI",
        family,
        0,
        0,
        0,
        _RT_TABLE_LOCAL,
        _RTPROT_STATIC,
        _RT_SCOPE_HOST,
        _RTN_LOCAL,
        0,
    )
    body += _attribute(_RTA_OIF, struct.pack("=i", _LO_INDEX))
    if not ipv6:
        body += _attribute(_RTA_PREFSRC, inet_pton(AF_INET, "127.0.0.1"))
    message = _message(_RTM_NEWROUTE, _CHANGE, 1, body)
    return NetlinkBatch("route6" if ipv6 else "route", NETLINK_ROUTE, message, 1)


def merge_batches(batches: Sequence[NetlinkBatch]) -> NetlinkBatch:
    """Make one of several batches of one protocol, to be said in one breath."""
    (protocol,) = {one.protocol for one in batches}
    return NetlinkBatch(
        "+".join(one.step for one in batches),
        protocol,
        b"".join(one.payload for one in batches),
        sum(one.acks for one in batches),
    )


def trap_rules(port: int, synthetic_prefix: bytes, *, ipv6: bool) -> NetlinkBatch:
    """Hand TCP for foreign addresses, and for the synthetic ones, to the listener on `port`.

    `synthetic_prefix` is the leading two bytes of the addresses that stand for granted names. The
    rest of 127.0.0.0/8, and ::1, stay the cage's own.
    """
    chain = (
        _attribute(1, _TABLE)
        + _attribute(3, _CHAIN)
        + _nested(4, _attribute(1, _be32(_HOOK_PREROUTING)), _attribute(2, _be32(_PRIORITY_MANGLE)))
        + _attribute(5, _be32(_POLICY_ACCEPT))
        + _attribute(7, b"filter\0")
    )
    to_gate_v4 = _hand_over(_NFPROTO_IPV4, port)
    rules = [
        _tcp_of(_NFPROTO_IPV4) + _daddr(_IPV4_DADDR, _CMP_EQ, synthetic_prefix) + to_gate_v4,
        _tcp_of(_NFPROTO_IPV4) + _daddr(_IPV4_DADDR, _CMP_NEQ, b"\x7f") + to_gate_v4,
    ]
    if ipv6:
        own = inet_pton(AF_INET6, "::1")
        rules.append(
            _tcp_of(_NFPROTO_IPV6)
            + _daddr(_IPV6_DADDR, _CMP_NEQ, own)
            + _hand_over(_NFPROTO_IPV6, port)
        )
    changes = [(_NFT_NEWTABLE, _CHANGE, _attribute(1, _TABLE)), (_NFT_NEWCHAIN, _CHANGE, chain)]
    changes += [
        (
            _NFT_NEWRULE,
            _CHANGE | _NLM_F_APPEND,
            _attribute(1, _TABLE) + _attribute(2, _CHAIN) + _nested(4, rule),
        )
        for rule in rules
    ]
    batch_head = struct.pack(">BBH", 0, 0, _NFNL_SUBSYS_NFTABLES)
    inet_head = struct.pack(">BBH", _NFPROTO_INET, 0, 0)
    parts = [_message(_NFNL_BATCH_BEGIN, _NLM_F_REQUEST, 1, batch_head)]
    parts += [
        _message(kind, flags, seq, inet_head + body)
        for seq, (kind, flags, body) in enumerate(changes, start=2)
    ]
    parts.append(_message(_NFNL_BATCH_END, _NLM_F_REQUEST, len(changes) + 2, batch_head))
    return NetlinkBatch("trap", NETLINK_NETFILTER, b"".join(parts), len(changes))


def _message(kind: int, flags: int, seq: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, seq, 0) + body


def _attribute(kind: int, data: bytes) -> bytes:
    length = 4 + len(data)
    return struct.pack("=HH", length, kind) + data + b"\0" * (-length % 4)


def _nested(kind: int, *parts: bytes) -> bytes:
    return _attribute(kind | _NLA_F_NESTED, b"".join(parts))


def _be32(value: int) -> bytes:
    return struct.pack(">I", value & 0xFFFFFFFF)


def _expression(name: bytes, *parts: bytes) -> bytes:
    return _nested(1, _attribute(1, name + b"\0"), _nested(2, *parts))


def _compare(operator: int, value: bytes) -> bytes:
    return _expression(
        b"cmp",
        _attribute(1, _be32(_REG)),
        _attribute(2, _be32(operator)),
        _nested(3, _attribute(1, value)),
    )


def _meta(key: int) -> bytes:
    return _expression(b"meta", _attribute(2, _be32(key)), _attribute(1, _be32(_REG)))


def _tcp_of(family: int) -> bytes:
    return (
        _meta(_META_NFPROTO)
        + _compare(_CMP_EQ, bytes([family]))
        + _meta(_META_L4PROTO)
        + _compare(_CMP_EQ, _TCP)
    )


def _daddr(offset: int, operator: int, value: bytes) -> bytes:
    load = _expression(
        b"payload",
        _attribute(1, _be32(_REG)),
        _attribute(2, _be32(_PAYLOAD_NETWORK)),
        _attribute(3, _be32(offset)),
        _attribute(4, _be32(len(value))),
    )
    return load + _compare(operator, value)


def _hand_over(family: int, port: int) -> bytes:
    load_port = _expression(
        b"immediate",
        _attribute(1, _be32(_REG)),
        _nested(2, _attribute(1, struct.pack(">H", port))),
    )
    return load_port + _expression(
        b"tproxy", _attribute(1, _be32(family)), _attribute(3, _be32(_REG))
    )
