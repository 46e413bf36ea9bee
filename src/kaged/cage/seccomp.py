"""System-call filters: `seccomp_program` builds the `default` and `relaxed` profile once each."""

from __future__ import annotations

import functools
import os
import tempfile
from types import ModuleType
from typing import Any

from kaged.cage import bpf
from kaged.cage.errors import CageUnavailable
from kaged.cage.syscalls import REFUSALS, UNIFIED_NUMBERS, SyscallRule
from kaged.kernel.policy import SeccompProfile

ARCHITECTURES: dict[str, tuple[str, int]] = {
    "x86_64": ("X86_64", 0xC000003E),
    "aarch64": ("AARCH64", 0xC00000B7),
}
# Calls of the front program, by architecture.
_FRONT_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {"personality": 135, "socket": 41, "socketpair": 53},
    "aarch64": {"personality": 92, "socket": 198, "socketpair": 199},
}
PROBE_ROW = "cage.seccomp"


@functools.lru_cache(maxsize=8)
def seccomp_program(profile: SeccompProfile, machine: str) -> bytes:
    """Return the filter for a profile and an architecture as BPF, built once per process.

    Raises:
        CageUnavailable: libseccomp is missing, or there is no table for this architecture.
    """
    if machine not in ARCHITECTURES:
        raise CageUnavailable(
            f"there is no system-call table for {machine}",
            row=PROBE_ROW,
            fix="run the daemon on x86-64 or aarch64",
        )
    library = _library()
    name, arch = ARCHITECTURES[machine]
    relaxed = profile is SeccompProfile.RELAXED
    rows = [row for row in REFUSALS if not (relaxed and row.relaxed_allows)]
    try:
        behind, unknown = _behind(library, getattr(library.Arch, name), rows)
    except (OSError, ValueError) as error:
        raise CageUnavailable(
            f"libseccomp could not build the {profile} filter: {error}", row=PROBE_ROW
        ) from error
    front = bpf.front_program(
        arch,
        _FRONT_NUMBERS[machine],
        randomisation_may_be_off=relaxed,
        unified=unknown,
    )
    return front + behind


def seccomp_fd(profile: SeccompProfile, machine: str) -> int:
    """Return a fresh descriptor to read the filter from; the caller closes it."""
    program = seccomp_program(profile, machine)
    fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    try:
        os.write(fd, program)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _library() -> ModuleType:
    try:
        import pyseccomp  # noqa: PLC0415 - loads libseccomp, which a degraded host may lack
    except (ImportError, RuntimeError, OSError) as error:
        raise CageUnavailable(
            f"libseccomp cannot be used: {error}",
            row=PROBE_ROW,
            fix="install libseccomp2 (Debian, Ubuntu) or libseccomp (Fedora, Arch)",
        ) from error
    return pyseccomp


def _behind(
    library: Any, arch: int, rows: list[SyscallRule]
) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Build libseccomp's part, and name the calls that this version of it does not know."""
    program = library.SyscallFilter(library.ALLOW)
    program.set_attr(library.Attr.ACT_BADARCH, library.KILL_PROCESS)
    program.set_attr(library.Attr.CTL_OPTIMIZE, 2)  # a search tree instead of a list
    native = library.system_arch()
    if arch != native:
        program.add_arch(arch)
        program.remove_arch(native)
    unknown: list[tuple[int, int]] = []
    for row in rows:
        conditions = [
            library.Arg(one.argument, library.MASKED_EQ, one.mask, one.value) for one in row.when
        ]
        for call in row.calls:
            number = _number(library, call)
            if number is not None:
                program.add_rule(library.ERRNO(row.error), number, *conditions)
            elif call in UNIFIED_NUMBERS:
                unknown.append((UNIFIED_NUMBERS[call], row.error))
    with tempfile.TemporaryFile() as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read(), tuple(unknown)


def _number(library: Any, call: str) -> int | None:
    number = int(library.resolve_syscall(library.Arch.NATIVE, call))
    return None if number == -1 else number  # other negative numbers are calls of other machines
