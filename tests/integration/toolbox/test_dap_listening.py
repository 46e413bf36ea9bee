"""Adapters that are joined through a socket: where they meet the relay, and who else may."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.dap_lab import DapLab, stopped
from fakes.tool_lab import cage
from kaged.config.serverchoice import AdapterChoice
from requirements import requirement

GUEST = Path(__file__).parents[2] / "guests" / "fake_listening_adapter.py"
PLACES = {"port": "listen ${port}", "socket": "listen ${socket}", "client": "call ${client}"}


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[DapLab]:
    files = (str(tmp_path / "plan.json"), str(tmp_path / "log.jsonl"))
    chosen = {
        name: AdapterChoice("x", None, (sys.executable, str(GUEST), *how.split(), *files), False)
        for name, how in PLACES.items()
    }
    made = DapLab(tmp_path, adapters=chosen)
    yield made
    await made.close()
    assert made.adapters_running() == 0


@requirement("AT-DAP-08")
@pytest.mark.parametrize("place", PLACES)
async def test_an_adapter_is_joined_where_its_command_says(lab: DapLab, place: str) -> None:
    begun = await lab.launched(runtime=place)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    assert begun["threads"] == [{"id": 7, "name": "main"}]
    assert "output" not in begun  # what it says of itself is not the program's
    assert lab.commands()[:3] == ["initialize", "launch", "configurationDone"]
    made = await lab.debug("set_breakpoint", path="./main.fake", line=2)
    assert made["verified"] is True
    numbers = [{"reason": "breakpoint", "threadId": 7, "hitBreakpointIds": [100]}]
    lab.after("continue", {"event": "stopped", "body": numbers[0]})
    assert (await lab.debug("continue"))["breakpoint_id"] == 1
    assert (await lab.debug("disconnect"))["disconnected"] is True


@requirement("AT-DAP-27")
@pytest.mark.parametrize("place", PLACES)
async def test_an_adapter_that_never_comes_leaves_nothing_behind(lab: DapLab, place: str) -> None:
    lab.plan(absent=True)
    lab.write("main.fake", "")
    refusal = await lab.tool_lab.refusal(
        "debug", action="launch", runtime=place, script="./main.fake"
    )
    assert refusal.code == "dap_session_ended"
    assert "I will not listen" in refusal.message
    assert lab.adapters_running() == 0
    lab.plan(absent=False)
    assert (await lab.launched(runtime=place))["status"] == "stopped"


@pytest.mark.needs_root
async def test_nobody_else_can_take_the_adapters_place(lab: DapLab) -> None:
    lab.plan(stranger=True)
    begun = await lab.launched(runtime="client")
    assert begun["status"] == "stopped"
    assert lab.commands()[:2] == ["initialize", "launch"]


@requirement("AT-FAIL-05", "AT-AUD-10")
async def test_an_adapter_that_dies_ends_the_session_as_a_crash(lab: DapLab) -> None:
    await lab.launched(runtime="port")
    lab.answer("threads", "die")
    refusal = await lab.tool_lab.refusal("debug", action="threads")
    assert refusal.code == "dap_session_ended"
    await lab.until(lambda: lab.events[-1][0] == "debug.session_ended")
    assert lab.events[-1][1]["reason"] == "crash"
    assert lab.adapters_running() == 0


async def test_in_a_cage_the_two_meet_on_the_cages_own_loopback(lab: DapLab) -> None:
    lab.write("main.fake", "line one\n").chmod(0o644)
    for name in ("fake_listening_adapter.py", "fake_dap_adapter.py"):
        lab.write(name, GUEST.with_name(name).read_text("utf-8")).chmod(0o644)
    lab.after("configurationDone", stopped("entry"))
    lab.write("plan.json", lab.plan_file.read_text("utf-8")).chmod(0o644)
    root = str(lab.root.resolve())
    command = ("/usr/bin/python3", f"{root}/fake_listening_adapter.py", "listen", "${port}")
    files = (f"{root}/plan.json", "/tmp/log.jsonl")
    lab.bridge.adapters = {"caged": AdapterChoice("x", None, (*command, *files), False)}
    tool_lab = lab.tool_lab_for(cage("ro ./", root=lab.root, capabilities=["exec"]))
    given: dict[str, Any] = {"runtime": "caged", "script": "./main.fake"}
    begun = await tool_lab.call("debug", action="launch", **given)
    assert (begun["status"], begun["stopped_reason"]) == ("stopped", "entry")
    assert (await tool_lab.call("debug", action="disconnect"))["disconnected"] is True


async def test_programs_and_sessions_that_an_adapter_asks_for(lab: DapLab) -> None:
    script = "import os, sys; print('hello', os.environ['A'], 'B' in os.environ); sys.exit(5)"
    asked = {
        "type": "request",
        "command": "runInTerminal",
        "arguments": {
            "args": [sys.executable, "-c", script],
            "cwd": str(lab.root),
            "env": {"A": "a", "HOME": None},
        },
    }
    lab.plan(before={"continue": [asked, {**asked, "arguments": {"args": []}}]})
    await lab.launched(runtime="port")
    ended = await lab.debug("continue")
    assert (ended["status"], ended["exit_code"]) == ("exited", 5)
    assert "hello a False" in ended["output"]
    answers = [one for one in lab.received() if one["type"] == "response"]
    assert sorted(one["success"] for one in answers) == [False, True]
    (started,) = [one for one in answers if one["success"]]
    assert started["body"]["processId"] > 0


async def test_a_program_that_floods_its_output_does_not_keep_others_from_their_turn(
    lab: DapLab,
) -> None:
    flood = "import sys\nwhile True: sys.stdout.write('x' * 65536)\n"
    asked = {
        "type": "request",
        "command": "runInTerminal",
        "arguments": {"args": [sys.executable, "-c", flood], "cwd": str(lab.root)},
    }
    lab.plan(before={"setBreakpoints": [asked]})
    await lab.launched(runtime="port")
    await lab.debug("set_breakpoint", path="./main.fake", line=1)
    for _ in range(20):
        assert (await lab.debug("threads"))["threads"]
    ended = await lab.debug("disconnect", terminate_debuggee=False)
    assert ended["debuggee_terminated"] is True  # it was started beside the adapter
    assert len(ended["output"]) <= 64 * 1024
    assert lab.adapters_running() == 0


async def test_an_adapter_that_will_not_go_is_ended_with_its_relay(lab: DapLab) -> None:
    lab.plan(stay=True)
    await lab.launched(runtime="port")
    assert any(str(lab.log_file) in one for one in command_lines())
    assert (await lab.debug("disconnect"))["disconnected"] is True
    assert not any(str(lab.log_file) in one for one in command_lines())


def command_lines() -> list[str]:
    """Return the command lines of all processes; those that have ended have none."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_text("utf-8", errors="replace"))
            except OSError:
                continue
    return found
