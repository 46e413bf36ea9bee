"""`shell.bash` with real terminals, real process groups and real cages."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.stocked_cache import stocked
from fakes.tool_lab import ToolLab, cage
from kaged.cage import CageProcess, CageSettings, Spawner
from kaged.config.jsonschemas import compile_schema
from kaged.kernel.policy import CagePolicy
from kaged.toolbox.shell import CommandRunner, PtyBroker, caged_launcher, shell_tools
from kaged.toolbox.shell.broker import ShellSpawnFailed
from kaged.toolbox.shell.interpreters import DEFINITION
from kaged.toolbox.shell.launch import ShellCommand, launch_uncaged
from requirements import requirement

PATIENCE_S = 15.0


class Alarm:
    """A clock for the broker: sleeps end when the test says so."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._gates: list[asyncio.Event] = []
        self._news = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        gate = asyncio.Event()
        self.asked.append(seconds)
        self._gates.append(gate)
        self._news.set()
        await gate.wait()

    async def ring(self, number: int) -> None:
        """Let the sleep of this number be over, once it has begun."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._gates) <= number:
                self._news.clear()
                await self._news.wait()
        self._gates[number].set()


@pytest.fixture
async def spawner(tmp_path: Path) -> AsyncIterator[Spawner]:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    found = Spawner(CageSettings(cache_dir=stocked(cache)))
    yield found
    await found.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "packages/daemon").mkdir(parents=True)
    (root / "src").mkdir()
    (root / "secret").mkdir()
    (root / "secret/key").write_text("canary-7", encoding="utf-8")
    for folder in (root, root / "src", root / "packages", root / "packages/daemon"):
        folder.chmod(0o777)
    return root


class ShellLab(ToolLab):
    """A dispatcher with the shell's tool; `shows` waits for words on a command's terminal."""

    broker: PtyBroker

    async def shows(self, words: str, request_id: str = "req_1") -> None:
        await _until(lambda: words in (self.broker.scrollback(request_id) or ""))


Lab = Callable[..., AbstractAsyncContextManager[ShellLab]]


@pytest.fixture
def lab(spawner: Spawner, project: Path) -> Lab:
    @asynccontextmanager
    async def make(
        policy: CagePolicy | None = None, *, caged: bool = True, **options: Any
    ) -> AsyncGenerator[ShellLab]:
        broker = PtyBroker(**options.pop("broker", {}))
        launcher = options.pop("launcher", caged_launcher(spawner) if caged else None)
        tools = shell_tools(CommandRunner(broker, spawner, launcher, **options))
        tool_lab = ShellLab(project, tools, policy)
        tool_lab.broker = broker
        yield tool_lab
        await broker.dispose_all()

    return make


def shell_cage(root: Path, *fs: str) -> CagePolicy:
    return cage(*(fs or ("rw ./",)), root=root, capabilities=["shell"])


# -- what it gives -------------------------------------------------------------------------------


async def test_every_result_is_as_the_definition_says(lab: Lab) -> None:
    schema = compile_schema(DEFINITION.returns)
    async with lab() as tool_lab:
        for command in ("true", "yes | head -c 2000000", "kill -9 $$", "head -c 4096 /dev/urandom"):
            result = await tool_lab.call("shell.bash", command=command)
            assert list(schema.iter_errors(result)) == []
            json.dumps(result, allow_nan=False)


# -- limits ----------------------------------------------------------------------------------------


@requirement("AT-SHELL-06")
async def test_the_timeout_is_kept_within_its_bounds_and_two_minutes_when_nobody_says(
    lab: Lab,
) -> None:
    alarm = Alarm()
    async with lab(broker={"sleep": alarm}) as tool_lab:
        for given in (500, 999_999, 30_000):
            await tool_lab.call("shell.bash", command="true", timeout=given)
        await tool_lab.call("shell.bash", command="true")
    assert alarm.asked == [1.0, 600.0, 30.0, 120.0]


@requirement("AT-SHELL-07", "AT-FAIL-28", "AT-AMB-20")
async def test_a_command_that_takes_too_long_is_ended_with_what_it_said(lab: Lab) -> None:
    alarm = Alarm()
    async with lab(broker={"sleep": alarm}) as tool_lab, asyncio.TaskGroup() as group:
        call = group.create_task(
            tool_lab.call("shell.bash", command="echo begun; sleep 60", timeout=2000)
        )
        await tool_lab.shows("begun")
        await alarm.ring(0)
        result = await call
    assert result == {
        "stdout": "begun\n",
        "stderr": "",
        "exit_code": 137,
        "timed_out": True,
        "signal": 9,
    }
    assert alarm.asked == [2.0, 5.0]


@pytest.mark.parametrize("caged", [False, True])
async def test_what_a_command_leaves_behind_ends_with_it(
    lab: Lab, project: Path, caged: bool
) -> None:
    mark = f"33{time.time_ns() % 10**9}"
    policy = shell_cage(project) if caged else None
    async with lab(policy) as tool_lab:
        result = await tool_lab.call(
            "shell.bash", command=f"sleep {mark} & setsid sleep {mark} & sleep 0.2; echo done"
        )
        assert result["stdout"] == "done\n"
        assert _running(mark) == []


@requirement("AT-SHELL-21")
async def test_nobody_answers_and_nothing_waits(lab: Lab) -> None:
    alarm = Alarm()  # never rings: the command has to end by itself
    async with lab(broker={"sleep": alarm}) as tool_lab:
        for command in ("cat", "read answer; echo got:$answer", "cat /dev/tty; true"):
            async with asyncio.timeout(PATIENCE_S):
                result = await tool_lab.call("shell.bash", command=command, timeout=1000)
            assert result["timed_out"] is False, command


# -- what it refuses -------------------------------------------------------------------------------


async def test_too_many_commands_at_once_are_refused_not_queued(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.toolbox.shell.broker.MAX_SESSIONS", 1)
    async with lab() as tool_lab, asyncio.TaskGroup() as group:
        first = group.create_task(tool_lab.call("shell.bash", command="sleep 60"))
        await _until(lambda: bool(tool_lab.audit.of("tool.called")))
        await asyncio.sleep(0)
        refusal = await tool_lab.refusal("shell.bash", command="true")
        assert refusal.code == "shell_spawn_failed"
        first.cancel()


# -- the broker and the record ---------------------------------------------------------------------


@requirement("AT-SHELL-20")
async def test_the_broker_shows_what_runs_and_ends_it_all(spawner: Spawner, project: Path) -> None:
    broker = PtyBroker()
    tools = shell_tools(CommandRunner(broker, spawner, caged_launcher(spawner)))
    tool_lab = ToolLab(project, tools)
    mark = f"34{time.time_ns() % 10**9}"
    async with asyncio.TaskGroup() as group:
        call = group.create_task(tool_lab.call("shell.bash", command=f"echo working; sleep {mark}"))
        await _until(lambda: "working" in (broker.scrollback("req_1") or ""))
        assert list(broker.sessions) == ["req_1"]
        await broker.dispose_all()
        assert _running(mark) == []
        assert (await call)["stdout"] == "working\n"
    assert broker.scrollback("req_1") is None
    # Afterwards nothing is even begun: it would have no broker to end it.
    for _ in range(2):
        refused = await tool_lab.refusal("shell.bash", command=f"touch begun; sleep {mark}")
        assert refused.code == "shell_spawn_failed"
    assert not (project / "begun").exists()
    with pytest.raises(ShellSpawnFailed, match="the daemon is ending"):
        await broker.spawn("req_9", _never)


async def _never() -> CageProcess:
    raise AssertionError("a closed broker starts nothing")


@requirement("AT-SHELL-20", "AT-SHELL-08")
async def test_a_command_on_its_way_while_the_broker_closes_is_ended_and_refused(
    spawner: Spawner, project: Path
) -> None:
    broker = PtyBroker()
    mark = f"35{time.time_ns() % 10**9}"
    command = ShellCommand("req_1", "primary", f"exec sleep {mark}", str(project), {})
    started: list[CageProcess] = []

    async def start() -> CageProcess:
        started.append(await launch_uncaged(spawner, command, os.environ, ()))
        await broker.dispose_all()  # nobody has told it of this one yet
        return started[0]

    with pytest.raises(ShellSpawnFailed, match="the daemon is ending"):
        await broker.spawn("req_1", start)
    assert started[0].report is not None
    assert _running(mark) == []
    assert not broker.sessions


@requirement("AT-AUD-03")
async def test_values_of_the_environment_are_not_logged(lab: Lab) -> None:
    async with lab() as tool_lab:
        await tool_lab.call("shell.bash", command="true", env={"PASSWORD": "canary-5"})
        assert "canary-5" not in json.dumps(tool_lab.audit.events)


# -- own -------------------------------------------------------------------------------------------


def _running(mark: str) -> list[int]:
    """Find the processes whose command line ends with this number."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if line.endswith(f"\0{mark}\0".encode()):
            found.append(int(entry.name))
    return found


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - processes outside have no event to await
            await asyncio.sleep(0.01)


async def test_only_processes_of_this_very_daemon_are_ended(lab: Lab) -> None:
    """Another daemon's command may have the same request id; it is none of our business."""
    from kaged.cage.orphan_processes import MARK

    foreign = await asyncio.create_subprocess_exec(  # noqa: TID251 - stands for another daemon's
        "sleep", "600", env={MARK: f"{os.getpid() + 1}:req_1", "PATH": os.environ["PATH"]}
    )
    async with lab() as tool_lab:
        await tool_lab.call("shell.bash", command="true")
    assert foreign.returncode is None
    assert Path(f"/proc/{foreign.pid}").exists()
    foreign.kill()
    await foreign.wait()
