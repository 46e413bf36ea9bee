"""Runs inside a cage and tries to get out, one function per attempt; prints a table as JSON.

Standard library only. Each attempt gives the name of the error it met, or a word that starts with
`allowed`. Where a success would harm the host, the attempt opens and does not write.
"""

# ruff: noqa: PTH104, PTH108, PTH110, PTH115, PTH116, PTH123, PTH208 - raw names are the point

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MACHINE = platform.machine()
AT_FDCWD = -100

# Numbers of the calls that have none in common; `None` where the architecture has no such call.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "personality": (135, 92),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "perf_event_open": (298, 241),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone": (56, 220),
    "syslog": (103, 116),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "get_mempolicy": (239, 236),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "creat": (85, None),
    "open": (2, None),
    "openat": (257, 56),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "ioctl": (16, 29),
    "inotify_init1": (294, 26),
    "getpid": (39, 172),
}
_COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "set_mempolicy_home_node": 450,
    "fchmodat2": 452,
    "open_tree_attr": 467,
}

ATTACKS: dict[str, Callable[[dict[str, Any]], str]] = {}


def attack(name: str) -> Callable[[Callable[[dict[str, Any]], str]], Any]:
    def keep(function: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
        assert name not in ATTACKS, name
        ATTACKS[name] = function
        return function

    return keep


def word(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def call(name: str, *args: Any) -> str:
    """Make a raw system call; return the error's name, or `allowed`."""
    number = _COMMON.get(name)
    if number is None:
        number = _NUMBERS[name][0 if MACHINE == "x86_64" else 1]
    if number is None:
        return "absent"
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *(_argument(one) for one in args))
    return word(ctypes.get_errno()) if result == -1 else "allowed"


def _argument(value: Any) -> Any:
    return ctypes.c_ulong(value & 0xFFFFFFFFFFFFFFFF) if isinstance(value, int) else value


def tried(action: Callable[[], Any]) -> str:
    """Run an action; return the error's name, or `allowed`."""
    try:
        action()
    except OSError as error:
        return word(error.errno or 0)
    return "allowed"


def in_child(action: Callable[[], int]) -> str:
    """Run an action in a fork; return how it ended."""
    pid = os.fork()  # noqa: TID251 - an attack that is run inside a cage
    if pid == 0:
        code = 99
        with contextlib.suppress(BaseException):
            code = action()
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def read(path: str) -> str:
    return tried(lambda: Path(path).read_bytes())


def write_open(path: str) -> str:
    return tried(lambda: os.close(os.open(path, os.O_WRONLY)))


# ---- files


@attack("E01-read-a-host-file")
def _(where: dict[str, Any]) -> str:
    return read(where["secret"])


@attack("E01-read-a-file-beside-the-grant")
def _(where: dict[str, Any]) -> str:
    return read(where["sibling"])


@attack("E01-read-etc-shadow")
def _(where: dict[str, Any]) -> str:
    return read("/etc/shadow")


@attack("E01-read-etc-passwd")
def _(where: dict[str, Any]) -> str:
    return read("/etc/passwd")


@attack("E01-read-machine-id")
def _(where: dict[str, Any]) -> str:
    return read("/etc/machine-id")


for _path in ("/home", "/root", "/var", "/boot", "/srv", "/opt", "/mnt"):

    @attack(f"E02-list-{_path[1:]}")
    def _(where: dict[str, Any], path: str = _path) -> str:
        return tried(lambda: os.listdir(path))


@attack("E02-list-the-daemons-home")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.listdir(where["daemon_home"]))


@attack("E03-write-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return write_open(f"{where['ro']}/file")


@attack("E03-create-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path(where["ro"], "new").touch())


@attack("E03-chmod-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path(where["ro"], "file").chmod(0o600))


@attack("E03-utime-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.utime(f"{where['ro']}/file"))


@attack("E03-unlink-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path(where["ro"], "file").unlink())


@attack("E03-rename-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path(where["ro"], "file").rename(f"{where['ro']}/other"))


@attack("E03-truncate-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.truncate(f"{where['ro']}/file", 0))


@attack("E03-write-in-a-read-grant-inside-a-write-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path(where["rw"], "narrow", "new").touch())


@attack("E03-rename-away-a-read-grant-inside-a-write-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path(where["rw"], "narrow").rename(f"{where['rw']}/moved"))


@attack("E04-follow-a-link-out-of-a-write-grant")
def _(where: dict[str, Any]) -> str:
    return read(f"{where['rw']}/link-to-secret")


@attack("E04-make-and-follow-a-link-out-of-a-write-grant")
def _(where: dict[str, Any]) -> str:
    link = Path(where["rw"], "own-link")
    link.symlink_to(where["secret"])
    try:
        return read(str(link))
    finally:
        link.unlink()


@attack("E05-climb-out-with-dots")
def _(where: dict[str, Any]) -> str:
    return read(f"{where['rw']}/../sibling/file")


@attack("E05-the-parent-shows-only-grants")
def _(where: dict[str, Any]) -> str:
    found = sorted(os.listdir(Path(where["rw"]).parent))
    return "only grants" if found == ["ro", "rw", "second"] else f"allowed: {found}"


@attack("E05-climb-out-by-descriptor")
def _(where: dict[str, Any]) -> str:
    fd = os.open(where["ro"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        return tried(lambda: os.close(os.open("../sibling/file", os.O_RDONLY, dir_fd=fd)))
    finally:
        os.close(fd)


@attack("E06-hardlink-from-one-grant-to-another")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.link(f"{where['rw']}/file", f"{where['second']}/linked"))


@attack("E06-hardlink-from-a-read-grant-to-a-write-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.link(f"{where['ro']}/file", f"{where['rw']}/linked"))


@attack("E06-rename-from-one-grant-to-another")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.rename(f"{where['rw']}/file", f"{where['second']}/moved"))


for _path in (
    "/usr/new", "/usr/bin/new", "/usr/lib/new", "/usr/share/new", "/etc/new", "/new", "/dev/new",
    "/kaged-base/bin/new", "/proc/new", "/usr/local/bin/new",
):  # fmt: skip

    @attack(f"E08-create{_path.replace('/', '-')}")
    def _(where: dict[str, Any], path: str = _path) -> str:
        return tried(lambda: Path(path).touch())


for _path in ("/etc/hosts", "/etc/nsswitch.conf", "/usr/bin/env", os.__file__):

    @attack(f"E08-write-{'the-library' if _path == os.__file__ else _path[1:].replace('/', '-')}")
    def _(where: dict[str, Any], path: str = _path) -> str:
        return write_open(path)


@attack("E08-replace-a-base-program")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path("/usr/bin/cat").unlink())


@attack("E09-secret-through-proc-1-root")
def _(where: dict[str, Any]) -> str:
    return read(f"/proc/1/root{where['secret']}")


@attack("E09-secret-through-proc-self-cwd")
def _(where: dict[str, Any]) -> str:
    return read("/proc/self/cwd/../sibling/file")


@attack("E09-secret-through-proc-1-cwd")
def _(where: dict[str, Any]) -> str:
    return read(f"/proc/1/cwd{where['secret']}")


@attack("E09-secret-through-bwraps-old-root")
def _(where: dict[str, Any]) -> str:
    return read(f"/oldroot{where['secret']}")


for _place in ("rw", "tmp"):

    @attack(f"E10-make-a-device-in-{_place}")
    def _(where: dict[str, Any], place: str = _place) -> str:
        folder = where["rw"] if place == "rw" else "/tmp"
        return tried(lambda: os.mknod(f"{folder}/mem", 0o020666, os.makedev(1, 1)))


for _name in (
    "mem", "kmem", "kmsg", "port", "kvm", "fuse", "net/tun", "vsock", "vhost-net", "vda", "sda",
    "nvme0", "loop0", "loop-control", "mapper/control", "snapshot", "uinput", "input", "dri", "snd",
    "bus", "rtc0", "hpet", "autofs", "btrfs-control", "userfaultfd",
):  # fmt: skip

    @attack(f"E11-open-dev-{_name.replace('/', '-')}")
    def _(where: dict[str, Any], name: str = _name) -> str:
        return tried(lambda: os.close(os.open(f"/dev/{name}", os.O_RDONLY)))


for _name in ("su", "sudo", "mount", "umount", "passwd", "pkexec", "newgrp", "git", "curl", "ssh"):

    @attack(f"E12-find-{_name}")
    def _(where: dict[str, Any], name: str = _name) -> str:
        found = shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/bin")
        return "not found" if found is None else f"allowed: {found}"


@attack("E12-no-new-privileges")
def _(where: dict[str, Any]) -> str:
    status = Path("/proc/self/status").read_text()
    return "set" if "NoNewPrivs:\t1" in status else "allowed"


@attack("E12-no-capabilities")
def _(where: dict[str, Any]) -> str:
    lines = [
        line.split()
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Cap")
    ]
    return "none" if all(int(value, 16) == 0 for _, value in lines) else f"allowed: {lines}"


@attack("E12-run-a-setuid-program-from-a-grant")
def _(where: dict[str, Any]) -> str:
    program = f"{where['ro']}/setuid-id"
    if not os.path.exists(program):
        return "no such program"
    done = subprocess.run([program, "-u"], capture_output=True, text=True, check=False)
    return f"uid {done.stdout.strip()}"


for _path in ("/tmp", "/dev/shm", "/run"):

    @attack(f"E13-fill{_path.replace('/', '-')}")
    def _(where: dict[str, Any], path: str = _path) -> str:
        block = b"x" * (1024 * 1024)
        name = f"{path}/filler"
        try:
            with open(name, "wb", buffering=0) as file:
                for _ in range(200):
                    file.write(block)
        except OSError as error:
            return word(error.errno or 0)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(name)
        return "allowed"


@attack("E14-connect-to-a-socket-in-a-read-grant")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: socket.socket(socket.AF_UNIX).connect(f"{where['ro']}/stream.sock"))


@attack("E14-send-to-a-datagram-socket-through-a-pair")
def _(where: dict[str, Any]) -> str:
    def send() -> None:
        ours, _theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.sendto(b"out", f"{where['ro']}/datagram.sock")

    return tried(send)


@attack("E14-send-to-a-datagram-socket-through-a-raw-pair")
def _(where: dict[str, Any]) -> str:
    def send() -> None:
        ours, _theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
        ours.sendto(b"out", f"{where['ro']}/datagram.sock")

    return tried(send)


@attack("E14-reconnect-a-stream-pair-to-a-socket")
def _(where: dict[str, Any]) -> str:
    ours, theirs = socket.socketpair()
    theirs.close()
    return tried(lambda: ours.connect(f"{where['ro']}/stream.sock"))


@attack("E14-reconnect-a-seqpacket-pair-to-a-socket")
def _(where: dict[str, Any]) -> str:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    return tried(lambda: ours.connect(f"{where['ro']}/seqpacket.sock"))


# ---- the daemon's own things, through /proc


@attack("E15-environment-of-pid-1")
def _(where: dict[str, Any]) -> str:
    data = Path("/proc/1/environ").read_bytes()
    return "empty" if not data else f"allowed: {data[:80]!r}"


@attack("E15-daemon-secret-in-any-environment")
def _(where: dict[str, Any]) -> str:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if where["daemon_secret"].encode() in (entry / "environ").read_bytes():
                    return f"allowed: pid {entry.name}"
    return "nowhere"


@attack("E16-policy-on-the-command-line-of-pid-1")
def _(where: dict[str, Any]) -> str:
    words = Path("/proc/1/cmdline").read_bytes().split(b"\0")
    options = [one for one in words[: words.index(b"--")] if one.startswith(b"--")]
    return "only --args" if options == [b"--args"] else f"allowed: {options}"


@attack("E17-open-core-pattern")
def _(where: dict[str, Any]) -> str:
    return write_open("/proc/sys/kernel/core_pattern")


@attack("E17-count-writable-settings")
def _(where: dict[str, Any]) -> str:
    count = 0
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            count += write_open(f"{folder}/{name}") == "allowed"
    return str(count)


for _path in ("/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/bus/pci"):

    @attack(f"E18-write{_path.replace('/', '-')}")
    def _(where: dict[str, Any], path: str = _path) -> str:
        return write_open(path)


@attack("E19-list-processes")
def _(where: dict[str, Any]) -> str:
    found = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return "own" if found[0] == 1 and len(found) <= 6 else f"allowed: {found}"


@attack("E19-signal-a-host-process")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.kill(where["host_pid"], 0))


@attack("E19-read-a-host-process")
def _(where: dict[str, Any]) -> str:
    return read(f"/proc/{where['host_pid']}/status")


for _path in (
    "/proc/1/mem", "/proc/self/mem", "/proc/self/oom_score_adj", "/proc/self/uid_map",
    "/proc/self/gid_map", "/proc/self/setgroups", "/proc/self/attr/current",
    "/proc/self/clear_refs", "/proc/self/timerslack_ns", "/proc/1/oom_score_adj", "/proc/self/comm",
):  # fmt: skip

    @attack(f"E20-write{_path.replace('/', '-')}")
    def _(where: dict[str, Any], path: str = _path) -> str:
        return write_open(path)


@attack("E21-open-descriptors-at-the-start")
def _(where: dict[str, Any]) -> str:
    return where["descriptors_at_start"]


@attack("E21-descriptors-of-pid-1")
def _(where: dict[str, Any]) -> str:
    kinds: set[str] = set()
    for name in os.listdir("/proc/1/fd"):
        with contextlib.suppress(OSError):
            kinds.add(os.readlink(f"/proc/1/fd/{name}").split("[")[0].split(":")[0])
    return "pipes only" if kinds <= {"pipe", "anon_inode", "/dev/null"} else f"allowed: {kinds}"


for _path in (
    "/sys",
    "/sys/fs/cgroup",
    "/run/systemd",
    "/run/dbus",
    "/run/docker.sock",
    "/run/user",
):

    @attack(f"E22-list{_path.replace('/', '-')}")
    def _(where: dict[str, Any], path: str = _path) -> str:
        return tried(lambda: os.stat(path))


@attack("E23-kernel-log-by-call")
def _(where: dict[str, Any]) -> str:
    return call("syslog", 3, ctypes.create_string_buffer(64), 64)


@attack("E23-kernel-log-by-file")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.close(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK)))


@attack("E23-kernel-memory-by-file")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.close(os.open("/proc/kcore", os.O_RDONLY)))


_PUBLIC = ("acpi", "asound", "interrupts", "iomem", "ioports", "scsi")
for _path in (
    *_PUBLIC, "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags",
    "latency_stats", "pagetypeinfo", "sched_debug", "slabinfo", "timer_list", "timer_stats",
    "vmallocinfo",
):  # fmt: skip

    @attack(f"E23-look-at-proc-{_path}")
    def _(where: dict[str, Any], name: str = _path) -> str:
        path = f"/proc/{name}"
        if name in _PUBLIC and not where["uid0"]:
            return "empty"  # everybody on the machine may know; only a cage of uid 0 learns more
        if Path(path).is_dir():
            found = os.listdir(path)
            return "empty" if not found else f"allowed: {found}"
        return tried(lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)))


@attack("E23-fill-a-covered-folder-of-proc")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: Path("/proc/acpi/new").touch())


# ---- named pipes of the host

PIPES = ("ro/pipe", "ro/deep/er/second\npipe", "ro/private/pipe", "rw/narrow/pipe", "rw/pipe")
for _name in PIPES:

    @attack(f"E55-write-to-the-pipe-{_name!a}")
    def _(where: dict[str, Any], name: str = _name) -> str:
        def send() -> None:
            fd = os.open(where["pipes"][name], os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, b"out")
            os.close(fd)

        return tried(send)

    @attack(f"E55-read-from-the-pipe-{_name!a}")
    def _(where: dict[str, Any], name: str = _name) -> str:
        return tried(lambda: os.close(os.open(where["pipes"][name], os.O_RDONLY | os.O_NONBLOCK)))


@attack("E55-take-the-cover-off-a-pipe")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.unlink(where["pipes"]["ro/pipe"]))


# ---- system calls

_SIMPLE: dict[str, tuple[str, tuple[Any, ...]]] = {
    "E24-mount": ("mount", (b"none", b"/tmp", b"tmpfs", 0, 0)),
    "E24-remount-root": ("mount", (b"none", b"/", b"", 0x20 | 0x1000, 0)),
    "E24-bind-mount": ("mount", (b"/usr", b"/tmp", b"", 0x1000, 0)),
    "E24-umount-proc": ("umount2", (b"/proc", 2)),
    "E24-pivot-root": ("pivot_root", (b"/tmp", b"/tmp")),
    "E24-chroot": ("chroot", (b"/tmp",)),
    "E25-fsopen": ("fsopen", (b"tmpfs", 0)),
    "E25-fsconfig": ("fsconfig", (-1, 6, 0, 0, 0)),
    "E25-fsmount": ("fsmount", (-1, 0, 0)),
    "E25-fspick": ("fspick", (AT_FDCWD, b"/", 0)),
    "E25-open-tree": ("open_tree", (AT_FDCWD, b"/", 1)),
    "E25-open-tree-attr": ("open_tree_attr", (AT_FDCWD, b"/", 1, 0, 0)),
    "E25-move-mount": ("move_mount", (-1, b"", -1, b"", 4)),
    "E25-mount-setattr": ("mount_setattr", (AT_FDCWD, b"/", 0, 0, 0)),
    "E26-unshare-user": ("unshare", (0x10000000,)),
    "E26-unshare-mount": ("unshare", (0x00020000,)),
    "E26-unshare-net": ("unshare", (0x40000000,)),
    "E26-unshare-pid": ("unshare", (0x20000000,)),
    "E26-unshare-time": ("unshare", (0x00000080,)),
    "E26-unshare-nothing": ("unshare", (0,)),
    "E27-clone3": ("clone3", (0, 0)),
    "E27-openat2": ("openat2", (AT_FDCWD, b"/tmp", 0, 0)),
    "E30-process-vm-readv": ("process_vm_readv", (1, 0, 0, 0, 0, 0)),
    "E30-process-vm-writev": ("process_vm_writev", (1, 0, 0, 0, 0, 0)),
    "E30-kcmp": ("kcmp", (1, 1, 0, 0, 0)),
    "E31-bpf": ("bpf", (0, 0, 0)),
    "E31-userfaultfd": ("userfaultfd", (0,)),
    "E31-perf-event-open": ("perf_event_open", (0, 0, -1, -1, 0)),
    "E31-process-madvise": ("process_madvise", (-1, 0, 0, 0, 0)),
    "E32-io-uring-setup": ("io_uring_setup", (1, 0)),
    "E32-io-uring-enter": ("io_uring_enter", (-1, 0, 0, 0, 0)),
    "E32-io-uring-register": ("io_uring_register", (-1, 0, 0, 0)),
    "E33-keyctl": ("keyctl", (0, -3, 0, 0, 0)),
    "E33-add-key": ("add_key", (b"user", b"x", b"y", 1, -3)),
    "E33-request-key": ("request_key", (b"user", b"x", 0, 0)),
    "E34-open-by-handle-at": ("open_by_handle_at", (AT_FDCWD, 0, 0)),
    "E34-name-to-handle-at": ("name_to_handle_at", (AT_FDCWD, b"/", 0, 0, 0)),
    "E34-fanotify-init": ("fanotify_init", (0, 0)),
    "E34-fanotify-mark": ("fanotify_mark", (-1, 0, 0, -1, 0)),
    "E39-init-module": ("init_module", (0, 0, b"")),
    "E39-finit-module": ("finit_module", (-1, b"", 0)),
    "E39-delete-module": ("delete_module", (b"none", 0)),
    "E39-kexec-load": ("kexec_load", (0, 0, 0, 0)),
    "E39-kexec-file-load": ("kexec_file_load", (-1, -1, 0, 0, 0)),
    "E39-reboot": ("reboot", (0, 0, 0, 0)),
    "E39-swapon": ("swapon", (b"/tmp/none", 0)),
    "E39-swapoff": ("swapoff", (b"/tmp/none",)),
    "E39-sethostname": ("sethostname", (b"x", 1)),
    "E39-setdomainname": ("setdomainname", (b"x", 1)),
    "E39-settimeofday": ("settimeofday", (0, 0)),
    "E39-clock-settime": ("clock_settime", (0, 0)),
    "E39-clock-adjtime": ("clock_adjtime", (0, 0)),
    "E39-adjtimex": ("adjtimex", (0,)),
    "E39-acct": ("acct", (0,)),
    "E39-quotactl": ("quotactl", (0, 0, 0, 0)),
    "E39-quotactl-fd": ("quotactl_fd", (-1, 0, 0, 0)),
    "E39-iopl": ("iopl", (3,)),
    "E39-ioperm": ("ioperm", (0, 1, 1)),
    "E39-modify-ldt": ("modify_ldt", (0, 0, 0)),
    "E39-vhangup": ("vhangup", ()),
    "E39-lookup-dcookie": ("lookup_dcookie", (0, 0, 0)),
    "E39-nfsservctl": ("nfsservctl", (0, 0, 0)),
    "E39-mbind": ("mbind", (0, 0, 0, 0, 0, 0)),
    "E39-set-mempolicy": ("set_mempolicy", (0, 0, 0)),
    "E39-get-mempolicy": ("get_mempolicy", (0, 0, 0, 0, 0)),
    "E39-migrate-pages": ("migrate_pages", (0, 0, 0, 0)),
    "E39-move-pages": ("move_pages", (0, 0, 0, 0, 0, 0)),
    "E39-set-mempolicy-home-node": ("set_mempolicy_home_node", (0, 0, 0, 0)),
    "E39-memfd-secret": ("memfd_secret", (0,)),
    "E38-personality-no-randomisation": ("personality", (0x0040000,)),
    "E38-personality-read-implies-exec": ("personality", (0x0400000,)),
    "E38-personality-mmap-page-zero": ("personality", (0x0100000,)),
    "E38-personality-compat-layout": ("personality", (0x0200000,)),
    "E38-personality-hidden-behind-an-upper-bit": ("personality", (0x100400000,)),
    "E38-personality-query": ("personality", (0xFFFFFFFF,)),
}
for _id, (_name, _args) in _SIMPLE.items():

    @attack(_id)
    def _(where: dict[str, Any], name: str = _name, args: tuple[Any, ...] = _args) -> str:
        return call(name, *args)


for _label, _flag in {
    "user": 0x10000000, "mount": 0x00020000, "net": 0x40000000, "pid": 0x20000000,
    "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000,
}.items():  # fmt: skip

    @attack(f"E26-clone-new-{_label}")
    def _(where: dict[str, Any], flag: int = _flag) -> str:
        return call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)


@attack("E28-setns-to-pid-1")
def _(where: dict[str, Any]) -> str:
    fd = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    return call("setns", fd, 0)


@attack("E28-setns-by-pidfd")
def _(where: dict[str, Any]) -> str:
    return call("setns", os.pidfd_open(1), 0x00020000)


@attack("E29-setuid-0")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.setuid(0))


@attack("E29-setgid-0")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.setgid(0))


@attack("E29-setgroups")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.setgroups([0]))


@attack("E30-pidfd-getfd")
def _(where: dict[str, Any]) -> str:
    return call("pidfd_getfd", os.pidfd_open(1), 0, 0)


for _label, _request in {"attach": 16, "seize": 0x4206}.items():

    @attack(f"E30-ptrace-{_label}")
    def _(where: dict[str, Any], request: int = _request) -> str:
        def run() -> int:
            if call("ptrace", request, 1, 0, 0) != "allowed":
                return 1
            if request == 16:  # an attached process stops; let it go, or the cage never ends
                os.waitpid(1, 0x40000000)
                call("ptrace", 17, 1, 0, 0)
            return 0

        return in_child(run)


@attack("E30-ptrace-traceme")
def _(where: dict[str, Any]) -> str:
    return in_child(lambda: 0 if call("ptrace", 0, 0, 0, 0) == "allowed" else 1)


for _label, _request in {
    "tiocsti": 0x5412, "tiocsti-with-an-upper-bit": 0x100005412, "tioclinux": 0x541C,
    "tiocsetd": 0x5423, "tiocsetd-with-an-upper-bit": 0xFF00000000005423,
}.items():  # fmt: skip

    @attack(f"E35-{_label}")
    def _(where: dict[str, Any], request: int = _request) -> str:
        return call("ioctl", 0, request, ctypes.create_string_buffer(b"x"))


@attack("E36-a-32-bit-system-call")
def _(where: dict[str, Any]) -> str:
    if MACHINE != "x86_64":
        return "absent"

    def run() -> int:
        # mov eax, 20 (getpid); int 0x80; ret
        code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
        area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        area.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(area))
        return 0 if ctypes.CFUNCTYPE(ctypes.c_int)(address)() > 0 else 1

    return in_child(run)


@attack("E36-an-x32-system-call")
def _(where: dict[str, Any]) -> str:
    if MACHINE != "x86_64":
        return "absent"
    return in_child(lambda: 0 if LIBC.syscall(ctypes.c_long(0x40000000 + 39)) > 0 else 1)


for _number in (467, 470, 500, 1000, 0x3FFFFFFF):

    @attack(f"E37-system-call-{_number}")
    def _(where: dict[str, Any], number: int = _number) -> str:
        ctypes.set_errno(0)
        result = LIBC.syscall(ctypes.c_long(number), 0, 0, 0, 0, 0, 0)
        return word(ctypes.get_errno()) if result == -1 else "allowed"


# ---- sockets

for _label, _family in {
    "unix": 1, "ax25": 3, "ipx": 4, "x25": 9, "key": 15, "packet": 17, "rds": 21, "can": 29,
    "tipc": 30, "bluetooth": 31, "alg": 38, "nfc": 39, "vsock": 40, "kcm": 41, "qipcrtr": 42,
    "smc": 43, "xdp": 44, "mctp": 45,
}.items():  # fmt: skip

    @attack(f"E40-socket-{_label}")
    def _(where: dict[str, Any], family: int = _family) -> str:
        return tried(lambda: socket.socket(family, socket.SOCK_DGRAM, 0).close())


@attack("E40-socket-unix-hidden-behind-an-upper-bit")
def _(where: dict[str, Any]) -> str:
    number = 41 if MACHINE == "x86_64" else 198
    ctypes.set_errno(0)
    result = LIBC.syscall(
        ctypes.c_long(number), ctypes.c_ulong(0x100000001), ctypes.c_ulong(1), ctypes.c_ulong(0)
    )
    return word(ctypes.get_errno()) if result == -1 else "allowed"


@attack("E41-raw-icmp")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close())


@attack("E41-raw-ip")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255).close())


@attack("E41-ping")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1).close())


for _label, _protocol in {"sctp": 132, "dccp": 33, "udplite": 136, "mptcp": 262}.items():

    @attack(f"E41-{_label}")
    def _(where: dict[str, Any], protocol: int = _protocol) -> str:
        kind = socket.SOCK_DGRAM if protocol == 136 else socket.SOCK_STREAM
        return tried(lambda: socket.socket(socket.AF_INET, kind, protocol).close())


for _label, _protocol in {
    "audit": 9, "netfilter": 12, "uevent": 15, "generic": 16, "sock-diag": 4, "xfrm": 6,
    "connector": 11, "selinux": 7, "crypto": 21,
}.items():  # fmt: skip

    @attack(f"E42-netlink-{_label}")
    def _(where: dict[str, Any], protocol: int = _protocol) -> str:
        return tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol).close())


@attack("E42-netlink-route-changes-the-network")
def _(where: dict[str, Any]) -> str:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as channel:
        # RTM_NEWLINK for lo with IFF_UP cleared
        body = struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1)
        channel.send(struct.pack("=IHHII", 16 + len(body), 16, 5, 1, 0) + body)
        code = struct.unpack("=i", channel.recv(4096)[16:20])[0]
    return word(-code) if code else "allowed"


@attack("E43-an-abstract-socket-of-the-host")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: socket.socket(socket.AF_UNIX).connect("\0" + where["abstract"]))


# ---- set-id files

for _mode in (0o4755, 0o2755, 0o6755):
    for _name in ("chmod", "fchmod", "fchmodat", "fchmodat2", "creat", "open", "openat", "mknod",
                  "mknodat", "openat-tmpfile"):  # fmt: skip

        @attack(f"E44-{_name}-{_mode:o}")
        def _(where: dict[str, Any], name: str = _name, mode: int = _mode) -> str:
            path = f"{where['rw']}/setid".encode()
            target = f"{where['rw']}/file".encode()
            fd = os.open(target, os.O_RDONLY)
            try:
                result = {
                    "chmod": lambda: call("chmod", target, mode),
                    "fchmod": lambda: call("fchmod", fd, mode),
                    "fchmodat": lambda: call("fchmodat", AT_FDCWD, target, mode),
                    "fchmodat2": lambda: call("fchmodat2", AT_FDCWD, target, mode, 0),
                    "creat": lambda: call("creat", path, mode),
                    "open": lambda: call("open", path, os.O_CREAT | os.O_WRONLY, mode),
                    "openat": lambda: call(
                        "openat", AT_FDCWD, path, os.O_CREAT | os.O_WRONLY, mode
                    ),
                    "mknod": lambda: call("mknod", path, 0o100000 | mode, 0),
                    "mknodat": lambda: call("mknodat", AT_FDCWD, path, 0o100000 | mode, 0),
                    "openat-tmpfile": lambda: call(
                        "openat", AT_FDCWD, where["rw"].encode(), os.O_TMPFILE | os.O_RDWR, mode
                    ),
                }[name]()
            finally:
                os.close(fd)
            if os.stat(target).st_mode & 0o6000 or os.path.exists(path):
                return f"allowed: {oct(os.stat(target).st_mode)}"
            return result


@attack("E44-file-capabilities")
def _(where: dict[str, Any]) -> str:
    value = struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0)
    return tried(lambda: os.setxattr(f"{where['rw']}/file", "security.capability", value))


@attack("E44-chown-to-another-user")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.chown(f"{where['rw']}/file", 0, 0))


# ---- resources


@attack("E54-lower-the-nice-value")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))


@attack("E54-real-time-scheduling")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10)))


for _label in ("NOFILE", "FSIZE", "CORE", "MEMLOCK", "RTPRIO"):

    @attack(f"E54-raise-rlimit-{_label.lower()}")
    def _(where: dict[str, Any], label: str = _label) -> str:
        what = getattr(resource, f"RLIMIT_{label}")
        _, hard = resource.getrlimit(what)
        try:
            resource.setrlimit(what, (hard + 1, hard + 1))
        except (ValueError, OSError):
            return "refused"
        return "allowed"


@attack("E54-lock-64-MiB")
def _(where: dict[str, Any]) -> str:
    area = mmap.mmap(-1, 64 * 1024 * 1024)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area)))
    ctypes.set_errno(0)
    result = LIBC.mlock(address, ctypes.c_size_t(64 * 1024 * 1024))
    return word(ctypes.get_errno()) if result else "allowed"


@attack("X-hoard-inotify-instances")
def _(where: dict[str, Any]) -> str:
    held: list[int] = []
    while len(held) < 1000:
        fd = LIBC.inotify_init1(0)
        if fd < 0:
            break
        held.append(fd)
    for fd in held:
        os.close(fd)
    return "few" if len(held) <= 8 else f"allowed: {len(held)}"


@attack("X-hoard-descriptors")
def _(where: dict[str, Any]) -> str:
    held: list[int] = []
    try:
        while len(held) < 5000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        return word(error.errno or 0)
    finally:
        for fd in held:
            os.close(fd)
    return "allowed"


@attack("X-write-a-file-past-its-limit")
def _(where: dict[str, Any]) -> str:
    def run() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with open(f"{where['rw']}/big", "wb") as file:
            try:
                os.truncate(file.fileno(), 1 << 40)
            except OSError as error:
                return 0 if error.errno == errno.EFBIG else 2
            return 1

    result = in_child(run)
    with contextlib.suppress(OSError):
        os.unlink(f"{where['rw']}/big")
    return "EFBIG" if result == "exit 0" else f"allowed: {result}"


# ---- what can be learned about the host


@attack("X-host-name")
def _(where: dict[str, Any]) -> str:
    name = os.uname().nodename
    return "cage" if name == "cage" else f"allowed: {name}"


@attack("X-network-interfaces")
def _(where: dict[str, Any]) -> str:
    found = [name for _, name in socket.if_nameindex()]
    return "lo" if found == ["lo"] else f"allowed: {found}"


@attack("X-shared-memory-of-the-host")
def _(where: dict[str, Any]) -> str:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    return "own" if len(lines) == 1 else f"allowed: {len(lines)}"


@attack("X-open-the-controlling-terminal")
def _(where: dict[str, Any]) -> str:
    return tried(lambda: os.close(os.open("/dev/tty", os.O_RDWR)))


@attack("X-host-paths-in-the-mount-table")
def _(where: dict[str, Any]) -> str:
    text = Path("/proc/self/mountinfo").read_text()
    return "nothing" if "oldroot" not in text and where["secret"] not in text else "allowed"


@attack("X-raise-a-namespace-ceiling")
def _(where: dict[str, Any]) -> str:
    return write_open("/proc/sys/user/max_inotify_instances")


@attack("X-leave-by-the-root-of-another-process")
def _(where: dict[str, Any]) -> str:
    fd = os.open("/proc/1/root", os.O_PATH)
    try:
        return tried(lambda: os.close(os.open(where["secret"].lstrip("/"), os.O_RDONLY, dir_fd=fd)))
    finally:
        os.close(fd)


@attack("X-steal-a-lock-on-a-granted-file")
def _(where: dict[str, Any]) -> str:
    with open(f"{where['ro']}/file", "rb") as file:
        return tried(lambda: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB))


def main() -> None:
    """Run the attempts named in standard input's JSON, all by default."""
    start = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
    where = json.load(sys.stdin)
    where["descriptors_at_start"] = "0, 1, 2" if start == [0, 1, 2] else f"allowed: {start}"
    table: dict[str, str] = {}
    for name, function in ATTACKS.items():
        try:
            table[name] = function(where)
        except Exception as error:  # noqa: BLE001 - an attempt that breaks is a result too
            table[name] = f"broken: {error!r}"
    json.dump(table, sys.stdout)


if __name__ == "__main__":
    main()
