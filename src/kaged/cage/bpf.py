"""A few instructions of classic BPF: what libseccomp's rules cannot say stands in front of them.

libseccomp compares single calls; it has no "every number above this one", and no allow-list over
one argument. Those checks are assembled here and put before its program, whose jumps are relative.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

from kaged.cage import syscalls as table

RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_ALLOW = 0x7FFF0000

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST = 0x15, 0x25, 0x35
_AT_NUMBER, _AT_ARCH, _AT_ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000

INSTRUCTION = struct.Struct("HBBI")


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Pack one instruction."""
    return INSTRUCTION.pack(code, if_true, if_false, value & 0xFFFFFFFF)


def front_program(
    arch: int,
    numbers: dict[str, int],
    *,
    randomisation_may_be_off: bool,
    unified: Sequence[tuple[int, int]] = (),
) -> bytes:
    """Assemble the checks that come first.

    `arch` is the only ABI that is not killed, `numbers` the numbers of `personality`, `socket` and
    `socketpair` on it, `unified` pairs of a call number and the errno it gets. Everything that is
    not decided here falls through to the program behind.
    """
    parts = [
        instruction(_LOAD, _AT_ARCH),
        instruction(_JUMP_EQUAL, arch, 1, 0),
        _give(RET_KILL_PROCESS),
        instruction(_LOAD, _AT_NUMBER),
        # x32: 64-bit programs can make these calls on common kernels, past every number below.
        instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _give(RET_KILL_PROCESS),
        instruction(_JUMP_GREATER, table.NEWEST_REVIEWED, 0, 1),
        _error(errno.ENOSYS),
    ]
    parts += [_when_number(number, _error(error)) for number, error in unified]
    parts.append(
        _when_number(
            table.UNIFIED_NUMBERS["fchmodat2"],
            _argument(2)
            + instruction(_AND, table.SET_ID_BITS[0] | table.SET_ID_BITS[1])
            + instruction(_JUMP_EQUAL, 0, 1, 0)
            + _error(errno.EPERM)
            + _give(RET_ALLOW),
        )
    )
    parts.append(_when_number(numbers["personality"], _personality(randomisation_may_be_off)))
    parts.append(_when_number(numbers["socket"], _socket()))
    parts.append(_when_number(numbers["socketpair"], _socketpair()))
    return b"".join(parts)


def _personality(randomisation_may_be_off: bool) -> bytes:
    allowed = table.PER_LINUX32 | (table.ADDR_NO_RANDOMIZE if randomisation_may_be_off else 0)
    return (
        _argument(0)
        + instruction(_JUMP_EQUAL, table.PERSONALITY_QUERY, 2, 0)
        + instruction(_AND, ~allowed)
        + instruction(_JUMP_EQUAL, 0, 0, 1)
        + _give(RET_ALLOW)
        + _error(errno.EPERM)
    )


def _socket() -> bytes:
    protocols = _one_of(table.INET_PROTOCOLS, errno.EPROTONOSUPPORT, argument=2)
    netlink = _one_of((table.NETLINK_ROUTE,), errno.EAFNOSUPPORT, argument=2)
    return (
        _argument(0)
        + instruction(_JUMP_EQUAL, table.AF_INET, 1, 0)
        + instruction(_JUMP_EQUAL, table.AF_INET6, 0, _length(protocols))
        + protocols
        + instruction(_JUMP_EQUAL, table.AF_NETLINK, 0, _length(netlink))
        + netlink
        + _error(errno.EAFNOSUPPORT)
    )


def _socketpair() -> bytes:
    # A datagram pair can be sent to any address afterwards, so it would be an AF_UNIX socket after
    # all; connected kinds cannot be.
    kinds = _one_of(
        (table.SOCK_STREAM, table.SOCK_SEQPACKET),
        errno.EAFNOSUPPORT,
        argument=1,
        mask=table.SOCK_TYPE_MASK,
    )
    return (
        _argument(0)
        + instruction(_JUMP_EQUAL, table.AF_UNIX, 0, _length(kinds))
        + kinds
        + _error(errno.EAFNOSUPPORT)
    )


def _one_of(values: Sequence[int], error: int, *, argument: int, mask: int | None = None) -> bytes:
    """Allow if an argument has one of these values, else answer with the error."""
    tests = [
        instruction(_JUMP_EQUAL, value, len(values) - place, 0)
        for place, value in enumerate(values)
    ]
    masked = instruction(_AND, mask) if mask is not None else b""
    return _argument(argument) + masked + b"".join(tests) + _error(error) + _give(RET_ALLOW)


def _when_number(number: int, body: bytes) -> bytes:
    # Entered with the call number loaded; `body` always returns, so it is still loaded behind.
    return instruction(_JUMP_EQUAL, number, 0, _length(body)) + body


def _argument(place: int) -> bytes:
    return instruction(_LOAD, _AT_ARGUMENTS + 8 * place)  # the lower half: what the kernel reads


def _give(action: int) -> bytes:
    return instruction(_RETURN, action)


def _error(number: int) -> bytes:
    return _give(RET_ERRNO | number)


def _length(code: bytes) -> int:
    return len(code) // INSTRUCTION.size
