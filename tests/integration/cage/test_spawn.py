"""Starting, talking to and ending processes, caged and not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.cage.conftest import Events
from kaged.cage import (
    CageKind,
    CageProcess,
    CageRequest,
    Cause,
    Pipes,
    Pty,
    Spawner,
    SpawnFailed,
    SpawnRequest,
    Uncaged,
    UncagedRequest,
    UnsafeArgument,
)
from kaged.cage.collect import collect
from kaged.kernel.policy import CagePolicy, CageState, FsGrant, FsMode
from requirements import requirement

SH = ("sh", "-c")


def caged(*command: str, **more: Any) -> CageRequest:
    return CageRequest("test", CagePolicy(), command, **more)


def uncaged(*command: str, **more: Any) -> UncagedRequest:
    why = Uncaged("a test of the spawner")
    return UncagedRequest("test", why, command, env=(("PATH", "/usr/bin:/bin"),), **more)


async def exchange(process: CageProcess) -> None:
    """Called when the program itself reports in: it runs now, no longer bwrap in its place."""
    assert process.stdin_fd is not None
    assert process.stdout_fd is not None
    os.write(process.stdin_fd, b"x")
    assert await asyncio.to_thread(os.read, process.stdout_fd, 1) == b"x"


async def test_a_caged_program_reads_writes_and_ends(spawner: Spawner, events: Events) -> None:
    process = await spawner.spawn(caged(*SH, "cat; echo oops >&2; exit 3"))
    done = await collect(process, b"hello\n")
    assert (done.stdout, done.stderr) == (b"hello\n", b"oops\n")
    assert (done.report.exit_code, done.report.cause) == (3, Cause.EXIT)
    assert events.names() == ["cage.started", "cage.exited"]
    started, exited = events.last("cage.started"), events.last("cage.exited")
    assert started["cage_id"] == exited["cage_id"] == process.cage_id
    assert started["caged"] is True
    assert process.cage is not None
    assert process.cage.backend == spawner.backend.name
    assert exited["exit_code"] == 3


async def test_an_uncaged_program_is_visible_as_such(spawner: Spawner, events: Events) -> None:
    done = await collect(await spawner.spawn(uncaged(*SH, "cat; exit 4")), b"hello")
    assert (done.stdout, done.report.exit_code) == (b"hello", 4)
    started = events.last("cage.started")
    assert started["caged"] is False
    assert started["weaknesses"] == ["no cage: a test of the spawner"]


@pytest.mark.parametrize("reason", ["", "  "])
def test_no_process_is_uncaged_without_a_reason(reason: str) -> None:
    with pytest.raises(UnsafeArgument):
        Uncaged(reason)


async def test_an_uncaged_program_gets_exactly_the_environment_it_was_given(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAEMON_SECRET", "x")
    done = await collect(await spawner.spawn(uncaged("env")))
    assert done.stdout == b"PATH=/usr/bin:/bin\n"


@pytest.mark.parametrize(("command", "cwd"), [(("no-such-program",), "/"), (("sh",), "/no/such")])
async def test_an_uncaged_program_that_cannot_start_says_why(
    spawner: Spawner, events: Events, command: tuple[str, ...], cwd: str
) -> None:
    with pytest.raises(SpawnFailed, match="No such file"):
        await spawner.spawn(uncaged(*command, cwd=cwd))
    assert events.names() == ["cage.refused"]
    assert events.last("cage.refused")["code"] == "spawn_failed"


@requirement("PH-SUP-13")
async def test_nothing_of_the_daemons_environment_reaches_a_cage(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAEMON_SECRET", "sesame")
    monkeypatch.setenv("HTTP_PROXY", "http://outside:1")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    request = caged(
        *SH,
        "env; cat /proc/*/environ",
        env=(("KAGED_PLUGIN_NAME", "memory"), ("KAGED_LOG_LEVEL", "info")),
    )
    done = await collect(await spawner.spawn(request))
    assert b"sesame" not in done.stdout
    lines = [line for line in done.stdout.decode().split("\n") if "=" in line and "\0" not in line]
    found = dict(line.split("=", 1) for line in lines)
    assert found["LANG"] == "C.UTF-8"
    assert set(found) <= {
        "KAGED_PLUGIN_NAME", "KAGED_LOG_LEVEL", "HOME", "PATH", "LANG", "PWD", "TMPDIR",
        "XDG_CACHE_HOME", "OLDPWD", "_", "SHLVL",
    }  # fmt: skip
    assert not [name for name in found if "PROXY" in name.upper()]


@requirement("PH-CAGE-06")
async def test_what_a_cage_writes_to_its_scratch_is_gone_after_a_restart(spawner: Spawner) -> None:
    from kaged.kernel.capabilities import CapabilityBases, cage_policy, parse_capabilities

    install = "/usr/share"
    policy = cage_policy(parse_capabilities([]), install, CapabilityBases(config="/srv/none"))
    assert policy.state is CageState.EPHEMERAL
    script = "ls /tmp /run /dev/shm; for d in /tmp /run /dev/shm; do echo x > $d/kept; done"
    for _ in range(2):
        request = CageRequest("test", policy, (*SH, script), home=install)
        done = await collect(await spawner.spawn(request))
        assert (done.report.exit_code, done.stderr) == (0, b"")
        assert b"kept" not in done.stdout


async def test_a_persistent_cage_finds_its_scratch_again(spawner: Spawner, place: Path) -> None:
    policy = CagePolicy(state=CageState.PERSISTENT)
    said: list[bytes] = []
    for script in ("echo kept > /tmp/file", "cat /tmp/file"):
        request = CageRequest(
            "test", policy, (*SH, script), kind=CageKind.AGENT, state_dir=str(place)
        )
        said.append((await collect(await spawner.spawn(request))).stdout)
    assert said == [b"", b"kept\n"]


async def test_standard_error_can_be_joined_to_standard_output(spawner: Spawner) -> None:
    for request in (
        caged(*SH, "echo a; echo b >&2", stdio=Pipes(merge_stderr=True)),
        uncaged(*SH, "echo a; echo b >&2", stdio=Pipes(merge_stderr=True)),
    ):
        process = await spawner.spawn(request)
        assert process.stderr_fd is None
        assert (await collect(process)).stdout == b"a\nb\n"


@pytest.mark.parametrize("make", [caged, uncaged])
async def test_a_terminal_is_a_real_one(
    spawner: Spawner, make: Callable[..., SpawnRequest]
) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size && echo controlled < /dev/tty"
    process = await spawner.spawn(make(*SH, script, stdio=Pty(rows=33, cols=111)))
    done = await collect(process)
    assert done.stdout.replace(b"\r\n", b"\n") == b"33 111\ncontrolled\n"
    assert done.report.exit_code == 0


async def test_a_terminal_can_be_resized(spawner: Spawner) -> None:
    process = await spawner.spawn(caged(*SH, "read x; stty size", stdio=Pty()))
    process.resize(50, 132)
    assert b"50 132" in (await collect(process, b"\n")).stdout


WAITS_FOR_CTRL_C = """
import os, signal, sys, time
def caught(*_):
    os.write(1, b"caught")  # not print: the signal may come while "ready" is still being printed
    sys.exit(9)
signal.signal(signal.SIGINT, caught)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


async def test_ctrl_c_on_a_terminal_reaches_the_program(spawner: Spawner) -> None:
    # Not a shell: one that gets the signal between two of its children may go on without a word.
    process = await spawner.spawn(caged("/usr/bin/env", "python3", "-c", WAITS_FOR_CTRL_C,
                                        stdio=Pty()))  # fmt: skip
    assert process.stdout_fd is not None
    said = b""
    while b"ready" not in said:
        said += await asyncio.to_thread(os.read, process.stdout_fd, 100)
    done = await collect(process, b"\x03")
    assert b"caught" in done.stdout
    assert done.report.exit_code == 9


async def test_a_process_can_be_given_to_a_protocol_of_the_callers_own(spawner: Spawner) -> None:
    class Echo(asyncio.Protocol):
        def __init__(self) -> None:
            self.got: asyncio.Queue[bytes] = asyncio.Queue()

        def data_received(self, data: bytes) -> None:
            self.got.put_nowait(data)

    async with await spawner.spawn(caged("cat")) as process:
        reader, echo = await process.connect_stdout(Echo)
        writer, _ = await process.connect_stdin(asyncio.BaseProtocol)
        for word in (b"one", b"two"):
            writer.write(word)
            async with asyncio.timeout(5):
                assert await echo.got.get() == word
        with pytest.raises(ValueError, match="not there"):
            process.take_fd("stdout")
        writer.close()
        report = await process.wait()
        reader.close()
    assert report.clean


async def test_more_output_than_is_kept_does_not_block_the_program(spawner: Spawner) -> None:
    process = await spawner.spawn(caged(*SH, "head -c 3000000 /dev/zero; echo done >&2"))
    done = await collect(process, limit_bytes=1000)
    assert (len(done.stdout), done.stderr, done.cut) == (1000, b"done\n", True)


async def test_the_program_is_found_behind_bwrap(spawner: Spawner) -> None:
    async with await spawner.spawn(caged("cat")) as process:
        await exchange(process)
        pid = process.command_pid
        assert pid is not None
        assert pid != process.pid
        assert Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(b"/usr/bin/bwrap\0")
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"cat\0"
        assert process.running
        assert process.report is None
    assert not process.running
    assert process.command_pid is None
    assert process.report is not None


@pytest.mark.parametrize("make", [caged, uncaged])
async def test_a_crash_is_reported_as_its_signal(
    spawner: Spawner, make: Callable[..., SpawnRequest]
) -> None:
    done = await collect(await spawner.spawn(make(*SH, "kill -SEGV $$")))
    assert (done.report.signal, done.report.exit_code) == (signal.SIGSEGV, 139)
    assert done.report.detail == "killed by SIGSEGV"


async def test_a_closed_spawner_starts_nothing(cage_cache: Path) -> None:
    from kaged.cage import CageSettings

    spawner = Spawner(CageSettings(cache_dir=cage_cache))
    process = await spawner.spawn(caged("sleep", "100"))
    await spawner.close()
    await spawner.close()
    assert process.report is not None
    assert process.report.cause is Cause.STOPPED
    process.close()
    with pytest.raises(SpawnFailed):
        await spawner.spawn(caged("true"))


async def test_the_install_directory_is_home_and_the_place_to_start(
    spawner: Spawner, place: Path
) -> None:
    (place / "main.sh").write_text("pwd; echo $HOME\n", encoding="utf-8")
    policy = CagePolicy(fs=(FsGrant(str(place), FsMode.RO),))
    request = CageRequest("test", policy, ("sh", "./main.sh"), home=str(place))
    done = await collect(await spawner.spawn(request))
    assert done.stdout.decode() == f"{place}\n{place}\n"


async def test_a_start_that_is_on_its_way_when_the_spawner_closes_is_ended(
    cage_cache: Path,
) -> None:
    from kaged.cage import CageSettings

    spawner = Spawner(CageSettings(cache_dir=cage_cache))
    starts = asyncio.gather(
        *(spawner.spawn(caged("sleep", "1000")) for _ in range(5)), return_exceptions=True
    )
    await asyncio.sleep(0)
    await spawner.close()
    found = await starts
    assert all(isinstance(one, SpawnFailed) for one in found)
    assert spawner.running == frozenset()
