"""A NUL byte in a string that travels through bwrap's option descriptor is another option.

One named attack per string that a guest, a project or an operator can write.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kaged.base import KagedError
from kaged.cage import (
    CageError,
    CageKind,
    CageRequest,
    CageSettings,
    HostMount,
    Spawner,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.arguments import encode_arguments
from kaged.cage.net import NetGate
from kaged.cage.request import ShownFile, SpawnRequest
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CagePolicy, CageState, ExecGrant, FsGrant, FsMode
from security.cage.conftest import Events

INJECTION = "x\0--ro-bind\0/\0/host"
LOOK = ("sh", "-c", "ls /host/etc && echo ESCAPED")
BARE = CagePolicy()
UNCAGED = Uncaged("an attack of the tests")


def _path(mode: FsMode) -> CagePolicy:
    return CagePolicy(fs=(FsGrant(f"/{INJECTION}", mode),))


ATTACKS: dict[str, SpawnRequest] = {
    "policy-env-value": CageRequest("t", CagePolicy(env=(("A", INJECTION),)), LOOK),
    "policy-env-name": CageRequest("t", CagePolicy(env=((INJECTION, "x"),)), LOOK),
    "env-value": CageRequest("t", BARE, LOOK, env=(("A", INJECTION),)),
    "env-name": CageRequest("t", BARE, LOOK, env=((INJECTION, "x"),)),
    "fixed-env-value": CageRequest("t", BARE, LOOK, fixed_env=(("A", INJECTION),)),
    "file-path": CageRequest("t", BARE, LOOK, files=(ShownFile(f"/tmp/{INJECTION}", b"x"),)),
    "command-word": CageRequest("t", BARE, (*LOOK, INJECTION)),
    "command-program": CageRequest("t", BARE, (INJECTION, *LOOK)),
    "home": CageRequest("t", BARE, LOOK, home=f"/{INJECTION}"),
    "working-directory": CageRequest("t", BARE, LOOK, cwd=f"/{INJECTION}"),
    "read-grant": CageRequest("t", _path(FsMode.RO), LOOK),
    "write-grant": CageRequest("t", _path(FsMode.RW), LOOK),
    "pattern-grant": CageRequest(
        "t", CagePolicy(fs=(FsGrant(f"/usr/*{INJECTION}", FsMode.RO),)), LOOK, kind=CageKind.AGENT
    ),
    "exec-program": CageRequest("t", CagePolicy(exec=(ExecGrant(INJECTION, "/usr"),)), LOOK),
    "exec-directory": CageRequest("t", CagePolicy(exec=(ExecGrant("git", f"/{INJECTION}"),)), LOOK),
    "state-directory": CageRequest(
        "t", CagePolicy(state=CageState.PERSISTENT), LOOK, state_dir=f"/{INJECTION}"
    ),
    "mount-source": CageRequest("t", BARE, LOOK, mounts=(HostMount(f"/{INJECTION}", "/x"),)),
    "mount-target": CageRequest("t", BARE, LOOK, mounts=(HostMount("/usr", f"/{INJECTION}"),)),
    "runtime-place": CageRequest(
        "t", BARE, ("/usr/bin/env", "bun"), runtimes=(("bun", f"/{INJECTION}"),)
    ),
    "uncaged-env-value": UncagedRequest("t", UNCAGED, ("/bin/true",), env=(("A", INJECTION),)),
    "uncaged-command": UncagedRequest("t", UNCAGED, ("/bin/true", INJECTION)),
    "uncaged-directory": UncagedRequest("t", UNCAGED, ("/bin/true",), cwd=f"/{INJECTION}"),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_nul_byte_starts_nothing(spawner: Spawner, events: Events, attack: str) -> None:
    with pytest.raises(CageError) as caught:
        await spawner.spawn(ATTACKS[attack])
    assert "host" in repr(caught.value) or "NUL" in str(caught.value), caught.value
    assert not spawner.running
    assert set(events.names()) == {"cage.refused"}


async def test_a_nul_byte_in_a_granted_name_starts_nothing(
    cage_cache: Path, events: Events
) -> None:
    gate = NetGate(lambda _: None)
    spawner = Spawner(CageSettings(cache_dir=cage_cache), gate=gate, on_event=events)
    try:
        await gate.start(spawner.facts.bwrap)
        with pytest.raises(KagedError) as caught:
            await spawner.spawn(
                CageRequest("t", CagePolicy(net=(NetTarget(INJECTION, 443),)), LOOK)
            )
        assert "host" in repr(caught.value), caught.value
        assert not spawner.running
    finally:
        await spawner.close()
        await gate.close()


def test_the_attack_is_real_when_bwrap_is_given_such_bytes(spawner: Spawner) -> None:
    """The control: without a check the string above does open the host's files."""
    tool = spawner.facts.bwrap
    assert tool is not None
    base = "--unshare-user --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib"
    words = [*base.split(), "--symlink", "usr/lib64", "/lib64", "--setenv", "A", INJECTION]
    fd = os.memfd_create("options")
    os.write(fd, "\0".join(words).encode() + b"\0")
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        done = subprocess.run(
            [tool, "--args", str(fd), "--", "/bin/ls", "/host"],
            pass_fds=[fd], env={}, capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(fd)
    assert set(done.stdout.decode().split()) >= {"etc", "usr"}, done.stderr
    with pytest.raises(CageError, match="NUL"):
        encode_arguments(words, {})


def test_every_string_of_a_request_is_attacked() -> None:
    """A new field of a request or policy needs an attack here, or a reason in this list."""
    covered = {
        "env", "fixed_env", "command", "home", "cwd", "state_dir", "mounts", "runtimes", "policy",
        "files",
    }  # fmt: skip
    # Words for the audit log, closed sets, and paths that are only compared with.
    harmless = {
        "name", "kind", "programs", "stdio", "services", "own_dirs", "bound", "ask_host",
    }  # fmt: skip
    assert set(CageRequest.__dataclass_fields__) == covered | harmless
    assert set(CagePolicy.__dataclass_fields__) == {
        "fs", "net", "exec", "env", "state", "seccomp", "capabilities", "limits",
        # Names of the operator's credentials and of known toolchains; what they stand for is
        # mounts, variables and files of the request.
        "credentials", "toolchains",
    }  # fmt: skip
