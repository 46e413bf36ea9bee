"""Attacks with real tools: debuggers, a nested sandbox, set-id programs of the host."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kaged.cage import CageKind, CageRequest, Spawner
from kaged.cage.collect import Collected, collect
from kaged.kernel.policy import CagePolicy, SeccompProfile


async def run(
    spawner: Spawner, script: str, profile: SeccompProfile = SeccompProfile.DEFAULT
) -> Collected:
    """Run a script in a cage that shows the host's programs, as an agent's does."""
    request = CageRequest(
        "t", CagePolicy(seccomp=profile), ("sh", "-c", script), kind=CageKind.AGENT
    )
    return await collect(await spawner.spawn(request))


def tool(name: str) -> None:
    if shutil.which(name, path="/usr/bin:/usr/sbin:/bin") is None:
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("strace", "strace -o /tmp/log true && grep -q execve /tmp/log"),
        ("strace", "sleep 30 & timeout 1 strace -o /tmp/log -p $!; test -s /tmp/log"),
        ("gdb", "gdb -batch -ex run -ex quit --args true 2>&1 | grep -q 'exited normally'"),
        (
            "gdb",
            "sleep 30 & gdb -batch -p $! -ex detach 2>&1 | grep -q 'Detaching\\|detached'",
        ),
    ],
    ids=["strace-launch", "strace-attach", "gdb-launch", "gdb-attach"],
)
async def test_e45_debuggers_fail_under_default_and_work_under_relaxed(
    spawner: Spawner, name: str, script: str
) -> None:
    tool(name)
    default = await run(spawner, script)
    assert default.report.exit_code != 0
    relaxed = await run(spawner, script, SeccompProfile.RELAXED)
    assert relaxed.report.exit_code == 0, relaxed.stderr


@pytest.mark.parametrize("profile", list(SeccompProfile))
async def test_e26_a_sandbox_inside_the_cage_is_refused(
    spawner: Spawner, profile: SeccompProfile
) -> None:
    done = await run(spawner, "bwrap --ro-bind / / --unshare-user true", profile)
    assert done.report.exit_code != 0
    assert b"bwrap:" in done.stderr


@pytest.mark.parametrize("profile", list(SeccompProfile))
@pytest.mark.parametrize(
    "script",
    ["su -c id", "sudo -n id", "mount -t tmpfs x /tmp", "umount /proc", "unshare -r id",
     "nsenter -t 1 -m id", "chroot /tmp id", "newgrp root", "passwd root", "mknod /tmp/m c 1 1",
     "setpriv --reuid 0 id", "dmesg", "date -s 2001-01-01", "hostname other", "sysctl -w vm.x=1",
     "ip link add x type dummy", "insmod /x.ko", "chattr +i /tmp"],
)  # fmt: skip
async def test_e12_programs_of_the_host_gain_nothing(
    spawner: Spawner, profile: SeccompProfile, script: str
) -> None:
    done = await run(spawner, script, profile)
    assert done.report.exit_code != 0
    assert b"uid=0" not in done.stdout


async def test_set_id_programs_of_the_host_run_without_their_power(spawner: Spawner) -> None:
    found = [
        path
        for path in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd", "/usr/bin/newgrp")
        if Path(path).exists() and Path(path).stat().st_mode & 0o4000
    ]
    if not found:
        pytest.skip("this host has no set-id programs")
    script = "grep -E 'NoNewPrivs|CapBnd' /proc/self/status; findmnt -no OPTIONS /usr"
    done = await run(spawner, script)
    assert b"NoNewPrivs:\t1" in done.stdout
    assert b"CapBnd:\t0000000000000000" in done.stdout
    assert b"nosuid" in done.stdout
