"""Commands that tests fork are processes of their own: files, ends and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.command_server import SERVER, Forked, command_server
from fakes.running_daemon import DaemonProcess, environment, kaged

FOLLOW = ("audit", "tail", "-f", "--json", "-n", "1")


@pytest.fixture
def follow(shared: DaemonProcess) -> Iterator[Callable[[], Forked]]:
    """Yield a starter of commands that go on; it waits until they run."""
    readers: list[int] = []

    def start() -> Forked:
        reader, writer = os.pipe()
        readers.append(reader)
        with Path(os.devnull).open("r+b") as nothing:
            files = [nothing.fileno(), writer, nothing.fileno()]
            started = command_server().start(FOLLOW, environment(shared.home), None, files)
        os.close(writer)
        assert b'"event"' in os.read(reader, 65536)
        return started

    yield start
    for one in readers:
        os.close(one)


def _files(command: Forked) -> list[str]:
    return [str(one.readlink()) for one in Path(f"/proc/{command.pid}/fd").iterdir()]


def _ends(command: Forked, number: signal.Signals) -> int:
    command.send_signal(number)
    return command.wait(60)


def test_each_has_its_own_files_and_its_own_end(
    shared: DaemonProcess, follow: Callable[[], Forked]
) -> None:
    """A server that watches several must hand none of that on to the next."""
    commands = [follow() for _ in range(3)]
    for one in commands:
        assert "anon_inode:[pidfd]" not in _files(one)
    sockets = [{file for file in _files(one) if file.startswith("socket:")} for one in commands]
    assert not sockets[0] & sockets[1] | sockets[1] & sockets[2] | sockets[0] & sockets[2]
    first, second, third = commands
    assert _ends(second, signal.SIGKILL) == -signal.SIGKILL
    assert first.poll() is None
    assert third.poll() is None
    assert kaged(shared.home, "no-such-command").returncode == 2
    assert _ends(first, signal.SIGKILL) == -signal.SIGKILL
    assert _ends(third, signal.SIGKILL) == -signal.SIGKILL
    assert third.poll() == -signal.SIGKILL


def test_what_nobody_waits_for_any_more_disturbs_nobody(
    shared: DaemonProcess, follow: Callable[[], Forked]
) -> None:
    forgotten = follow()
    pid = forgotten.pid
    del forgotten
    os.kill(pid, signal.SIGKILL)
    assert kaged(shared.home, "--version").returncode == 0
    until = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)  # the server reaps it when it gets to it
    assert not Path(f"/proc/{pid}").exists()


def test_a_server_whose_memory_is_packed_holds_what_it_held() -> None:
    """Large pages are the kernel's to give; what lies in them stays the same."""
    script = (
        f"import sys; sys.path.insert(0, {str(SERVER.parents[1])!r})\n"
        "from fakes.command_server import pack_memory\n"
        "held = [bytes([n % 251]) * 999 for n in range(20_000)]\n"
        "packed = pack_memory()\n"
        "assert all(one == bytes([n % 251]) * 999 for n, one in enumerate(held))\n"
        "print(packed)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) % (2 << 20) == 0
