"""A short list of escape attempts that `kaged doctor` runs inside a real cage of this host.

Standard library only; prints one line per attempt, `ok NAME` or `bad NAME WHAT`. The full list is
in the project's security tests; these are the ones whose outcome depends on the host. The first
argument is a JSON list of paths that exist on the host and must not exist here.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER = 0x10000000
# Folders that a cage fills itself; every other one is there only because a mount lies below it.
_OWN = frozenset({"dev", "etc", "proc", "run", "sys", "tmp", "usr", "bin", "sbin"})


def main() -> int:
    """Make every attempt and print how it went."""
    attempts: dict[str, Callable[[], str | None]] = {
        "environment of the daemon": _environment,
        "kernel settings": _settings,
        "processes of the host": _processes,
        "password file": lambda: _reads("/etc/shadow"),
        "folders above what is shown": _ways,
        "files that the host has": _hidden,
        "kernel's device tree": lambda: _lists("/sys"),
        "write the system": lambda: _creates("/usr/kaged-selftest"),
        "write the root": lambda: _creates("/kaged-selftest"),
        "memory device": lambda: _reads("/dev/mem"),
        "keys of the user": lambda: _reads("/proc/keys"),
        "another user namespace": _namespace,
        "new privileges": _privileges,
        "system-call filter": _filter,
        "Unix sockets": lambda: _socket(socket.AF_UNIX),
        "hypervisor sockets": lambda: _socket(40),
        "network interfaces": _interfaces,
        "open descriptors": _descriptors,
    }
    for name, attempt in attempts.items():
        found = attempt()
        sys.stdout.write(f"ok {name}\n" if found is None else f"bad {name}: {found}\n")
    return 0


def _environment() -> str | None:
    return "pid 1 shows variables" if Path("/proc/1/environ").read_bytes() else None


def _settings() -> str | None:
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            try:
                os.close(os.open(f"{folder}/{name}", os.O_WRONLY))
            except OSError:
                continue
            return f"{folder}/{name} can be opened for writing"
    return None


def _processes() -> str | None:
    count = sum(one.name.isdigit() for one in Path("/proc").iterdir())
    return f"{count} are visible" if count > 3 else None


def _reads(path: str) -> str | None:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return None
    return f"{path} can be opened"


def _lists(path: str) -> str | None:
    return f"{path} is visible" if Path(path).exists() else None


def _ways() -> str | None:
    """Look into every folder that leads to a mount: it must be empty but for the way there."""
    mounts = {_unescaped(line.split()[4]) for line in _lines("/proc/self/mountinfo")} - {"/"}
    ways: dict[Path, set[str]] = {}
    for mount in map(Path, sorted(mounts)):
        above = [one for one in mount.parents if str(one) != "/"]
        if mount.parts[1] in _OWN or any(str(one) in mounts for one in above):
            continue
        for below, folder in zip([mount, *above], above, strict=False):
            ways.setdefault(folder, set()).add(below.name)
    device = Path("/").stat().st_dev
    for folder, names in ways.items():
        if folder.stat().st_dev != device:
            return f"{folder} is the host's own"
        more = {one.name for one in folder.iterdir()} - names
        if more:
            return f"{folder} shows {sorted(more)[:3]}"
    return None


def _hidden() -> str | None:
    for path in json.loads(sys.argv[1] if len(sys.argv) > 1 else "[]"):
        try:
            os.lstat(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{path} answers {error.strerror}"
        return f"{path} can be seen"
    return None


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def _creates(path: str) -> str | None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return None
    return f"{path} could be created"


def _namespace() -> str | None:
    return "it could be made" if _LIBC.unshare(_CLONE_NEWUSER) == 0 else None


def _status(key: str) -> str:
    for line in _lines("/proc/self/status"):
        if line.startswith(f"{key}:"):
            return line.split()[1]
    return ""


def _privileges() -> str | None:
    if _status("NoNewPrivs") != "1":
        return "they can be gained"
    return None if int(_status("CapBnd"), 16) == 0 else "the bounding set is not empty"


def _filter() -> str | None:
    return None if _status("Seccomp") == "2" else "none is loaded"


def _socket(family: int) -> str | None:
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return None
    return "one could be opened"


def _interfaces() -> str | None:
    names = [name for _, name in socket.if_nameindex()]
    return None if names == ["lo"] else f"{names}"


def _descriptors() -> str | None:
    # The last one is the listing itself.
    found = sorted(int(one.name) for one in Path("/proc/self/fd").iterdir())[:-1]
    return None if found == [0, 1, 2] else f"{found}"


if __name__ == "__main__":
    sys.exit(main())
