"""`shell.bash` in a running daemon: what a command gets, what it answers, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer
from whole.harness.project import Project

SECRET = {"KAGED_TEST_SECRET": "s3cret-of-the-daemon", "FOO": "of-the-daemon"}
CUT = "\n[output truncated — 1 MB limit]"


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield the module's daemon; its environment holds a secret."""
    made = Daemon(module_path / "h", local=model.local_toml(), env=SECRET)
    made.start()
    yield made
    made.close()


@pytest.fixture
def project(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project whose primary agent has no cage; `caged` runs commands in `src` alone."""
    return prepared(daemon, tmp_path / f"p{os.urandom(3).hex()}")


def prepared(daemon: Daemon, root: Path) -> Project:
    """Return a loaded project with agents of several cages."""

    def one(mode: str, *capabilities: str) -> dict[str, Any]:
        cage = {"fs": [{"mode": mode, "path": "src"}], "capabilities": list(capabilities)}
        tools = {"shell.*": {"enabled": True}}
        return {"model": "default", "system_prompt": "x", "cage": cage, "tools": tools}

    agents = {"caged": one("rw", "shell"), "mute": one("rw"), "reader": one("ro", "shell")}
    project = Project(root, cage="disabled", subagents=agents)
    project.write("src/own.txt", "own\n")
    project.write("data/secret.txt", "hidden-from-cages\n")
    return daemon.load(project)


CAGED = "primary.subagents.caged"
MUTE = "primary.subagents.mute"
READER = "primary.subagents.reader"


def run(project: Project, command: str, agent: str = "primary", **more: Any) -> dict[str, Any]:
    """Run a command that has to start."""
    got: dict[str, Any] = project.call("shell.bash", agent, command=command, **more)
    return got


def out(project: Project, command: str, agent: str = "primary", **more: Any) -> str:
    """Run a command; returns what it printed."""
    return str(run(project, command, agent, **more)["stdout"])


def executed(project: Project) -> list[dict[str, Any]]:
    """Return what is on record about commands of a project."""
    rows = project.daemon.audit("shell.executed", project_id=project.id)
    return [one["data"] for one in rows]


def alive(pid: int) -> bool:
    """Return whether a process is there and not only its remains."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


# -- what it answers ---------------------------------------------------------------------------


@whole("AT-SHELL-02", "AT-SHELL-05", "AT-SHELL-16", "AT-AMB-13")
@pytest.mark.parametrize(
    ("command", "stdout", "code"),
    [
        ("echo hello", "hello\n", 0),
        ("exit 42", "", 42),
        ("false", "", 1),
        ("echo x; kaged-no-such-program 2>/dev/null", "x\n", 127),
        (r"printf 'a\nb\n'", "a\nb\n", 0),
    ],
)
@pytest.mark.parametrize("agent", ["primary", CAGED])
def test_a_command_answers_with_output_and_exit_code(
    project: Project, agent: str, command: str, stdout: str, code: int
) -> None:
    assert run(project, command, agent, cwd="src") == {
        "stdout": stdout,
        "stderr": "",
        "exit_code": code,
        "timed_out": False,
    }


@whole("AT-SHELL-03", "AT-SHELL-04")
def test_a_command_runs_in_sh_on_a_terminal_of_the_daemon_in_a_group_of_its_own(
    daemon: Daemon, project: Project
) -> None:
    command = "tr '\\0' '|' < /proc/$$/cmdline; test -t 1 && test -t 2 && echo terminal"
    shown = out(project, command)
    assert shown == f"/bin/sh|-c|{command}|terminal\n"
    for agent in ("primary", CAGED):
        got = run(project, "test -t 1; echo $?; echo a; echo b >&2", agent, cwd="src")
        assert (got["stdout"], got["stderr"]) == ("0\na\nb\n", "")
    pid, parent, group = out(project, "echo $$ $PPID $(cut -d' ' -f5 /proc/$$/stat)").split()
    assert (int(parent), group) == (daemon.pid, pid)
    # The other end of the command's terminal is open in the daemon and nowhere else.
    ends = out(project, f"ls -l /proc/{daemon.pid}/fd; readlink /proc/$$/fd/1")
    assert "/dev/ptmx" in ends or "/dev/pts/ptmx" in ends
    assert "/dev/pts/" in ends.splitlines()[-1]


@whole("AT-SHELL-01")
def test_commands_and_variables_have_limits_and_defaults(project: Project) -> None:
    longest = ": " + "x" * (65536 - 2)
    assert run(project, longest)["exit_code"] == 0
    many = {f"V{n}": "x" for n in range(64)}
    assert out(project, "echo $V63", env=many) == "x\n"
    for bad in (
        {"command": longest + "x"},
        {"command": ": " + "\xe9" * 32768},
        {"command": "true", "env": {**many, "V64": "x"}},
        {},
        {"command": 1},
        {"command": "true", "cwd": 1},
        {"command": "true", "timeout": "soon"},
        {"command": "true", "timeout": 1.5},
        {"command": "true", "timeout": True},
        {"command": "a\0b"},
        {"command": "true", "env": {"A": "x\0y"}},
        {"command": "true", "env": ["A=b"]},
        {"command": "true", "unknown": 1},
        {"command": "true", "terminal": "no"},
    ):
        assert project.fail("shell.bash", **bad)["code"] == "invalid_params", str(bad)[:80]
    assert out(project, "pwd") == f"{project.root}\n"
    listed = project.get("/tools")["tools"]
    (schema,) = [one["parameters"] for one in listed if one["name"] == "shell.bash"]
    assert schema["required"] == ["command"]
    shown = {key: one.get("default") for key, one in schema["properties"].items()}
    more = {"terminal": True, "background": False}  # beyond the specification
    assert shown == {"command": None, "cwd": "./", "timeout": 120000, "env": {}, **more}


@whole("AT-SHELL-09", "AT-SHELL-12", "AT-FAIL-26")
@pytest.mark.parametrize(
    "params",
    [
        {"command": ""},
        {"command": " "},
        {"command": "\n\t "},
        {"command": "true", "env": {"": "val"}},
        {"command": "true", "env": {"A=B": "x"}},
        {"command": "true", "env": {"A\0B": "x"}},
        {"command": "true", "env": {"A": 1}},
        {"command": "true", "env": {"A": None}},
        {"command": "true", "env": {"GOOD": "x", "A": ["x"]}},
    ],
    ids=str,
)
def test_blank_commands_and_odd_variables_are_refused(
    project: Project, params: dict[str, Any]
) -> None:
    refused = project.fail("shell.bash", **params)
    assert refused["code"] == "invalid_params"
    field = "env" if "env" in params else "command"
    assert refused["data"]["detail"]["fields"][0]["field"].startswith(field)
    assert executed(project) == []


# -- where it runs -----------------------------------------------------------------------------


@whole("AT-SHELL-10", "AT-FAIL-27", "AT-AMB-24")
@pytest.mark.parametrize(
    ("cwd", "resolved"),
    [
        ("../../", "../.."),
        ("..", ".."),
        ("src/../../x", "../x"),
        ("./out", "./out"),
        ("out/deeper", "./out"),
        ("src/up", "./src/up"),
        ("/etc/../etc", "/etc"),
    ],
)
@pytest.mark.parametrize("agent", ["primary", CAGED])
def test_a_folder_outside_the_project_is_refused_with_where_it_leads(
    project: Project, agent: str, cwd: str, resolved: str
) -> None:
    (project.root / "out").symlink_to("/etc")
    (project.root / "src" / "up").symlink_to("../..")
    refused = project.fail("shell.bash", agent, command="touch made", cwd=cwd)
    assert refused["code"] == "invalid_params"
    detail = refused["data"]["detail"]
    assert (detail["resolved"], detail["path"]) == (resolved, cwd)
    assert detail["fields"][0]["field"] == "cwd"
    # Where the project lies on the host, and where the links lead there, is not told.
    assert str(project.root.parent) not in json.dumps(refused)
    if not cwd.startswith("/"):
        assert "etc" not in json.dumps(refused)
    assert executed(project) == []


@whole("AT-AMB-24")
def test_inside_the_project_but_outside_the_cage_is_another_refusal(project: Project) -> None:
    assert project.fail("shell.bash", CAGED, command="x", cwd="data")["code"] == "capability_denied"
    assert project.fail("shell.bash", CAGED, command="x", cwd="..")["code"] == "invalid_params"


@whole("AT-SHELL-11")
def test_the_working_folder_is_where_the_command_runs(project: Project) -> None:
    (project.root / "packages" / "daemon").mkdir(parents=True)
    shown = out(project, "pwd; touch here", cwd="./packages/daemon").strip()
    assert shown.endswith("/packages/daemon")
    assert (project.root / "packages" / "daemon" / "here").exists()
    assert out(project, "cat own.txt", CAGED, cwd="src") == "own\n"


@whole("AT-SHELL-17", "AT-FAIL-30")
@pytest.mark.parametrize(
    ("cwd", "words"),
    [("./missing", "No such file or directory"), ("data/secret.txt", "Not a directory")],
)
def test_a_command_that_cannot_start_says_why(project: Project, cwd: str, words: str) -> None:
    refused = project.fail("shell.bash", command="true", cwd=cwd)
    assert refused["code"] == "shell_spawn_failed"
    assert words in refused["message"]


@whole("AT-SHELL-13", "AT-AMB-41")
def test_a_free_command_has_the_daemons_environment_and_a_caged_one_nothing_of_it(
    project: Project,
) -> None:
    show = 'echo "$FOO|$KAGED_TEST_SECRET|${PATH:+set}"'
    assert out(project, show) == "of-the-daemon|s3cret-of-the-daemon|set\n"
    assert out(project, show, env={"FOO": "bar"}) == "bar|s3cret-of-the-daemon|set\n"
    assert out(project, show, CAGED, cwd="src") == "||set\n"
    assert out(project, show, CAGED, cwd="src", env={"FOO": "bar"}) == "bar||set\n"
    everything = out(project, "env; cat /proc/*/environ", CAGED, cwd="src")
    assert "s3cret" not in everything


# -- cages -------------------------------------------------------------------------------------


@whole("AT-SHELL-18", "AT-AMB-21")
def test_a_cage_needs_the_word_shell_and_a_folder_to_write_in(
    daemon: Daemon, project: Project, tmp_path: Path
) -> None:
    refused = project.fail("shell.bash", MUTE, command="touch made", cwd="src")
    assert (refused["code"], refused["data"]["detail"]) == ("capability_denied", "shell")
    refused = project.fail("shell.bash", READER, command="touch made", cwd="src")
    assert (refused["code"], refused["data"]["detail"]) == ("capability_denied", "rw:fs:src")
    refused = project.fail("shell.bash", CAGED, command="touch made")
    assert (refused["code"], refused["data"]["detail"]) == ("capability_denied", "rw:fs:./")
    assert executed(project) == []
    assert run(project, "touch made", CAGED, cwd="src")["exit_code"] == 0
    # A root agent with a cage is held to it as well.
    other = daemon.load(Project(tmp_path / "rooted"))
    assert other.fail("shell.bash", command="touch made")["data"]["detail"] == "shell"
    assert list(tmp_path.glob("*/made")) == []


@whole("AT-SHELL-19", "AT-AMB-40")
def test_a_caged_command_reaches_what_its_cage_grants_and_nothing_else(project: Project) -> None:
    secret = project.root / "data" / "secret.txt"
    shown = out(
        project,
        f"cat {secret} ../data/secret.txt; ls -a ..; echo x > ../data/new; echo y > new.txt; "
        f"cat {project.daemon.home}/local.toml; kill -9 {project.daemon.pid}; echo end",
        CAGED,
        cwd="src",
    )
    assert shown.endswith("end\n")
    assert "hidden-from-cages" not in shown
    assert "api_key" not in shown
    assert not (project.root / "data" / "new").exists()
    assert project.read("src/new.txt") == "y\n"
    assert out(project, f"cat {secret}") == "hidden-from-cages\n"


@whole("AT-SHELL-19")
def test_without_cages_no_caged_command_is_started(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own(config='[sandbox]\nbwrap = "/bin/false"\n')
    daemon.start()
    project = prepared(daemon, tmp_path / "cageless")
    refused = project.fail("shell.bash", CAGED, command="touch made", cwd="src")
    assert refused["code"] == "shell_spawn_failed"
    assert not (project.root / "src" / "made").exists()
    assert executed(project) == []
    assert run(project, "touch made", cwd="src")["exit_code"] == 0


def peak_kb(daemon: Daemon) -> int:
    """Return the most memory that a daemon has had."""
    text = Path(f"/proc/{daemon.pid}/status").read_text(encoding="utf-8")
    return int(text.partition("VmHWM:")[2].split()[0])


# -- output ------------------------------------------------------------------------------------


@whole("AT-SHELL-14", "AT-FAIL-29")
def test_output_beyond_a_megabyte_is_cut_and_says_so(project: Project) -> None:
    got = run(project, "yes | head -c 3000000; echo the end")
    assert got["stdout"].endswith(CUT)
    assert (got["truncated"], got["tail"].endswith("the end\n")) == (True, True)
    kept = got["stdout"].removesuffix(CUT)
    assert len(kept.encode()) == 1048576
    assert set(kept.split()) == {"y"}
    exact = out(project, "yes | head -c 1048576")
    assert len(exact) == 1048576
    assert not exact.endswith(CUT)


@whole("AT-SHELL-15")
def test_a_flood_neither_fills_the_memory_nor_stops_the_command(
    daemon: Daemon, project: Project
) -> None:
    run(project, "yes | head -c 2000000")
    before = peak_kb(daemon)
    # Sixteen times the limit; the command gets all of it out and comes to its last word.
    got = run(project, "yes 0123456789abcdef0123456789abcdef | head -c 16000000; touch through")
    assert got["exit_code"] == 0
    assert (project.root / "through").exists()
    assert run(project, "yes", timeout=1000)["timed_out"] is True
    assert peak_kb(daemon) - before < 8_000


# -- without a terminal ------------------------------------------------------------------------


@pytest.mark.parametrize("agent", ["primary", CAGED])
def test_a_command_without_a_terminal_answers_as_with_one(project: Project, agent: str) -> None:
    command = "test -t 1 || test -t 2 || echo none; for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    for _ in range(2):
        got = run(project, f"{command}; cat; exit 3", agent, cwd="src", terminal=False)
        assert got == {
            "stdout": "none\no1\ne1\no2\ne2\no3\ne3\n",
            "stderr": "",
            "exit_code": 3,
            "timed_out": False,
        }
    assert out(project, r"printf 'a\r\nb\r\n'", agent, cwd="src", terminal=False) == "a\r\nb\r\n"
    assert out(project, "test -t 1 && echo one", agent, cwd="src") == "one\n"


@whole("AT-SHELL-14")
@pytest.mark.parametrize("agent", ["primary", CAGED])
def test_a_flood_through_a_pipe_is_kept_like_one_of_a_terminal(
    daemon: Daemon, project: Project, agent: str
) -> None:
    run(project, "yes | head -c 20000000", agent, cwd="src", terminal=False)
    before = peak_kb(daemon)
    # A letter of three bytes lies across the limit, and across most reads.
    flood = "printf x; yes 漢字漢字漢字 | head -c 200000000 | tr -d '\\n'; echo; echo the end >&2"
    got = run(project, flood, agent, cwd="src", terminal=False)
    kept = got["stdout"].removesuffix(CUT)
    assert (got["exit_code"], got["truncated"], got["stdout"].endswith(CUT)) == (0, True, True)
    assert kept == "x" + "漢字" * 174762 + "漢"
    assert got["tail"].endswith("字\nthe end\n") or got["tail"].endswith("漢\nthe end\n")
    assert "\ufffd" not in got["tail"]
    assert peak_kb(daemon) - before < 8_000


@whole("AT-SHELL-07", "AT-SHELL-08", "AT-SHELL-15")
@pytest.mark.parametrize("agent", ["primary", CAGED])
def test_a_flood_through_a_pipe_that_never_ends_is_stopped(
    daemon: Daemon, project: Project, agent: str
) -> None:
    run(project, "yes | head -c 20000000", agent, cwd="src", terminal=False)
    before = peak_kb(daemon)
    for _ in range(2):
        got = run(project, "yes & yes", agent, cwd="src", terminal=False, timeout=1000)
        assert (got["exit_code"], got["timed_out"], got["truncated"]) == (137, True, True)
        assert got["stdout"] == "y\n" * 524288 + CUT
    assert peak_kb(daemon) - before < 8_000
    assert out(project, "echo still", agent, cwd="src") == "still\n"


@whole("AT-SHELL-21")
@pytest.mark.parametrize("agent", ["primary", CAGED])
def test_a_command_that_reads_its_input_comes_to_an_end(project: Project, agent: str) -> None:
    got = run(project, "cat; read answer; echo done", agent, cwd="src", timeout=1000)
    assert got["stdout"] == "done\n" or got["timed_out"] is True


# -- time and ends -----------------------------------------------------------------------------


@whole("AT-SHELL-06")
def test_a_timeout_too_short_or_too_long_is_taken_as_the_nearest_that_is_allowed(
    own: Callable[..., Daemon], project: Project, tmp_path: Path
) -> None:
    for short in (500, 0, -7):
        got = run(project, "sleep 0.6; echo slept", timeout=short)
        assert (got["stdout"], got["timed_out"]) == ("slept\n", False), short
    assert run(project, "sleep 30", timeout=500)["timed_out"] is True
    assert run(project, "true", timeout=999_999)["exit_code"] == 0
    (schema,) = [one for one in project.get("/tools")["tools"] if one["name"] == "shell.bash"]
    assert "600000" in schema["parameters"]["properties"]["timeout"]["description"]
    # Ten minutes are too long to be waited for: the operator makes two seconds of them.
    hasty = own(config='[tools]\nscrub_env = ["KAGED_*"]\n[tools.limits]\nshell_seconds = 2\n')
    hasty.env.update(SECRET)
    hasty.start()
    other = prepared(hasty, tmp_path / "hasty")
    assert run(other, "sleep 60", timeout=999_999)["timed_out"] is True
    assert out(other, 'echo "$FOO|$KAGED_TEST_SECRET"') == "of-the-daemon|\n"


@whole("AT-SHELL-07", "AT-AMB-20", "AT-FAIL-28")
def test_when_the_time_is_up_a_command_is_asked_to_end_and_then_made_to(
    project: Project,
) -> None:
    stubborn = (
        "trap 'echo TERM >> beats' TERM; echo begun; while :; do date +%s >> beats; sleep 0.1; done"
    )
    commands = {
        "plain": ("sleep 60", 2000, ""),
        "polite": ("trap 'echo bye; exit 3' TERM; echo begun; sleep 60 & wait", 1000, None),
        "stubborn": (stubborn, 1000, "begun\n"),
    }
    with ThreadPoolExecutor(3) as pool:
        asked = {
            name: pool.submit(run, project, command, timeout=timeout)
            for name, (command, timeout, _) in commands.items()
        }
        got = {name: one.result() for name, one in asked.items()}
    for name, one in got.items():
        assert (one["timed_out"], one["exit_code"]) == (True, 137), name
        assert one["signal"] == signal.SIGKILL, name
    assert got["plain"]["stdout"] == ""
    assert got["polite"]["stdout"] == "begun\nbye\n"
    assert got["stubborn"]["stdout"].startswith("begun\n")
    beats = project.read("beats").split()
    # Asked once; by its own clock it had about five seconds left, and then there was no asking.
    assert beats.count("TERM") == 1
    asked = beats.index("TERM")
    assert int(beats[-1]) - int(beats[asked - 1]) >= 3
    assert len(exactly(len(beats), lambda: project.read("beats").split())) == len(beats)


FAMILY = "sleep 4321 & echo $! >> pids; setsid sleep 4321 & echo $! >> pids; echo $$ >> pids; wait"


@whole("AT-SHELL-08")
def test_nothing_that_a_command_started_outlives_its_time(project: Project) -> None:
    assert run(project, FAMILY, timeout=1000)["timed_out"] is True
    family = [int(one) for one in project.read("pids").split()]
    assert len(family) == 3
    assert [one for one in family if alive(one)] == []
    assert run(project, "sh -c 'sleep 4322 & wait'", timeout=1000)["timed_out"] is True
    assert not running("4322")


@whole("AT-SHELL-08")
@pytest.mark.parametrize("agent", ["primary", CAGED])
def test_nothing_that_a_command_started_outlives_who_asked_for_it(
    daemon: Daemon, project: Project, agent: str
) -> None:
    mark = str(5_000_000 + int.from_bytes(os.urandom(2), "big"))
    params = {"command": FAMILY.replace("4321", mark), "cwd": "src"}
    body = json.dumps({"agent": agent, "tool": "shell.bash", "params": params})
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(daemon.get("/status")["socket"])
        asking.sendall(
            f"POST /api/v1/projects/{project.id}/tools/call HTTP/1.1\r\nHost: kaged\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        wait_for(lambda: len(running(mark)) == 2)
    wait_for(lambda: not running(mark))  # the line was cut before the answer came


def running(mark: str) -> list[int]:
    """Return the processes that have this word among their arguments."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"sleep") and mark.encode() in words:
                found.append(int(folder.name))
    return found


@whole("AT-SHELL-08")
def test_commands_that_start_while_the_daemon_ends_do_not_outlive_it(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    project = prepared(daemon, tmp_path / "ending")
    mark = str(6_000_000 + int.from_bytes(os.urandom(2), "big"))
    client, path = daemon.client, f"/api/v1/projects/{project.id}/tools/call"
    over = threading.Event()

    def ask(number: int) -> None:
        agent = ("primary", CAGED)[number % 2]
        params = {"command": f"exec sleep {mark}", "cwd": "src"}
        while not over.is_set():
            try:
                client.post(path, json={"agent": agent, "tool": "shell.bash", "params": params})
            except (httpx.HTTPError, RuntimeError):
                return

    with ThreadPoolExecutor(16) as pool:
        for number in range(16):
            pool.submit(ask, number)
        wait_for(lambda: running(mark))  # some run, others are just being started
        os.kill(daemon.pid, signal.SIGTERM)
        daemon.stop()
        over.set()
    exactly(0, lambda: running(mark))


# -- on record ---------------------------------------------------------------------------------


@whole("AT-SHELL-22")
def test_every_command_is_on_record_once_with_how_it_ended(project: Project) -> None:
    run(project, "exit 3", cwd="src")
    run(project, "echo caged", CAGED, cwd="src")
    run(project, "sleep 30", timeout=1000)
    project.fail("shell.bash", command=" ")
    project.fail("shell.bash", MUTE, command="true", cwd="src")
    rows = exactly(3, lambda: executed(project))
    keys = ("command", "cwd", "exit_code", "timed_out", "caller")
    assert [tuple(one[key] for key in keys) for one in rows] == [
        ("exit 3", "./src", 3, False, "primary"),
        ("echo caged", "./src", 0, False, CAGED),
        ("sleep 30", "./", 137, True, "primary"),
    ]
    assert all(one["duration_ms"] >= 0 for one in rows)
    assert rows[2]["duration_ms"] > 500, "it was ended after a second"
