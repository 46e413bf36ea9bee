"""What a program in a gate lab's cage can call; sent in as text, in front of the case's code."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

SAID: dict[str, Any] = {}


def say(key: str, value: Any) -> None:
    """Report something to the test."""
    SAID[key] = value


def attempt(host: str, port: int, send: bytes = b"", *, family: int = 0) -> str:
    """Connect, send, read the first answer; return the answer or the name of the error."""
    try:
        info = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0]
        with socket.socket(info[0], socket.SOCK_STREAM) as sock:
            sock.settimeout(5)
            sock.connect(info[4])
            if send:
                sock.sendall(send)
            return answer(sock)
    except OSError as error:
        return named(error)


def answer(sock: socket.socket, amount: int = 4096) -> str:
    """Read once; `closed` is an end without an answer."""
    data = sock.recv(amount)
    return data.decode("latin-1") if data else "closed"


def named(error: OSError) -> str:
    """Return the name of an error."""
    if isinstance(error, socket.gaierror):
        return "unknown"
    if isinstance(error, TimeoutError) and error.errno is None:
        return "timeout"
    return errno.errorcode.get(error.errno or 0, str(error))


def speak(payload: bytes, *, port: int = 808, end: bool = False) -> str:
    """Send something to the proxy and read everything it answers."""
    got = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(payload)
            if end:
                sock.shutdown(socket.SHUT_WR)
            while True:
                chunk = sock.recv(65536)
                if not chunk:
                    break
                got += chunk
                if b"established" in got or (payload[:1] == b"\x05" and len(got) > 12):
                    break
    except OSError as error:
        return got.decode("latin-1") + named(error)
    return got.decode("latin-1")


def ask_connect(authority: str, rest: bytes = b"") -> str:
    """CONNECT; return the status line, and what follows a success."""
    request = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode("latin-1")
    with socket.create_connection(("127.0.0.1", 808), timeout=5) as sock:
        sock.sendall(request + rest)
        got = b""
        try:
            while b"\r\n\r\n" not in got:
                chunk = sock.recv(1)
                if not chunk:
                    break
                got += chunk
            head = got.split(b"\r\n")[0].decode("latin-1")
            if " 200 " not in head:
                return head
            return head + "|" + answer(sock)
        except OSError as error:
            return named(error)


def ask_socks(address: bytes, port: int, command: int = 1) -> str:
    """SOCKS5; return the reply code, and what follows a success. `address` starts with its type."""
    with socket.create_connection(("127.0.0.1", 808), timeout=5) as sock:
        try:
            sock.sendall(b"\x05\x01\x00")
            if sock.recv(2) != b"\x05\x00":
                return "no welcome"
            sock.sendall(b"\x05" + bytes([command]) + b"\x00" + address + struct.pack(">H", port))
            reply = b""
            while len(reply) < 10:
                chunk = sock.recv(10 - len(reply))
                if not chunk:
                    return "closed"
                reply += chunk
            return f"code {reply[1]}" + ("|" + answer(sock) if reply[1] == 0 else "")
        except OSError as error:
            return named(error)


def socks_name(name: str) -> bytes:
    """Return a SOCKS5 address of the kind "name"."""
    raw = name.encode("latin-1")
    return b"\x03" + bytes([len(raw)]) + raw


def socks_ip(text: str) -> bytes:
    """Return a SOCKS5 address of the kind "address"."""
    if ":" in text:
        return b"\x04" + socket.inet_pton(socket.AF_INET6, text)
    return b"\x01" + socket.inet_pton(socket.AF_INET, text)


def ask_dns(name: str, qtype: int = 1, server: str = "127.0.0.53") -> str:
    """Ask by UDP; return the address, `rcode N`, `empty`, or the name of the error."""
    labels = b"".join(bytes([len(part)]) + part.encode("latin-1") for part in name.split("."))
    packet = (
        struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, qtype, 1)
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(2)
        try:
            sock.connect((server, 53))
            sock.send(packet)
            reply = sock.recv(1500)
        except OSError as error:
            return named(error)
    code, count = reply[3] & 15, struct.unpack(">H", reply[6:8])[0]
    if code:
        return f"rcode {code}"
    return socket.inet_ntoa(reply[-4:]) if count else "empty"


def listening() -> list[str]:
    """List the local addresses and ports that somebody listens on in this namespace."""
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        try:
            rows = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        found += [f"{table}:{int(row.split()[1].rpartition(':')[2], 16)}" for row in rows]
    return sorted(found)


def proxy_variables() -> dict[str, str]:
    """Return every variable whose name speaks of a proxy."""
    return {key: value for key, value in os.environ.items() if "proxy" in key.lower()}


def done() -> None:
    """Send the report."""
    sys.stdout.write(json.dumps(SAID))
