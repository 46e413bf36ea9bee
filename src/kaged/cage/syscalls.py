"""The system calls a cage refuses, as data: one row per group with its answer and its reason.

EPERM for what a program may probe, ENOSYS for what has a fallback, EAFNOSUPPORT for sockets; a
process is killed only for a foreign ABI.
"""

from __future__ import annotations

import errno

from kaged.base.lazy_dataclass import dataclass

# Since 2019 new calls have one number on every architecture; libseccomp may be older than they are.
UNIFIED_NUMBERS: dict[str, int] = {
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "set_mempolicy_home_node": 450,
    "fchmodat2": 452,
}
# The newest call whose effect was looked at (removexattrat). Anything above does not exist inside.
NEWEST_REVIEWED = 466

O_CREAT = 0o100
O_TMPFILE_BIT = 0o20000000
SET_ID_BITS = (0o4000, 0o2000)
WORD = 0xFFFFFFFF  # the kernel reads these arguments as 32 bits; the upper half must not matter

ADDR_NO_RANDOMIZE = 0x0040000
PER_LINUX32 = 0x0008
PERSONALITY_QUERY = 0xFFFFFFFF

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
SOCK_STREAM, SOCK_SEQPACKET = 1, 5
SOCK_TYPE_MASK = 0xF
# ICMP is refused by the kernel itself; the others would load kernel modules that nobody needs.
INET_PROTOCOLS = (0, 1, 6, 17, 58)

_NEW_NAMESPACE_FLAGS = (
    # CLONE_NEWTIME is no flag of clone: its bit is part of the exit signal there.
    0x00020000,  # CLONE_NEWNS
    0x02000000,  # CLONE_NEWCGROUP
    0x04000000,  # CLONE_NEWUTS
    0x08000000,  # CLONE_NEWIPC
    0x10000000,  # CLONE_NEWUSER
    0x20000000,  # CLONE_NEWPID
    0x40000000,  # CLONE_NEWNET
)
TIOCSTI, TIOCSETD, TIOCLINUX = 0x5412, 0x5423, 0x541C


@dataclass(frozen=True, slots=True)
class Masked:
    """A condition on one argument: its bits under `mask` equal `value`."""

    argument: int
    mask: int
    value: int


@dataclass(frozen=True, slots=True)
class SyscallRule:
    """One refusal: these calls, under these conditions (all of them), get this error."""

    calls: tuple[str, ...]
    error: int
    reason: str
    when: tuple[Masked, ...] = ()
    relaxed_allows: bool = False


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _set_id() -> tuple[SyscallRule, ...]:
    why = "a cage of uid 0 could leave a set-id program in a writable grant"
    rows: list[SyscallRule] = []
    modes = (
        ("chmod", 1),
        ("fchmod", 1),
        ("fchmodat", 2),
        ("creat", 1),
        ("mknod", 1),
        ("mknodat", 2),
    )  # fmt: skip - one line reads as the table it is
    for bit in SET_ID_BITS:
        rows += [
            SyscallRule((call,), errno.EPERM, why, (Masked(place, bit, bit),))
            for call, place in modes
        ]
        rows += [
            SyscallRule(
                (call,),
                errno.EPERM,
                why,
                (Masked(flags_at, flag, flag), Masked(flags_at + 1, bit, bit)),
            )
            for call, flags_at in (("open", 1), ("openat", 2))
            for flag in (O_CREAT, O_TMPFILE_BIT)
        ]
    return tuple(rows)


REFUSALS: tuple[SyscallRule, ...] = (
    SyscallRule(
        _words("ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp perf_event_open"),
        errno.EPERM,
        "reach into siblings; debuggers and profilers need it",
        relaxed_allows=True,
    ),
    SyscallRule(_words("process_madvise process_mrelease"), errno.EPERM, "acts on other processes"),
    SyscallRule(_words("unshare setns"), errno.EPERM, "second line behind bwrap's own ban"),
    *(
        SyscallRule(("clone",), errno.EPERM, "a new namespace", (Masked(0, flag, flag),))
        for flag in _NEW_NAMESPACE_FLAGS
    ),
    SyscallRule(
        ("clone3",), errno.ENOSYS, "its flags are behind a pointer; libc falls back to clone"
    ),
    SyscallRule(_words("mount umount umount2 pivot_root chroot"), errno.EPERM, "mounts"),
    SyscallRule(
        _words("open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr"),
        errno.ENOSYS,
        "the newer mount interface",
    ),
    SyscallRule(
        _words("io_uring_setup io_uring_enter io_uring_register"),
        errno.ENOSYS,
        "does sockets and files behind the filter's back",
    ),
    SyscallRule(
        _words("add_key keyctl request_key"),
        errno.EPERM,
        "keyrings belong to the uid, not to the namespace",
    ),
    SyscallRule(
        _words(
            "bpf userfaultfd init_module finit_module delete_module create_module query_module "
            "get_kernel_syms kexec_load kexec_file_load"
        ),
        errno.EPERM,
        "kernel code",
    ),
    SyscallRule(
        _words(
            "reboot swapon swapoff syslog acct quotactl quotactl_fd sethostname setdomainname "
            "settimeofday stime clock_settime clock_adjtime adjtimex iopl ioperm modify_ldt "
            "vhangup uselib lookup_dcookie nfsservctl _sysctl ustat sysfs vm86 vm86old"
        ),
        errno.EPERM,
        "the machine itself",
    ),
    SyscallRule(
        _words("name_to_handle_at open_by_handle_at fanotify_init fanotify_mark"),
        errno.EPERM,
        "opens by inode, watches whole mounts",
    ),
    SyscallRule(
        _words(
            "mbind set_mempolicy get_mempolicy move_pages migrate_pages set_mempolicy_home_node"
        ),
        errno.EPERM,
        "placement of other processes' memory",
    ),
    SyscallRule(("memfd_secret",), errno.ENOSYS, "hides memory from accounting tools"),
    *(
        SyscallRule(("ioctl",), errno.EPERM, "types into a terminal", (Masked(1, WORD, request),))
        for request in (TIOCSTI, TIOCLINUX, TIOCSETD)
    ),
    *_set_id(),
    SyscallRule(
        ("openat2",), errno.ENOSYS, "its mode is behind a pointer; libc falls back to openat"
    ),
)
