"""The outside of an attack run: makes something worth stealing, starts the cage, gives a table.

Run as a program, so that the same arena can be set up by root and by an ordinary user:
`python arena.py IDENTITY PROFILE FOLDER`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from kaged.cage import CageRequest, CageSettings, Spawner
from kaged.cage.identity import IdentityMode
from kaged.kernel.policy import CageLimits, CagePolicy, FsGrant, FsMode, SeccompProfile

ATTACKS = Path(__file__).with_name("attacks.py")
PYTHON = "/usr/bin/python3"
SECRET = "daemon-secret-5f1c"
PIPES = ("ro/pipe", "ro/deep/er/second\npipe", "ro/private/pipe", "rw/narrow/pipe", "rw/pipe")


def build(folder: Path) -> dict[str, Any]:
    """Lay out the grants, what lies beside them, and the daemon's own things."""
    for name in ("ro", "rw", "second", "sibling", "daemon", "rw/narrow"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("ro/file", "rw/file", "second/file", "sibling/file", "daemon/local.toml"):
        (folder / name).write_text("content\n", encoding="utf-8")
    shutil.copy(ATTACKS, folder / "ro/attacks.py")
    secret = folder / "secret.txt"
    secret.write_text(SECRET, encoding="utf-8")
    link = folder / "rw/link-to-secret"
    if not link.is_symlink():
        link.symlink_to(secret)
    setuid = folder / "ro/setuid-id"
    shutil.copy("/usr/bin/id", setuid)
    setuid.chmod(0o6755)
    (folder / "ro/deep/er").mkdir(parents=True, exist_ok=True)
    (folder / "ro/private").mkdir(0o700, exist_ok=True)
    for name in PIPES:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        (folder / name).chmod(0o666)
    return {
        "pipes": {name: str(folder / name) for name in PIPES},
        "ro": str(folder / "ro"),
        "rw": str(folder / "rw"),
        "second": str(folder / "second"),
        "secret": str(secret),
        "sibling": str(folder / "sibling/file"),
        "daemon_home": str(folder / "daemon"),
        "daemon_secret": SECRET,
        "abstract": f"kaged-arena-{os.getpid()}",
        "host_pid": os.getppid(),
    }


def listen(where: dict[str, Any]) -> list[socket.socket]:
    """Open the sockets that a cage must not reach."""
    found: list[socket.socket] = []
    for name, kind in (
        ("stream", socket.SOCK_STREAM),
        ("datagram", socket.SOCK_DGRAM),
        ("seqpacket", socket.SOCK_SEQPACKET),
    ):
        path = Path(where["ro"], f"{name}.sock")
        path.unlink(missing_ok=True)
        one = socket.socket(socket.AF_UNIX, kind)
        one.bind(str(path))
        path.chmod(0o777)
        found.append(one)
    found[0].listen()
    found[1].setblocking(False)
    found[2].listen()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + where["abstract"])
    abstract.listen()
    return [*found, abstract]


async def run(identity: str, profile: str, folder: Path) -> dict[str, Any]:
    """Run all attacks in one cage and add what only the outside can see."""
    os.environ["KAGED_ARENA_SECRET"] = SECRET
    where = build(folder)
    where["uid0"] = identity == "uid0"
    sockets = listen(where)
    # With somebody at the other end, whoever opens a pipe for writing gets through to them.
    pipes = {
        name: os.open(path, os.O_RDONLY | os.O_NONBLOCK) for name, path in where["pipes"].items()
    }
    mode = {"uid0": IdentityMode.ROOT, "separate": IdentityMode.SEPARATE}.get(
        identity, IdentityMode.AUTO
    )
    if mode is IdentityMode.SEPARATE:
        for name in ("rw", "second", "rw/file", "second/file"):
            os.chown(folder / name, 1_879_099_999, 1_879_099_999)
    spawner = Spawner(
        CageSettings(cache_dir=folder / "cache", protected=(where["daemon_home"],), identity=mode)
    )
    policy = CagePolicy(
        fs=(
            FsGrant(where["ro"], FsMode.RO),
            FsGrant(where["rw"], FsMode.RW),
            FsGrant(where["second"], FsMode.RW),
            FsGrant(f"{where['rw']}/narrow", FsMode.RO),
        ),
        seccomp=SeccompProfile(profile),
        limits=CageLimits(memory_mb=1024, tmpfs_mb=16),
    )
    process = await spawner.spawn(
        CageRequest("attacks", policy, (PYTHON, f"{where['ro']}/attacks.py"), home=where["ro"])
    )
    assert process.cage is not None
    reader, errors = asyncio.StreamReader(), asyncio.StreamReader()
    await process.connect_stdout(lambda: asyncio.StreamReaderProtocol(reader))
    await process.connect_stderr(lambda: asyncio.StreamReaderProtocol(errors))
    stdin = process.take_fd("stdin")
    os.write(stdin, json.dumps(where).encode())
    os.close(stdin)
    text = await reader.read()
    report = await process.wait()
    table: dict[str, str] = json.loads(text) if text else {}
    try:
        reached = sockets[1].recv(100)
    except BlockingIOError:
        reached = b""
    table["E14-datagram-socket-got-something"] = "nothing" if not reached else "allowed"
    for name, fd in pipes.items():
        table[f"E55-what-came-out-of-{name}"] = repr(os.read(fd, 100))
        os.close(fd)
    process.close()
    await spawner.close()
    for one in sockets:
        one.close()
    return {
        "table": table,
        "identity": process.cage.identity.kind.value,
        "uid": process.cage.identity.uid,
        "backend": process.cage.backend,
        "ceilings": process.cage.ceilings,
        "report": report.detail,
        "errors": (await errors.read()).decode(),
    }


if __name__ == "__main__":
    outcome = asyncio.run(run(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
    json.dump(outcome, sys.stdout)
