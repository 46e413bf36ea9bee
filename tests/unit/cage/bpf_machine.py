"""A machine for classic BPF as seccomp uses it, to ask filters of any architecture."""

from __future__ import annotations

import struct

from kaged.cage.bpf import INSTRUCTION


class Machine:
    """Runs one filter; `ask` returns the action for a system call."""

    def __init__(self, program: bytes) -> None:
        assert len(program) % INSTRUCTION.size == 0
        self.code = [INSTRUCTION.unpack_from(program, at) for at in range(0, len(program), 8)]

    def ask(self, arch: int, number: int, *arguments: int) -> int:
        padded = [*arguments, *([0] * (6 - len(arguments)))]
        data = struct.pack("<iIQ6Q", _signed(number), arch, 0, *(one % 2**64 for one in padded))
        at, accumulator = 0, 0
        for _ in range(len(self.code) + 1):
            code, if_true, if_false, value = self.code[at]
            at += 1
            match code:
                case 0x20:  # load a word
                    accumulator = struct.unpack_from("<I", data, value)[0]
                case 0x54:  # and
                    accumulator &= value
                case 0x05:  # jump
                    at += value
                case 0x15:
                    at += if_true if accumulator == value else if_false
                case 0x25:
                    at += if_true if accumulator > value else if_false
                case 0x35:
                    at += if_true if accumulator >= value else if_false
                case 0x45:
                    at += if_true if accumulator & value else if_false
                case 0x06:
                    return value
                case _:
                    raise AssertionError(f"instruction {code:#x}")
        raise AssertionError("the program does not end")


def _signed(number: int) -> int:
    return number - 2**32 if number >= 2**31 else number


__all__ = ["Machine"]
