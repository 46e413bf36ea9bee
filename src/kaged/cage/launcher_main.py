"""The launchers' own program: one thread, standard library only, a fork per start.

Started by `kaged.cage.launchers`. Standard input is the daemon's wish for so many launchers. Each
is forked ahead of time as a child of the *daemon* and waits on a socket of its own for one order:
the words and descriptors of one cage. It enters the cage's groups, becomes its user, and then
becomes bwrap. It serves once; it ends without an order when the daemon does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
from typing import Any, NoReturn

MAX_ORDER_BYTES = 64 * 1024
MAX_DESCRIPTORS = 100
MAX_REQUEST = 8
# Where bwrap finds the descriptors of its order: out of the way of those a launcher has itself.
FIRST_DESCRIPTOR = 128
EXIT_NOT_STARTED = 126
NOT_STARTED = "the launcher could not become bwrap"
_STDIO = 3
_UMASK = 0o022
_CLONE_PARENT = 0x8000
_PR_SET_PDEATHSIG = 1
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}


def main() -> int:
    """Fork as many launchers as the daemon asks for, until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the daemon
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock, which a fork must not find let go
    requests = socket.socket(fileno=0)
    gc.disable()  # a launcher lives for one order; collecting would only copy shared pages
    gc.freeze()
    while request := requests.recv(16):
        for _ in range(min(int(request), MAX_REQUEST)):
            if not _add_launcher(libc, requests):
                return 1
    return 0


def _add_launcher(libc: Any, requests: socket.socket) -> bool:
    """Fork one launcher and give the daemon its number and its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A sister and no child: bwrap must end with the daemon's thread, and be reaped by the daemon.
    pid = libc.syscall(_SYS_CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        _wait_for_order(libc, theirs)
    theirs.close()
    if pid > 0:
        ours.recv(1)  # it is ready, or it is gone and the daemon will find that out
        socket.send_fds(requests, [str(pid).encode()], [ours.fileno()])
    ours.close()
    return bool(pid > 0)


def _wait_for_order(libc: Any, orders: socket.socket) -> NoReturn:
    try:
        _end_with_the_daemon(libc)
        os.dup2(orders.detach(), _STDIO)
        # Above all the daemon's end of `orders`: it must not stay open here when the daemon ends.
        os.closerange(_STDIO + 1, FIRST_DESCRIPTOR)  # the helper has a handful
        os.dup2(1, 0)
        os.setsid()
        os.umask(_UMASK)
        orders = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, _STDIO)
        _rehearse()
        orders.send(b"r")
        order, descriptors, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, MAX_DESCRIPTORS)
        if order:
            _become_bwrap(libc, order, descriptors)
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever it was
        with contextlib.suppress(OSError):
            os.write(2, f"{NOT_STARTED}: {error}".encode(errors="replace"))
    os._exit(EXIT_NOT_STARTED)


def _end_with_the_daemon(libc: Any) -> None:
    """Let the kernel end it: a stopped process would not notice that its socket ended."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _rehearse() -> None:
    """Touch what an order will touch, so that its pages are there when it counts."""
    head, words = b'{"groups": [], "become": [0, 0]}\n-\0-'.split(b"\n", 1)
    json.loads(head)
    words.split(b"\0")
    os.close(os.dup2(0, FIRST_DESCRIPTOR))
    os.close(os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC))


def _become_bwrap(libc: Any, order: bytes, descriptors: list[int]) -> NoReturn:
    head, words = order.split(b"\n", 1)
    wanted = json.loads(head)
    for number, fd in enumerate(descriptors):
        os.dup2(fd, number if number < _STDIO else FIRST_DESCRIPTOR + number - _STDIO)
    os.closerange(_STDIO, FIRST_DESCRIPTOR)
    for group in wanted["groups"]:
        # Itself: a thread that moves itself needs no lock.
        fd = os.open(group, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)
    if wanted["become"] is not None:
        uid, gid = wanted["become"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _end_with_the_daemon(libc)  # becoming another user has undone it
    for ignored in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # here, and not in a cage
        signal.signal(ignored, signal.SIG_DFL)
    argv = words.split(b"\0")
    os.execve(argv[0], argv, {})  # noqa: S606, TID251 - the cage itself; compiled and checked by the daemon


if __name__ == "__main__":
    sys.exit(main())
