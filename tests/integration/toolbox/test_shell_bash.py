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

from fakes.tool_lab import ToolLab, cage
from kaged.base import JsonValue
from kaged.cage import CageProcess, CageSettings, Spawner
from kaged.config.jsonschemas import compile_schema
from kaged.kernel.policy import CagePolicy
from kaged.toolbox.shell import PtyBroker, ShellSettings, caged_launcher, shell_tools
from kaged.toolbox.shell.interpreters import DEFINITION
from kaged.toolbox.shell.launch import ShellCommand
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
    found = Spawner(CageSettings(cache_dir=cache))
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
        tools = shell_tools(broker, spawner, launcher, **options)
        tool_lab = ShellLab(project, tools, policy)
        tool_lab.broker = broker
        yield tool_lab
        await broker.dispose_all()

    return make


def shell_cage(root: Path, *fs: str) -> CagePolicy:
    return cage(*(fs or ("rw ./",)), root=root, capabilities=["shell"])


# -- what it gives -------------------------------------------------------------------------------


@requirement("AT-SHELL-02")
async def test_a_command_gives_its_output_and_exit_code(lab: Lab) -> None:
    async with lab() as tool_lab:
        result = await tool_lab.call("shell.bash", command="echo hello")
    assert result == {"stdout": "hello\n", "stderr": "", "exit_code": 0, "timed_out": False}


@requirement("AT-SHELL-03", "AT-SHELL-04")
async def test_it_runs_under_sh_on_a_terminal_with_both_streams_merged(lab: Lab) -> None:
    async with lab() as tool_lab:
        said = await tool_lab.call(
            "shell.bash",
            command='echo "$0"; test -t 1 && test -t 2 && echo terminal; echo a; echo b >&2; '
            '[ "$(ps -o pgid= -p $$ | tr -d " ")" = "$$" ] && echo leader',
        )
    assert said["stdout"].splitlines() == ["/bin/sh", "terminal", "a", "b", "leader"]
    assert said["stderr"] == ""


@requirement("AT-SHELL-05")
async def test_a_failing_command_is_a_result(lab: Lab) -> None:
    async with lab() as tool_lab:
        assert (await tool_lab.call("shell.bash", command="exit 42"))["exit_code"] == 42
        completed = tool_lab.audit.of("tool.completed")[-1]
    assert completed["success"] is True


@requirement("AT-SHELL-16")
async def test_line_ends_are_plain(lab: Lab) -> None:
    async with lab() as tool_lab:
        assert (await tool_lab.call("shell.bash", command=r"printf 'a\nb\n'"))["stdout"] == "a\nb\n"


@requirement("AT-SHELL-11")
async def test_the_command_runs_where_it_was_told(lab: Lab) -> None:
    async with lab() as tool_lab:
        said = await tool_lab.call("shell.bash", command="pwd", cwd="./packages/daemon")
    assert said["stdout"].strip().endswith("/packages/daemon")


@requirement("AT-SHELL-14", "AT-FAIL-29")
async def test_output_beyond_a_megabyte_is_cut_and_marked(lab: Lab) -> None:
    async with lab() as tool_lab:
        said = await tool_lab.call("shell.bash", command="yes | head -c 3000000; echo the end")
    mark = "\n[output truncated — 1 MB limit]"
    assert said["stdout"].endswith(mark)
    assert len(said["stdout"].encode()) == 1_048_576 + len(mark.encode())
    assert said["truncated"] is True
    assert said["tail"].endswith("the end\n")


async def test_every_result_is_as_the_definition_says(lab: Lab) -> None:
    schema = compile_schema(DEFINITION.returns)
    async with lab() as tool_lab:
        for command in ("true", "yes | head -c 2000000", "kill -9 $$", r"printf '\377\033[1m'"):
            result = await tool_lab.call("shell.bash", command=command)
            assert list(schema.iter_errors(result)) == []
            json.dumps(result, allow_nan=False)


async def test_a_command_that_prints_bytes_gives_text(lab: Lab) -> None:
    async with lab() as tool_lab:
        said = await tool_lab.call("shell.bash", command="head -c 4096 /dev/urandom")
    json.dumps(said, allow_nan=False)


# -- limits ----------------------------------------------------------------------------------------


@requirement("AT-SHELL-06")
@pytest.mark.parametrize(("given", "taken"), [(500, 1.0), (999_999, 600.0), (30_000, 30.0)])
async def test_the_timeout_is_kept_within_its_bounds(lab: Lab, given: int, taken: float) -> None:
    alarm = Alarm()
    async with lab(broker={"sleep": alarm}) as tool_lab:
        await tool_lab.call("shell.bash", command="true", timeout=given)
    assert alarm.asked == [taken]


async def test_the_timeout_is_two_minutes_when_nobody_says(lab: Lab) -> None:
    alarm = Alarm()
    async with lab(broker={"sleep": alarm}) as tool_lab:
        await tool_lab.call("shell.bash", command="true")
    assert alarm.asked == [120.0]


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
        "signal": 15,
    }
    assert alarm.asked == [2.0, 5.0]


@requirement("AT-SHELL-07")
async def test_a_command_that_ignores_the_signal_is_killed_after_five_seconds(lab: Lab) -> None:
    alarm = Alarm()
    async with lab(broker={"sleep": alarm}) as tool_lab, asyncio.TaskGroup() as group:
        call = group.create_task(
            tool_lab.call(
                "shell.bash", command="trap 'echo no' TERM; echo on; while :; do sleep 1; done"
            )
        )
        await tool_lab.shows("on")
        await alarm.ring(0)
        await tool_lab.shows("no")
        assert not call.done()
        await alarm.ring(1)
        result = await call
    assert (result["timed_out"], result["exit_code"], result["signal"]) == (True, 137, 9)


@requirement("AT-SHELL-08")
@pytest.mark.parametrize("caged", [False, True])
async def test_children_do_not_survive_a_timeout(lab: Lab, project: Path, caged: bool) -> None:
    alarm = Alarm()
    policy = shell_cage(project) if caged else None
    mark = f"31{time.time_ns() % 10**9}"
    command = f"(setsid sleep {mark} &); sleep {mark} & echo up; wait"
    async with lab(policy, broker={"sleep": alarm}) as tool_lab, asyncio.TaskGroup() as group:
        call = group.create_task(tool_lab.call("shell.bash", command=command))
        await _until(lambda: len(_running(mark)) >= 2)
        await alarm.ring(0)
        await call
        assert _running(mark) == []


@requirement("AT-SHELL-08")
@pytest.mark.parametrize("caged", [False, True])
async def test_children_do_not_survive_a_cancelled_call(
    lab: Lab, project: Path, caged: bool
) -> None:
    policy = shell_cage(project) if caged else None
    mark = f"32{time.time_ns() % 10**9}"
    command = f"(setsid sleep {mark} &); sh -c 'sleep {mark} & wait'"
    async with lab(policy) as tool_lab, asyncio.TaskGroup() as group:
        call = group.create_task(tool_lab.call("shell.bash", command=command))
        await _until(lambda: len(_running(mark)) >= 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert _running(mark) == []


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


@requirement("AT-SHELL-15")
async def test_an_endless_flood_is_read_away_until_the_timeout(lab: Lab) -> None:
    alarm = Alarm()
    async with lab(broker={"sleep": alarm}) as tool_lab, asyncio.TaskGroup() as group:
        before = _resident_bytes()
        call = group.create_task(tool_lab.call("shell.bash", command="yes"))
        running = tool_lab.broker.sessions
        await _until(lambda: "req_1" in running and running["req_1"].scrollback.truncated)
        await asyncio.sleep(0.5)
        grown = _resident_bytes() - before
        await alarm.ring(0)
        result = await call
    assert result["truncated"] is True
    assert grown < 24 * 1024 * 1024


@requirement("AT-SHELL-21")
@pytest.mark.parametrize("command", ["cat", "read answer; echo got:$answer", "cat /dev/tty; true"])
async def test_nobody_answers_and_nothing_waits(lab: Lab, command: str) -> None:
    alarm = Alarm()  # never rings: the command has to end by itself
    async with lab(broker={"sleep": alarm}) as tool_lab:
        async with asyncio.timeout(PATIENCE_S):
            result = await tool_lab.call("shell.bash", command=command, timeout=1000)
    assert result["timed_out"] is False


@requirement("AT-DISP-17")
async def test_other_calls_go_on_while_a_command_waits(lab: Lab, project: Path) -> None:
    async with lab() as tool_lab, asyncio.TaskGroup() as group:
        slow = group.create_task(
            tool_lab.call(
                "shell.bash", command="while [ ! -e ./go ]; do sleep 0.05; done; echo went"
            )
        )
        quick = await tool_lab.call("shell.bash", command="echo quick")
        assert quick["stdout"] == "quick\n"
        assert not slow.done()
        (project / "go").touch()
        assert (await slow)["stdout"] == "went\n"


# -- what it refuses -------------------------------------------------------------------------------


@requirement("AT-SHELL-01", "AT-SHELL-09", "AT-SHELL-12", "AT-FAIL-26")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"command": ""},
        {"command": " \t\n"},
        {"command": "x" * 65_537},
        {"command": "é" * 32_769},
        {"command": 5},
        {"command": "a\0b"},
        {"command": "true", "timeout": "5"},
        {"command": "true", "timeout": True},
        {"command": "true", "env": {f"V{number}": "x" for number in range(65)}},
        {"command": "true", "env": {"": "val"}},
        {"command": "true", "env": {"A=B": "x"}},
        {"command": "true", "env": {"A": 1}},
        {"command": "true", "env": {"A": None}},
        {"command": "true", "env": {"A\0B": "x"}},
        {"command": "true", "env": {"A": "x\0y"}},
        {"command": "true", "shell": "zsh"},
    ],
)
async def test_malformed_parameters_run_nothing(lab: Lab, params: dict[str, Any]) -> None:
    async with lab() as tool_lab:
        refusal = await tool_lab.refusal_with("shell.bash", params)
        assert refusal.code == "invalid_params"
        assert tool_lab.audit.of("shell.executed") == []


@requirement("AT-SHELL-01")
async def test_the_largest_command_and_environment_are_taken(lab: Lab) -> None:
    filler = "true;" + " " * (65_536 - 5 - len("echo $V63")) + "echo $V63"
    assert len(filler) == 65_536
    env: dict[str, JsonValue] = {f"V{number}": str(number) for number in range(64)}
    async with lab() as tool_lab:
        assert (await tool_lab.call("shell.bash", command=filler, env=env))["stdout"] == "63\n"


@requirement("AT-SHELL-10", "AT-FAIL-27")
async def test_a_working_directory_outside_the_project_is_refused(
    lab: Lab, project: Path, tmp_path: Path
) -> None:
    (project / "link").symlink_to(tmp_path)
    async with lab() as tool_lab:
        for cwd in ("../../", "/etc", "./link", "./src/../.."):
            refusal = await tool_lab.refusal("shell.bash", command="pwd", cwd=cwd)
            assert refusal.code == "invalid_params", cwd
            assert "cwd" in json.dumps(refusal.as_json())
        assert tool_lab.audit.of("shell.executed") == []


@requirement("AT-SHELL-17", "AT-FAIL-30")
@pytest.mark.parametrize(("cwd", "words"), [("./missing", "No such file"), ("./file", "Not a dir")])
async def test_a_command_that_cannot_start_says_why(
    lab: Lab, project: Path, cwd: str, words: str
) -> None:
    (project / "file").touch()
    async with lab() as tool_lab:
        refusal = await tool_lab.refusal("shell.bash", command="true", cwd=cwd)
    assert refusal.code == "shell_spawn_failed"
    assert refusal.number == -32000
    assert words in refusal.message


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


# -- environment -----------------------------------------------------------------------------------


@requirement("AT-SHELL-13", "AT-AMB-41")
async def test_without_a_cage_the_daemons_environment_is_inherited_under_env(lab: Lab) -> None:
    settings = ShellSettings({"PATH": os.environ["PATH"], "FOO": "daemon", "KEPT": "yes"})
    async with lab(settings=settings) as tool_lab:
        said = await tool_lab.call(
            "shell.bash", command='echo "$FOO $KEPT ${PATH:+path}"', env={"FOO": "bar"}
        )
    assert said["stdout"] == "bar yes path\n"


@requirement("AT-SHELL-13", "AT-AMB-41")
async def test_in_a_cage_nothing_of_the_daemons_environment_is_seen(
    lab: Lab, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAEMON_SECRET", "canary-9")
    async with lab(shell_cage(project)) as tool_lab:
        said = await tool_lab.call(
            "shell.bash", command="env; cat /proc/*/environ 2>/dev/null", env={"FOO": "bar"}
        )
    assert "canary-9" not in said["stdout"]
    assert "FOO=bar" in said["stdout"]
    assert "PATH=/" in said["stdout"]


@requirement("AT-BEY-10")
async def test_scrubbed_variables_stay_behind(lab: Lab) -> None:
    environ = {"PATH": os.environ["PATH"], "API_KEY": "s1", "MY_TOKEN": "s2", "HOME": "/x"}
    settings = ShellSettings(environ, scrub_env=("API_KEY", "*_TOKEN"))
    async with lab(settings=settings) as tool_lab:
        said = await tool_lab.call("shell.bash", command="env")
    assert "s1" not in said["stdout"]
    assert "s2" not in said["stdout"]
    assert "HOME=/x" in said["stdout"]


# -- cages -----------------------------------------------------------------------------------------


@requirement("AT-SHELL-18")
async def test_a_caged_caller_needs_the_capability_and_a_writable_directory(
    lab: Lab, project: Path
) -> None:
    async with lab(cage("rw ./", root=project)) as tool_lab:
        refusal = await tool_lab.refusal("shell.bash", command="true")
        assert (refusal.code, refusal.number) == ("capability_denied", -32001)
        assert "shell" in str(refusal.detail)
    async with lab(shell_cage(project, "ro ./")) as tool_lab:
        refusal = await tool_lab.refusal("shell.bash", command="true")
        assert (refusal.code, "rw:fs" in str(refusal.detail)) == ("capability_denied", True)
        assert tool_lab.audit.names()[-1] == "tool.denied"
    async with lab(shell_cage(project)) as tool_lab:
        assert (await tool_lab.call("shell.bash", command="echo in"))["stdout"] == "in\n"
    async with lab(None) as tool_lab:
        assert (await tool_lab.call("shell.bash", command="echo out"))["stdout"] == "out\n"


@requirement("AT-DISP-14")
async def test_a_left_out_directory_is_decided_as_the_project_root(lab: Lab, project: Path) -> None:
    async with lab(shell_cage(project, "rw ./src")) as tool_lab:
        refusal = await tool_lab.refusal("shell.bash", command="true")
        assert refusal.code == "capability_denied"
        assert (await tool_lab.call("shell.bash", command="true", cwd="./src"))["exit_code"] == 0


@requirement("AT-SHELL-19", "AT-AMB-40")
async def test_a_caged_command_reaches_only_what_its_cage_grants(lab: Lab, project: Path) -> None:
    async with lab(shell_cage(project, "rw ./src")) as tool_lab:
        said = await tool_lab.call(
            "shell.bash",
            command=f"cat ../secret/key {project}/secret/key; echo own > ./made; ls /root; id -u",
            cwd="./src",
        )
    assert "canary-7" not in said["stdout"]
    assert (project / "src/made").read_text(encoding="utf-8") == "own\n"


@requirement("AT-SHELL-19")
async def test_the_launcher_gets_the_callers_policy_and_the_command(
    lab: Lab, project: Path, spawner: Spawner
) -> None:
    seen: list[tuple[CagePolicy, ShellCommand]] = []

    async def spy(policy: CagePolicy, command: ShellCommand) -> CageProcess:
        seen.append((policy, command))
        return await caged_launcher(spawner)(policy, command)

    policy = shell_cage(project)
    async with lab(policy, launcher=spy) as tool_lab:
        await tool_lab.call("shell.bash", command="echo $((1+1))")
    ((given, command),) = seen
    assert given is policy
    assert command.argv == ("/bin/sh", "-c", "echo $((1+1))")
    assert command.cwd == str(project.resolve())


@requirement("AT-SHELL-19")
async def test_without_a_launcher_a_caged_command_does_not_run(lab: Lab, project: Path) -> None:
    async with lab(shell_cage(project), caged=False) as tool_lab:
        refusal = await tool_lab.refusal("shell.bash", command="touch ./ran")
    assert refusal.code == "shell_spawn_failed"
    assert not (project / "ran").exists()


# -- the broker and the record ---------------------------------------------------------------------


@requirement("AT-SHELL-20")
async def test_the_broker_shows_what_runs_and_ends_it_all(spawner: Spawner, project: Path) -> None:
    broker = PtyBroker()
    tools = shell_tools(broker, spawner, caged_launcher(spawner))
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
    assert (await tool_lab.refusal("shell.bash", command="true")).code == "shell_spawn_failed"


@requirement("AT-SHELL-22", "AT-AUD-26")
async def test_each_execution_is_on_record(lab: Lab) -> None:
    async with lab() as tool_lab:
        await tool_lab.call("shell.bash", command="exit 3 #" + "x" * 300, cwd="./src")
        (event,) = tool_lab.audit.of("shell.executed")
    assert len(event["command"]) == 200
    assert event["command"].startswith("exit 3 #")
    assert (event["cwd"], event["exit_code"], event["timed_out"]) == ("./src", 3, False)
    assert event["caller"] == "primary"
    assert event["duration_ms"] >= 0


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


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


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
