from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage.net.dns import MAX_QUERY_BYTES, Rcode, answer_query, parse_question

A, AAAA, TXT, ANY = 1, 28, 16, 255


def query(
    name: str,
    qtype: int = A,
    *,
    flags: int = 0x0100,
    qclass: int = 1,
    counts: tuple[int, ...] = (1, 0, 0, 0),
) -> bytes:
    labels = b"".join(
        bytes([len(part)]) + part.encode("latin-1") for part in name.split(".") if part
    )
    return (
        struct.pack(">HHHHHH", 0x1234, flags, *counts)
        + labels
        + struct.pack(">BHH", 0, qtype, qclass)
    )


def table(name: str) -> str | None:
    return {"api.test": "127.77.0.1"}.get(name)


def code(reply: bytes | None) -> Rcode:
    assert reply is not None
    assert reply[:2] == b"\x12\x34"
    assert reply[2] & 0x80
    return Rcode(reply[3] & 15)


def test_a_granted_name_is_answered_with_its_address() -> None:
    reply = answer_query(query("api.test"), table)
    assert code(reply) is Rcode.NOERROR
    assert reply is not None
    assert struct.unpack(">HHHH", reply[4:12]) == (1, 1, 0, 0)
    assert reply.endswith(struct.pack(">HHHIH", 0xC00C, 1, 1, 60, 4) + bytes([127, 77, 0, 1]))


def test_spelling_does_not_matter_and_comes_back_as_asked() -> None:
    reply = answer_query(query("ApI.TeSt"), table)
    assert code(reply) is Rcode.NOERROR
    assert reply is not None
    assert b"\x03ApI\x04TeSt\x00" in reply


@pytest.mark.parametrize("qtype", [AAAA, TXT, ANY, 33, 65])
def test_a_granted_name_has_no_other_records(qtype: int) -> None:
    reply = answer_query(query("api.test", qtype), table)
    assert code(reply) is Rcode.NOERROR
    assert reply is not None
    assert struct.unpack(">H", reply[6:8]) == (0,)


@pytest.mark.parametrize("name", ["evil.test", "xapi.test", "api.test.evil", "test", ""])
def test_any_other_name_does_not_exist(name: str) -> None:
    assert code(answer_query(query(name), table)) is Rcode.NXDOMAIN


def test_what_is_not_one_plain_question_is_an_error() -> None:
    assert code(answer_query(query("api.test", flags=0x2800), table)) is Rcode.NOTIMP
    assert code(answer_query(query("api.test", qclass=3), table)) is Rcode.REFUSED
    for counts in ((0, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (65535, 0, 0, 0)):
        assert code(answer_query(query("api.test", counts=counts), table)) is Rcode.FORMERR


def test_an_additional_record_such_as_edns_is_tolerated() -> None:
    packet = (
        query("api.test", counts=(1, 0, 0, 1)) + b"\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"
    )
    assert code(answer_query(packet, table)) is Rcode.NOERROR


def test_silence_for_answers_fragments_and_giants() -> None:
    assert answer_query(query("api.test", flags=0x8180), table) is None
    assert answer_query(b"\x12\x34\x01", table) is None
    assert answer_query(query("api.test") + bytes(MAX_QUERY_BYTES), table) is None


@pytest.mark.parametrize(
    "body",
    [
        b"\xc0\x0c\x00\x01\x00\x01",  # a pointer to itself
        b"\x03api\xc0\x0c\x00\x01\x00\x01",  # a pointer back to the start
        b"\x40" + b"a" * 64 + b"\x00\x00\x01\x00\x01",  # a label of a reserved kind
        b"\x3f" + b"a" * 20,  # a label longer than the packet
        b"\x03api\x04test",  # no end of name
        b"\x03api\x04test\x00\x00",  # no type
        b"\x04a.pi\x04test\x00\x00\x01\x00\x01",  # a dot inside a label
        b"\x04a\x00pi\x04test\x00\x00\x01\x00\x01",  # a zero byte inside a label
        b"\x04a\xffpi\x04test\x00\x00\x01\x00\x01",
        (b"\x3f" + b"a" * 63) * 4 + b"\x00\x00\x01\x00\x01",  # 257 bytes of name
    ],
)
def test_a_malformed_name_is_refused_without_being_looked_up(body: bytes) -> None:
    packet = struct.pack(">HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + body
    assert parse_question(packet) is None

    def never(name: str) -> str | None:
        raise AssertionError(name)

    assert code(answer_query(packet, never)) is Rcode.FORMERR


@given(st.binary(max_size=600))
def test_no_packet_makes_it_fail_or_talk_much(packet: bytes) -> None:
    reply = answer_query(packet, table)
    assert reply is None or len(reply) <= len(packet) + 16


labels = st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz0123456789-_"), min_size=1, max_size=63)


@given(st.lists(labels, min_size=1, max_size=3), st.integers(0, 65535))
def test_every_name_that_can_be_asked_is_read_back(parts: list[str], qtype: int) -> None:
    packet = query(".".join(parts), qtype)
    question = parse_question(packet)
    assert question is not None
    assert (question.name, question.qtype, question.end) == (".".join(parts), qtype, len(packet))
