"""The namespace helper's own program: opens sockets where a cage lives.

Run as a script by `kaged.cage.net.namespace`, never imported by the daemon. It uses the standard
library only and stays a process of one thread, because the kernel lets only such a process enter
a user namespace. It decides nothing: the daemon sends netlink messages and socket addresses as
data, and this program carries them out inside the namespace whose descriptor came along.

Entering a user namespace cannot be undone, so every request is served by a fresh fork. Forks are
made ahead of time and wait at the control socket. When the daemon is gone the socket ends, and so
do they.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import json
import os
import signal
import socket
import struct
import sys

SPARE_WORKERS = 2
REQUEST_BYTES = 256 * 1024
FDS_PER_MESSAGE = 200
REQUEST_S = 10
EXIT_DAEMON_GONE = 7

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_NS_GET_USERNS = 0xB701
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1
_RTMGRP_LINK = 0x1
_IP_TRANSPARENT = 19
_IP_FREEBIND = 15
_IPV6_FREEBIND = 78
_IPV6_TRANSPARENT = 75
_NLMSG_ERROR = 2


class StepFailed(Exception):
    """One step of a request failed; the daemon is told which and why."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(step, error)
        self.step = step
        self.error = error


def serve(control: socket.socket) -> int:
    """Keep spare workers waiting until the daemon is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    gc.disable()  # a worker lives for one request; collecting would only copy shared pages
    gc.freeze()
    workers = set[int]()
    while True:
        while len(workers) < SPARE_WORKERS:
            pid = os.fork()  # noqa: TID251 - a worker of the cage itself; it runs no program
            if pid == 0:
                work(control, libc)
            workers.add(pid)
        pid, status = os.wait()
        workers.discard(pid)
        if os.waitstatus_to_exitcode(status) == EXIT_DAEMON_GONE:
            return 0


def work(control: socket.socket, libc: ctypes.CDLL) -> None:
    """Take one request, serve it, and end this process."""
    rehearse(libc)
    data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
    if not data:
        os._exit(EXIT_DAEMON_GONE)
    signal.alarm(REQUEST_S)  # a request that hangs ends its worker, and the daemon sees the end
    reply = socket.socket(fileno=fds[0])
    try:
        request = json.loads(data)
        enter(libc, fds[1])
        opened = carry_out(request)
        answer(reply, opened)
    except StepFailed as failed:
        reply.send(
            json.dumps(
                {"ok": False, "step": failed.step, "errno": failed.error.errno or 0}
            ).encode()
        )
    os._exit(0)


def rehearse(libc: ctypes.CDLL) -> None:
    """Run each step once ahead of time, so that a waiting cage does not pay for first times.

    A fresh fork shares its memory with its parent until it writes; this writes now.
    """
    libc.setns(-1, 0)
    json.loads('{"netlink": [], "sockets": [], "dial": []}')
    talk(0).close()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    loopback_is_up()
    json.dumps({"ok": True, "sockets": 0})


def enter(libc: ctypes.CDLL, net_fd: int) -> None:
    """Join the network namespace, through the user namespace that owns it."""
    own = os.stat("/proc/self/ns/net")  # noqa: PTH116 - pathlib is not worth importing here
    there = os.fstat(net_fd)
    if (own.st_dev, own.st_ino) == (there.st_dev, there.st_ino):
        raise StepFailed("namespace", OSError(errno.EINVAL, "that is the daemon's own network"))
    try:
        owner_fd = fcntl.ioctl(net_fd, _NS_GET_USERNS)
    except OSError as error:
        raise StepFailed("owner", error) from error
    # Root may enter the network namespace straight away. Anyone else, and a root without the
    # power to, gets that power, and the power to bind and route in there, by joining its owner.
    if os.geteuid() == 0 and libc.setns(net_fd, _CLONE_NEWNET) == 0:
        return
    if libc.setns(owner_fd, _CLONE_NEWUSER):
        raise StepFailed("user_namespace", OSError(ctypes.get_errno(), "setns"))
    if libc.setns(net_fd, _CLONE_NEWNET):
        raise StepFailed("net_namespace", OSError(ctypes.get_errno(), "setns"))


def carry_out(request: dict[str, list[list[object]]]) -> list[socket.socket]:
    """Do what a request lists: netlink messages first, then sockets, then test connections."""
    talkers = dict[int, socket.socket]()
    if not loopback_is_up():
        # Not only for the routes: a UDP socket that is bound before would answer from 127.0.0.1,
        # whatever its address, because the kernel cannot tell yet that the address is local.
        await_loopback()
    for step, protocol, payload, acks in request["netlink"]:
        try:
            talker = talkers.get(int(str(protocol))) or talk(int(str(protocol)))
            talkers[int(str(protocol))] = talker
            say(talker, bytes.fromhex(str(payload)), int(str(acks)))
        except OSError as error:
            raise StepFailed(str(step), error) from error
    opened = list[socket.socket]()
    for kind, address, port, transparent, backlog in request["sockets"]:
        try:
            opened.append(
                listen(
                    str(kind), str(address), int(str(port)), bool(transparent), int(str(backlog))
                )
            )
        except OSError as error:
            raise StepFailed(f"{kind} {address} {port}", error) from error
    for address, port in request["dial"]:
        try:
            opened.append(socket.create_connection((str(address), int(str(port))), timeout=2))
        except OSError as error:
            raise StepFailed("dial", error) from error
    return opened


def await_loopback() -> None:
    """Wait until the sandbox tool has brought lo up; doing it ourselves would make it fail."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as watch:
            watch.bind((0, _RTMGRP_LINK))
            watch.settimeout(REQUEST_S / 2)
            while not loopback_is_up():
                watch.recv(65536)
    except OSError as error:
        raise StepFailed("loopback", error) from error


def loopback_is_up() -> bool:
    """Return whether lo is up in this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer_ = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0))
        return bool(struct.unpack_from("16xH", answer_)[0] & _IFF_UP)


def talk(protocol: int) -> socket.socket:
    """Open a netlink socket that does not wait for ever."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
    sock.bind((0, 0))
    sock.settimeout(REQUEST_S / 2)
    return sock


def say(sock: socket.socket, payload: bytes, acks: int) -> None:
    """Send netlink messages and read their acknowledgements; raises the first refusal."""
    sock.send(payload)
    while acks > 0:
        data = sock.recv(65536)
        at = 0
        while at + 20 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind == _NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", data, at + 16)
                if code:
                    raise OSError(-code, os.strerror(-code))
                acks -= 1
            at += max((length + 3) & ~3, 16)


def listen(kind: str, address: str, port: int, transparent: bool, backlog: int) -> socket.socket:
    """Open one socket, also on an address that only a route makes local."""
    ipv6 = ":" in address
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    if ipv6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    if transparent:
        level, option = (
            (socket.IPPROTO_IPV6, _IPV6_TRANSPARENT)
            if ipv6
            else (socket.IPPROTO_IP, _IP_TRANSPARENT)
        )
        sock.setsockopt(level, option, 1)
    if kind == "tcp":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    if kind == "tcp":
        sock.listen(backlog)
    return sock


def answer(reply: socket.socket, opened: list[socket.socket]) -> None:
    """Send the sockets back, then the word that these were all."""
    for start in range(0, len(opened), FDS_PER_MESSAGE):
        some = opened[start : start + FDS_PER_MESSAGE]
        socket.send_fds(reply, [b"+"], [sock.fileno() for sock in some])
    reply.send(json.dumps({"ok": True, "sockets": len(opened)}).encode())


def main() -> int:
    """Serve the control socket whose descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which then ends us
    return serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(main())
