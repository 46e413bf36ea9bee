"""The setup helper's own program: one thread, standard library only, a fork per setup task.

Started by `kaged.cage.setup_helper`. Standard input is the register: which cages are the daemon's.
When it ends, the daemon is gone, and its cages are killed; so is whoever carries the mark in the
second argument: cages on their way, which nobody has registered yet, and programs that the daemon
(the third argument) ran without a cage.

The descriptor in the first argument brings setup tasks to workers, which are forked ahead of time.
A setup task names a waiting cage; its worker puts it into its groups, sets its limits under the
cage's own uid, joins its user namespace and lowers the ceilings there. Whoever has joined a
namespace cannot come back, so a worker serves once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

MAX_MESSAGE_BYTES = 64 * 1024
SPARE_WORKERS = 2
DEATH_MS = 5000  # a dying process closes its descriptors a moment before it is gone
MARK_ROUNDS = 200
# A program that was being started shows its mark only when it runs; so many looks find nobody then.
QUIET_ROUNDS = 5
QUIET_S, KILLED_S = 0.2, 0.02
KILLED_MS = 1000
MARK = "KAGED_STARTED_FOR"
"""The variable of a program without a cage: the daemon's mark, a colon, and on whose account."""
CAGE_MARK = "kaged-cage-"
"""What the name of a pipe that a cage waits at begins with; the daemon's mark comes next."""
_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNS = 0x20000
# The same numbers on every architecture; the C library has no names for them yet everywhere.
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_OPEN_TREE_CLONE, _AT_SYMLINK_NOFOLLOW, _FROM_EMPTY_PATH = 1, 0x100, 4
_AT_FDCWD = -100
MOUNTED_S, MOUNTED_EVERY_S = 8.0, 0.001
# The host may forbid writing here altogether; that is its own row in `kaged doctor`.
_FORBIDDEN = frozenset({errno.EROFS, errno.EACCES, errno.ENOENT, errno.EPERM})


def main() -> int:
    """Keep workers ready and the register current until the daemon hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the daemon
    libc = ctypes.CDLL(None, use_errno=True)
    daemon = _watch(int(sys.argv[3]))
    register, setup_tasks = socket.socket(fileno=0), socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a worker lives for one setup task; collecting would only copy shared pages
    gc.freeze()
    workers: dict[int, int] = {}  # pidfd to pid
    cages: dict[int, int] = {}  # number to pidfd
    while True:
        while len(workers) < SPARE_WORKERS:
            pid = os.fork()  # noqa: TID251 - a worker of the cage itself; it runs no program
            if pid == 0:
                register.close()  # or it would not end for the daemon when this process does
                _work(libc, setup_tasks)
            workers[os.pidfd_open(pid)] = pid
        events = select.poll()  # unlike select, it takes descriptors of any number
        for one in (register.fileno(), *workers):
            events.register(one, select.POLLIN)
        for one, _ in events.poll():
            if one in workers:
                os.waitpid(workers.pop(one), 0)
                os.close(one)
            elif not _note(register, cages):
                _kill(cages)
                _end_marked(daemon, sys.argv[2])
                return 0


def _note(register: socket.socket, cages: dict[int, int]) -> bool:
    """Take one line of the register; False when the daemon is gone."""
    try:
        message = register.recv(MAX_MESSAGE_BYTES)
    except OSError:
        message = b""
    if not message:
        return False
    line = json.loads(message)
    if "pid" in line:
        # bwrap's own tie to the daemon begins only when the cage is released; this one begins now.
        with contextlib.suppress(OSError):
            cages[line["number"]] = os.pidfd_open(line["pid"])
    elif line["number"] in cages:
        os.close(cages.pop(line["number"]))
    return True


def _kill(cages: dict[int, int]) -> None:
    for cage in cages.values():
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(cage, signal.SIGKILL)


def _watch(daemon: int) -> int | None:
    """Return a descriptor of the daemon; None when it was killed before this process began."""
    with contextlib.suppress(ProcessLookupError):
        found = os.pidfd_open(daemon)
        if os.getppid() == daemon:
            return found
        os.close(found)
    return None


def _end_marked(daemon: int | None, mark: str) -> None:
    """Kill what carries the mark of the daemon, once that is gone for sure."""
    gone = select.poll()
    if daemon is not None:
        gone.register(daemon, select.POLLIN)
    if daemon is not None and not gone.poll(DEATH_MS):
        return  # it only hung up on this helper, and looks after its programs itself
    quiet = 0
    for _ in range(MARK_ROUNDS):
        pids = [entry.name for entry in os.scandir("/proc") if entry.name.isdigit()]
        found = [pid for pid in pids if mark in marks_of(pid)]
        for pid in found:
            kill_marked(pid, mark)
        quiet = 0 if found else quiet + 1
        if quiet == QUIET_ROUNDS:
            return
        time.sleep(KILLED_S if found else QUIET_S)


def kill_marked(pid: str, mark: str) -> bool:
    """Kill a process if it carries a mark, and wait a moment for its end; whether it did."""
    try:
        one = os.pidfd_open(int(pid))
    except OSError:
        return False
    try:
        if mark not in marks_of(pid):  # the number was given to another meanwhile
            return False
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(one, signal.SIGKILL)
        ended = select.poll()
        ended.register(one, select.POLLIN)
        ended.poll(KILLED_MS)
    finally:
        os.close(one)
    return True


def marks_of(pid: str) -> set[str]:
    """Return the marks of the daemons that a process was started by; none if it cannot be seen.

    A cage's bwrap has an empty environment, because its guest can read that. Until it is released,
    it has the pipe that it waits at, and closes that before the guest's command begins.
    """
    found: set[str] = set()
    with contextlib.suppress(OSError):  # it is gone, or somebody else's
        for one in _words(f"/proc/{pid}/environ"):
            name, _, value = one.partition(b"=")
            if name == MARK.encode():
                found.add(value.partition(b":")[0].decode(errors="replace"))
        if b"--args" in _words(f"/proc/{pid}/cmdline"):
            folder = f"/proc/{pid}/fd"
            for fd in os.listdir(folder):  # noqa: PTH208 - as everywhere in this file
                name = os.readlink(f"{folder}/{fd}").rpartition("/")[2]  # noqa: PTH115 - see above
                if name.startswith(CAGE_MARK):
                    found.add(name.removeprefix(CAGE_MARK).partition("-")[0])
    return found


def _words(path: str) -> list[bytes]:
    # Plain strings: the daemon asks this of every process of the host before it is ready.
    with open(path, "rb") as file:  # noqa: PTH123 - see above
        return file.read().split(b"\0")


def _work(libc: Any, setup_tasks: socket.socket) -> NoReturn:
    _rehearse()
    message = setup_tasks.recv(MAX_MESSAGE_BYTES)
    if message:
        setup_tasks.send(json.dumps(_run(libc, json.loads(message))).encode())
    os._exit(0)


def _rehearse() -> None:
    """Touch what a setup task will touch, so that its pages are there when it counts."""
    json.loads(json.dumps({"number": 0, "rlimits": [[0, 0]]}))
    resource.prlimit(0, resource.RLIMIT_NOFILE)
    os.close(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))


def _run(libc: Any, setup_task: dict[str, Any]) -> dict[str, Any]:
    number = setup_task["number"]
    try:
        user_namespace = _namespace_of(setup_task["pid"])
        links = setup_task["links"]
        cage = _Cage.open(setup_task["pid"]) if links else None
        for group in setup_task["groups"]:
            _write(group, setup_task["pid"])
        _set_limits(setup_task)
        ceilings = _set_ceilings(libc, user_namespace, setup_task["ceilings"])
        covered = cage is None or _cover(libc, user_namespace, cage, links)
    except OSError as error:
        return {"number": number, "error": str(error), "ended": _has_ended(setup_task["pid"])}
    return {"number": number, "ceilings": ceilings, "covered": covered}


def _has_ended(pid: int) -> bool:
    """Return whether a process is gone, or is dead and only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as everywhere in this file
            state = file.read().rpartition(b") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in b"ZX"


def _namespace_of(pid: int) -> int:
    # The owner of the network namespace is the cage's outer user namespace, whichever of its two
    # bwrap has reached by now.
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    return fcntl.ioctl(network, _NS_GET_USERNS)


def _set_limits(setup_task: dict[str, Any]) -> None:
    uid, gid = setup_task["uid"], setup_task["gid"]
    if os.geteuid() == 0 and uid != 0:
        # A root without CAP_SYS_RESOURCE may not set another user's limits; that user may.
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    for what, value in setup_task["rlimits"]:
        _, hard = resource.prlimit(setup_task["pid"], what)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(setup_task["pid"], what, (limit, limit))


def _set_ceilings(libc: Any, user_namespace: int, ceilings: dict[str, int]) -> bool:
    if not ceilings:
        return True
    if libc.setns(user_namespace, _CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the cage's user namespace: {os.strerror(number)}")
    for name, value in ceilings.items():
        try:
            _write(f"/proc/sys/user/{name}", value)
        except OSError as error:
            if error.errno in _FORBIDDEN:
                return False
            raise
    return True


class _Cage:
    """A waiting cage's first process and its mounts, opened before this process joins the cage."""

    def __init__(self, process: int, mounts: int) -> None:
        self.process, self.mounts = process, mounts

    @classmethod
    def open(cls, pid: int) -> _Cage:
        process = os.pidfd_open(pid)
        return cls(process, os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))

    @property
    def has_ended(self) -> bool:
        end = select.poll()
        end.register(self.process, select.POLLIN)
        return bool(end.poll(0))


def _cover(libc: Any, user_namespace: int, cage: _Cage, links: list[Any]) -> bool:
    """Mount links over files of the cage; False where the kernel or the host does not let us.

    The place that a link leads to is there when bwrap has mounted everything, and not before.
    """
    libc.setns(user_namespace, _CLONE_NEWUSER)  # a second time, where there were ceilings
    until = time.monotonic() + MOUNTED_S
    while True:
        if libc.setns(cage.mounts, _CLONE_NEWNS) != 0:
            return False
        if os.path.exists(links[0][-1]):  # noqa: PTH110 - as everywhere in this file
            break
        if cage.has_ended:
            raise OSError(errno.ESRCH, "the cage has ended")
        if time.monotonic() > until:
            return False
        time.sleep(MOUNTED_EVERY_S)
    try:
        return all(_mount_link(libc, number, *one) for number, one in enumerate(links))
    except OSError:
        return False


def _mount_link(
    libc: Any, number: int, folder: str, device: int, inode: int, name: str, target: str
) -> bool:
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    entry = os.fstat(place)
    if (entry.st_dev, entry.st_ino) != (device, inode):
        return False
    link = f"/run/.kaged-link-{number}"
    os.symlink(target, link)  # noqa: PTH211 - as everywhere in this file
    try:
        flags = _OPEN_TREE_CLONE | _AT_SYMLINK_NOFOLLOW | os.O_CLOEXEC
        tree = libc.syscall(_OPEN_TREE, _AT_FDCWD, link.encode(), flags)
        named = os.fsencode(name)
        return tree >= 0 and (
            libc.syscall(_MOVE_MOUNT, tree, b"", place, named, _FROM_EMPTY_PATH) == 0
        )
    finally:
        os.unlink(link)  # noqa: PTH108 - as everywhere; the mount stays


def _write(path: str, value: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main())
