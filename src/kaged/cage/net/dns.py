"""`answer_query`: the cage's name responder, as a function of one packet.

It knows the grant table and nothing else: no question is ever passed on. Whatever does not parse
as one plain question gets an error or silence, and an answer is never longer than the question
plus sixteen bytes, so there is nothing to amplify.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from socket import AF_INET, inet_pton

from kaged.base.lazy_dataclass import dataclass

MAX_QUERY_BYTES = 1232  # what one EDNS query may measure; longer ones are not looked at
MAX_NAME_BYTES = 255
_HEADER = struct.Struct(">HHHHHH")
_QUESTION_TAIL = struct.Struct(">HH")
_TTL_S = 60
_TYPE_A = 1
_CLASS_IN = 1
_FLAG_RESPONSE = 0x8000
_MASK_OPCODE = 0x7800
_FLAG_RECURSION_DESIRED = 0x0100
_FLAG_RECURSION_AVAILABLE = 0x0080
_FLAG_AUTHORITATIVE = 0x0400
_POINTER_BITS = 0xC0
_POINTER_TO_QUESTION = 0xC00C


class Rcode(IntEnum):
    """The outcome codes that the responder uses."""

    NOERROR = 0
    FORMERR = 1
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5


@dataclass(frozen=True, slots=True)
class DnsQuestion:
    """One parsed question; `end` is where it stops in the packet."""

    name: str
    qtype: int
    qclass: int
    end: int


class _MalformedPacket(Exception):
    """The packet holds no question that could be answered."""


def parse_question(packet: bytes) -> DnsQuestion | None:
    """Read the one question of a packet; None if there is no well-formed one.

    Compression pointers have no place in a first name and are refused, so a name is read in one
    pass and cannot loop.
    """
    try:
        return _parse(packet)
    except _MalformedPacket:
        return None


def answer_query(packet: bytes, look_up: Callable[[str], str | None]) -> bytes | None:
    """Answer one packet; None means that silence is the right answer.

    `look_up` returns the IPv4 address for a name as it was asked (lower case), or None for a name
    that the cage may not know, which is answered as if it did not exist.
    """
    if not _HEADER.size <= len(packet) <= MAX_QUERY_BYTES:
        return None
    ident, flags, questions, answers, authorities, _ = _HEADER.unpack_from(packet)
    if flags & _FLAG_RESPONSE:
        return None  # answering answers would let two responders talk for ever
    if flags & _MASK_OPCODE:
        return _reply(ident, flags, Rcode.NOTIMP)
    question = None if questions != 1 or answers or authorities else parse_question(packet)
    if question is None:
        return _reply(ident, flags, Rcode.FORMERR)
    rcode, record = _answer(question, look_up)
    return _reply(ident, flags, rcode, packet[_HEADER.size : question.end], record)


def _answer(question: DnsQuestion, look_up: Callable[[str], str | None]) -> tuple[Rcode, bytes]:
    if question.qclass != _CLASS_IN:
        return Rcode.REFUSED, b""
    address = look_up(question.name)
    if address is None:
        return Rcode.NXDOMAIN, b""
    if question.qtype != _TYPE_A:
        # The name exists and has no such record: clients then use the IPv4 address.
        return Rcode.NOERROR, b""
    record = struct.pack(">HHHIH", _POINTER_TO_QUESTION, _TYPE_A, _CLASS_IN, _TTL_S, 4)
    return Rcode.NOERROR, record + inet_pton(AF_INET, address)


def _reply(
    ident: int, flags: int, rcode: Rcode, question: bytes = b"", record: bytes = b""
) -> bytes:
    out = _FLAG_RESPONSE | _FLAG_AUTHORITATIVE | _FLAG_RECURSION_AVAILABLE | rcode
    out |= flags & (_MASK_OPCODE | _FLAG_RECURSION_DESIRED)
    head = _HEADER.pack(ident, out, 1 if question else 0, 1 if record else 0, 0, 0)
    return head + question + record


def _parse(packet: bytes) -> DnsQuestion:
    at = _HEADER.size
    labels = list[str]()
    while True:
        length = _byte(packet, at)
        at += 1
        if length == 0:
            break
        if length & _POINTER_BITS or at + length > len(packet):
            raise _MalformedPacket
        raw = packet[at : at + length]
        # A dot inside a label would read as two labels once joined.
        if not raw.isascii() or not raw.decode("ascii").isprintable() or b"." in raw:
            raise _MalformedPacket
        labels.append(raw.decode("ascii").lower())
        at += length
        if at - _HEADER.size >= MAX_NAME_BYTES:
            raise _MalformedPacket
    if at + _QUESTION_TAIL.size > len(packet):
        raise _MalformedPacket
    qtype, qclass = _QUESTION_TAIL.unpack_from(packet, at)
    return DnsQuestion(".".join(labels), qtype, qclass, at + _QUESTION_TAIL.size)


def _byte(packet: bytes, at: int) -> int:
    if at >= len(packet):
        raise _MalformedPacket
    return packet[at]
