"""Both filters, for both architectures, asked call by call on a small machine."""

from __future__ import annotations

import contextlib
import errno
import os
from functools import cache

import pyseccomp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.cage import seccomp
from kaged.cage.bpf import RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS
from kaged.cage.errors import CageUnavailable
from kaged.cage.seccomp import ARCHITECTURES, seccomp_fd, seccomp_program
from kaged.cage.syscalls import NEWEST_REVIEWED, REFUSALS, UNIFIED_NUMBERS
from kaged.kernel.policy import SeccompProfile
from unit.cage.bpf_machine import Machine

# Numbers as in the kernel's own tables: (x86-64, aarch64).
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "openat": (257, 56), "open": (2, None), "close": (3, 57),
    "mmap": (9, 222), "clone": (56, 220), "execve": (59, 221), "exit_group": (231, 94),
    "futex": (202, 98), "ioctl": (16, 29), "socket": (41, 198), "socketpair": (53, 199),
    "connect": (42, 203), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "perf_event_open": (298, 241), "process_madvise": (440, 440), "personality": (135, 92),
    "unshare": (272, 97), "setns": (308, 268), "clone3": (435, 435), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217),
    "keyctl": (250, 219), "request_key": (249, 218), "bpf": (321, 280), "userfaultfd": (323, 282),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "syslog": (103, 116), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "sethostname": (170, 161),
    "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "vhangup": (153, 58), "uselib": (134, None),
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "fanotify_mark": (301, 263),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "get_mempolicy": (239, 236),
    "move_pages": (279, 239), "migrate_pages": (256, 238), "memfd_secret": (447, 447),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "creat": (85, None), "mknod": (133, None), "mknodat": (259, 33), "openat2": (437, 437),
    "memfd_create": (319, 279), "epoll_pwait2": (441, 441), "futex_waitv": (449, 449),
    "pidfd_open": (434, 434), "close_range": (436, 436), "faccessat2": (439, 439),
    "landlock_create_ruleset": (444, 444), "prctl": (157, 167), "seccomp": (317, 277),
    "prlimit64": (302, 261), "sendmsg": (46, 211), "bind": (49, 200), "listen": (50, 201),
}  # fmt: skip
MACHINES = sorted(ARCHITECTURES, reverse=True)
PROFILES = list(SeccompProfile)
EPERM, ENOSYS, NOFAMILY = (
    RET_ERRNO | one for one in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)
)
NOPROTOCOL = RET_ERRNO | errno.EPROTONOSUPPORT
X86_32, ARM_32 = 0x40000003, 0x40000028


@cache
def machine(name: str, profile: SeccompProfile) -> Machine:
    return Machine(seccomp_program(profile, name))


def ask(name: str, profile: SeccompProfile, call: str, *arguments: int) -> int | None:
    number = NUMBERS[call][0 if name == "x86_64" else 1]
    if number is None:
        return None
    return machine(name, profile).ask(ARCHITECTURES[name][1], number, *arguments)


def words(text: str) -> list[str]:
    return text.split()


both = pytest.mark.parametrize("profile", PROFILES)
everywhere = pytest.mark.parametrize("name", MACHINES)


@both
@everywhere
@pytest.mark.parametrize(
    "call",
    words(
        "read write openat close mmap execve exit_group futex connect memfd_create epoll_pwait2 "
        "futex_waitv pidfd_open close_range faccessat2 landlock_create_ruleset prctl seccomp "
        "prlimit64 sendmsg bind listen fchmodat2 clone ioctl"
    ),
)
def test_what_programs_need_is_allowed(name: str, profile: SeccompProfile, call: str) -> None:
    assert ask(name, profile, call) == RET_ALLOW


ALWAYS_EPERM = words(
    "process_madvise unshare setns mount umount2 pivot_root chroot add_key keyctl request_key bpf "
    "userfaultfd init_module finit_module delete_module kexec_load kexec_file_load reboot swapon "
    "swapoff syslog acct quotactl quotactl_fd sethostname setdomainname settimeofday clock_settime "
    "clock_adjtime adjtimex iopl ioperm modify_ldt vhangup uselib lookup_dcookie nfsservctl "
    "name_to_handle_at open_by_handle_at fanotify_init fanotify_mark mbind set_mempolicy "
    "get_mempolicy move_pages migrate_pages"
)
ALWAYS_ENOSYS = words(
    "clone3 open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr io_uring_setup "
    "io_uring_enter io_uring_register memfd_secret openat2"
)
TRACING = words("ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp perf_event_open")


@both
@everywhere
@pytest.mark.parametrize("call", ALWAYS_EPERM)
def test_what_reaches_for_the_host_is_not_permitted(
    name: str, profile: SeccompProfile, call: str
) -> None:
    assert ask(name, profile, call) in {EPERM, None}


@both
@everywhere
@pytest.mark.parametrize("call", ALWAYS_ENOSYS)
def test_what_has_a_fallback_does_not_exist(name: str, profile: SeccompProfile, call: str) -> None:
    assert ask(name, profile, call) == ENOSYS


@everywhere
@pytest.mark.parametrize("call", TRACING)
def test_only_the_relaxed_profile_lets_debuggers_work(name: str, call: str) -> None:
    assert ask(name, SeccompProfile.DEFAULT, call) == EPERM
    assert ask(name, SeccompProfile.RELAXED, call) == RET_ALLOW


@both
@pytest.mark.parametrize(
    ("name", "foreign"),
    [("x86_64", X86_32), ("x86_64", 0xC00000B7), ("aarch64", ARM_32), ("aarch64", 0xC000003E)],
)
def test_another_architecture_is_killed(name: str, profile: SeccompProfile, foreign: int) -> None:
    assert machine(name, profile).ask(foreign, 1) == RET_KILL_PROCESS


@both
@pytest.mark.parametrize("number", [0x40000000, 0x40000001, 0x40000200, 0x7FFFFFFF, 0xFFFFFFFF])
def test_x32_numbers_are_killed(profile: SeccompProfile, number: int) -> None:
    arch = ARCHITECTURES["x86_64"][1]
    assert machine("x86_64", profile).ask(arch, number) == RET_KILL_PROCESS


@both
@everywhere
@given(number=st.integers(NEWEST_REVIEWED + 1, 0x3FFFFFFF))
def test_calls_newer_than_the_review_do_not_exist(
    name: str, profile: SeccompProfile, number: int
) -> None:
    assert machine(name, profile).ask(ARCHITECTURES[name][1], number) == ENOSYS


@both
@everywhere
@given(flag=st.sampled_from([0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000,
                             0x40000000]), others=st.integers(0, 2**64 - 1))  # fmt: skip
def test_no_clone_makes_a_namespace(
    name: str, profile: SeccompProfile, flag: int, others: int
) -> None:
    assert ask(name, profile, "clone", others | flag) == EPERM


@both
@everywhere
@given(high=st.integers(0, 2**32 - 1), request=st.sampled_from([0x5412, 0x541C, 0x5423]))
def test_no_upper_bit_walks_past_the_terminal_rules(
    name: str, profile: SeccompProfile, high: int, request: int
) -> None:
    assert ask(name, profile, "ioctl", 0, high << 32 | request) == EPERM


@both
@everywhere
@given(
    family=st.integers(0, 2**32 - 1),
    high=st.integers(0, 2**32 - 1),
    kind=st.integers(0, 10),
    protocol=st.integers(0, 300),
)
def test_only_inet_and_route_netlink_sockets_exist(
    name: str, profile: SeccompProfile, family: int, high: int, kind: int, protocol: int
) -> None:
    found = ask(name, profile, "socket", high << 32 | family, kind, protocol)
    if family in {2, 10}:
        assert found == (RET_ALLOW if protocol in {0, 1, 6, 17, 58} else NOPROTOCOL)
    elif family == 16 and protocol == 0:
        assert found == RET_ALLOW
    else:
        assert found == NOFAMILY


@both
@everywhere
@given(family=st.integers(0, 50), kind=st.integers(0, 2**32 - 1), high=st.integers(0, 2**32 - 1))
def test_only_connected_unix_pairs_exist(
    name: str, profile: SeccompProfile, family: int, kind: int, high: int
) -> None:
    """A datagram pair can be sent anywhere afterwards; a connected one cannot."""
    found = ask(name, profile, "socketpair", family, high << 32 | kind, 0)
    assert found == (RET_ALLOW if family == 1 and kind & 0xF in {1, 5} else NOFAMILY)


@everywhere
@given(persona=st.integers(0, 2**32 - 1), high=st.integers(0, 2**32 - 1))
def test_personality_is_an_allow_list(name: str, persona: int, high: int) -> None:
    default = ask(name, SeccompProfile.DEFAULT, "personality", high << 32 | persona)
    relaxed = ask(name, SeccompProfile.RELAXED, "personality", high << 32 | persona)
    query = persona == 0xFFFFFFFF
    assert default == (RET_ALLOW if query or not persona & ~0x8 else EPERM)
    assert relaxed == (RET_ALLOW if query or not persona & ~0x40008 else EPERM)


@everywhere
@pytest.mark.parametrize("persona", [0, 8, 0x40000, 0xFFFFFFFF, 0x400000, 0x40008])
def test_personality_values_that_matter(name: str, persona: int) -> None:
    default = ask(name, SeccompProfile.DEFAULT, "personality", persona)
    assert (default == RET_ALLOW) == (persona in {0, 8, 0xFFFFFFFF})


SET_ID = st.sampled_from([0o4000, 0o2000, 0o6000])


@both
@everywhere
@given(bits=SET_ID, mode=st.integers(0, 2**64 - 1))
def test_no_call_sets_a_set_id_bit(
    name: str, profile: SeccompProfile, bits: int, mode: int
) -> None:
    wanted = mode | bits
    create = os.O_CREAT | os.O_WRONLY
    answers = {
        ask(name, profile, "chmod", 0, wanted),
        ask(name, profile, "fchmod", 0, wanted),
        ask(name, profile, "fchmodat", 0, 0, wanted),
        ask(name, profile, "fchmodat2", 0, 0, wanted),
        ask(name, profile, "creat", 0, wanted),
        ask(name, profile, "mknod", 0, wanted),
        ask(name, profile, "mknodat", 0, 0, wanted),
        ask(name, profile, "open", 0, create, wanted),
        ask(name, profile, "openat", 0, 0, create, wanted),
        ask(name, profile, "openat", 0, 0, 0o20000000, wanted),
    }
    assert answers <= {EPERM, None}


@both
@everywhere
@given(mode=st.integers(0, 0o1777))
def test_ordinary_modes_are_allowed(name: str, profile: SeccompProfile, mode: int) -> None:
    create = os.O_CREAT | os.O_WRONLY
    assert ask(name, profile, "fchmodat", 0, 0, mode) == RET_ALLOW
    assert ask(name, profile, "fchmodat2", 0, 0, mode) == RET_ALLOW
    assert ask(name, profile, "openat", 0, 0, create, mode) == RET_ALLOW
    # Without a create flag the mode is whatever lies in the register.
    assert ask(name, profile, "openat", 0, 0, os.O_RDONLY, 0o7777) == RET_ALLOW


def test_filters_fit_the_kernel_and_are_built_once() -> None:
    for name in MACHINES:
        for profile in PROFILES:
            assert len(seccomp_program(profile, name)) // 8 < 4096
            assert seccomp_program(profile, name) is seccomp_program(profile, name)


def test_every_refusal_has_a_reason_and_unified_numbers_are_unified() -> None:
    assert all(row.reason and row.calls for row in REFUSALS)
    assert all(424 <= number <= NEWEST_REVIEWED for number in UNIFIED_NUMBERS.values())


def test_each_spawn_gets_a_descriptor_of_its_own() -> None:
    fds = [seccomp_fd(SeccompProfile.DEFAULT, "x86_64") for _ in range(2)]
    try:
        texts = [os.read(fd, 1 << 20) for fd in fds]
    finally:
        for fd in fds:
            os.close(fd)
    assert texts[0] == texts[1] == seccomp_program(SeccompProfile.DEFAULT, "x86_64")


def test_an_architecture_without_a_table_is_refused() -> None:
    with pytest.raises(CageUnavailable, match="mips") as caught:
        seccomp_program(SeccompProfile.DEFAULT, "mips")
    assert caught.value.row == "cage.seccomp"


def test_calls_that_libseccomp_does_not_know_are_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old library resolves no new name; the front program has their numbers."""
    real = seccomp._number

    def old(library: object, call: str) -> int | None:
        return None if call in UNIFIED_NUMBERS else real(library, call)

    monkeypatch.setattr(seccomp, "_number", old)
    asked = Machine(seccomp_program.__wrapped__(SeccompProfile.DEFAULT, "x86_64"))
    arch = ARCHITECTURES["x86_64"][1]
    for call in ("clone3", "openat2", "fsopen", "memfd_secret"):
        assert asked.ask(arch, UNIFIED_NUMBERS[call]) == ENOSYS
    for call in ("pidfd_getfd", "process_madvise", "quotactl_fd"):
        assert asked.ask(arch, UNIFIED_NUMBERS[call]) == EPERM


def test_without_libseccomp_no_filter_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyseccomp", None)
    with pytest.raises(CageUnavailable) as caught:
        seccomp_program.__wrapped__(SeccompProfile.DEFAULT, "x86_64")
    assert caught.value.row == "cage.seccomp"


@both
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (2**64 - 1,) * 6,
        (0, 0x5412, 0o6755, 0o6755, 0, 0),
        (0x10000000, 1, 0, 0, 0, 0),
        (2, 1, 6, 0o4755, 0, 0),
        (16, 3, 9, 0, 0, 0),
    ],
)
def test_every_call_has_the_same_answer_on_both_architectures(
    profile: SeccompProfile, arguments: tuple[int, ...]
) -> None:
    """Names and numbers by libseccomp's own tables: a rule may not hold on one machine only."""
    arm, intel = pyseccomp.Arch.AARCH64, pyseccomp.Arch.X86_64
    compared = 0
    for number in range(NEWEST_REVIEWED + 1):
        with contextlib.suppress(ValueError):
            name = pyseccomp.resolve_syscall(arm, number).decode()
            other = int(pyseccomp.resolve_syscall(intel, name))
            if other < 0:
                continue  # there is no such call on the other machine
            there = machine("aarch64", profile).ask(ARCHITECTURES["aarch64"][1], number, *arguments)
            here = machine("x86_64", profile).ask(ARCHITECTURES["x86_64"][1], other, *arguments)
            assert there == here, (name, number, other)
            compared += 1
    assert compared > 250
