from __future__ import annotations

import struct
from socket import AF_INET, AF_INET6

from kaged.cage.net.netlink import (
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    catch_all_route,
    extra_address,
    merge_batches,
    trap_rules,
)


def messages(payload: bytes) -> list[tuple[int, int, bytes]]:
    found, at = list[tuple[int, int, bytes]](), 0
    while at < len(payload):
        length, kind, flags = struct.unpack_from("=IHH", payload, at)
        assert length % 4 == 0
        found.append((kind, flags, payload[at + 16 : at + length]))
        at += length
    assert at == len(payload)
    return found


def attributes(data: bytes) -> dict[int, bytes]:
    found, at = dict[int, bytes](), 0
    while at < len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        found[kind & 0x7FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def expressions(rule: bytes) -> list[str]:
    found, at = list[str](), 0
    while at < len(rule):
        (length,) = struct.unpack_from("=H", rule, at)
        parts = attributes(rule[at + 4 : at + length])
        found.append(parts[1].rstrip(b"\0").decode())
        at += (length + 3) & ~3
    return found


def test_the_route_makes_every_address_of_a_family_local() -> None:
    batch = catch_all_route(ipv6=False)
    assert (batch.protocol, batch.acks) == (NETLINK_ROUTE, 1)
    ((kind, flags, body),) = messages(batch.payload)
    assert (kind, flags) == (24, 0x405)
    family, prefix, source, tos, table, protocol, scope, what, more = struct.unpack_from(
        "=8BI", body
    )
    assert (family, prefix, source, tos) == (AF_INET, 0, 0, 0)
    assert (table, protocol, scope, what, more) == (255, 4, 254, 2, 0)
    assert attributes(body[12:]) == {4: struct.pack("=i", 1), 7: bytes([127, 0, 0, 1])}
    ((_, _, body6),) = messages(catch_all_route(ipv6=True).payload)
    assert body6[0] == AF_INET6
    assert attributes(body6[12:]) == {4: struct.pack("=i", 1)}


def test_the_extra_address_is_a_host_address_on_lo() -> None:
    ((kind, flags, body),) = messages(extra_address("127.77.255.254").payload)
    assert (kind, flags) == (20, 0x605)
    assert struct.unpack_from("=BBBBI", body) == (AF_INET, 32, 0, 254, 1)
    raw = bytes([127, 77, 255, 254])
    assert attributes(body[8:]) == {1: raw, 2: raw}


def test_the_trap_is_one_table_with_one_rule_per_kind_of_destination() -> None:
    batch = trap_rules(809, bytes([127, 77]), ipv6=True)
    assert (batch.protocol, batch.acks) == (NETLINK_NETFILTER, 5)
    found = messages(batch.payload)
    assert [kind for kind, _, _ in found] == [0x10, 0xA00, 0xA03, 0xA06, 0xA06, 0xA06, 0x11]
    assert [bool(flags & 4) for _, flags, _ in found] == [False, *[True] * 5, False]
    chain = attributes(found[2][2][4:])
    assert chain[7] == b"filter\0"
    assert attributes(chain[4]) == {1: struct.pack(">I", 0), 2: struct.pack(">i", -150)}
    for _, _, body in found[3:6]:
        rule = attributes(body[4:])
        assert expressions(rule[4]) == [
            "meta",
            "cmp",
            "meta",
            "cmp",
            "payload",
            "cmp",
            "immediate",
            "tproxy",
        ]
        assert struct.pack(">H", 809) in rule[4]
    assert bytes([127, 77]) in found[3][2]
    assert bytes(15) + b"\x01" in found[5][2]


def test_without_ipv6_the_trap_has_no_rule_for_it() -> None:
    batch = trap_rules(809, bytes([127, 77]), ipv6=False)
    assert batch.acks == 4
    assert len(messages(batch.payload)) == 6


def test_merged_batches_say_everything_and_await_every_acknowledgement() -> None:
    parts = [extra_address("127.77.255.254"), catch_all_route(ipv6=False)]
    merged = merge_batches(parts)
    assert merged.payload == parts[0].payload + parts[1].payload
    assert (merged.step, merged.acks) == ("address+route", 2)
