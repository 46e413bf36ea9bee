"""Debug sessions: who has one, how it opens, what it is told, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import Talk, agent, caged, path_of, rows_of
from whole.harness.code import Debugger, PlannedAdapter, stopped, trust
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

CODER = path_of("coder")
AT = {"path": "./main.fake"}


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that reports a step after three seconds, whatever became of it."""
    config = '[dap]\nwait_seconds = 3\n[dap.adapters.theirs]\ntype = "x"\nadapter = ["no-such"]\n'
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def adapter(project: Project) -> PlannedAdapter:
    """Return a planned adapter, and a second agent who may debug too."""
    return PlannedAdapter(project, subagents={"coder": agent("debug", cage="disabled")})


def adapters(made: PlannedAdapter) -> list[int]:
    """Return the processes that run the planned adapter of a project."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if str(made.plan_file).encode() in words and b"fake_dap_adapter" in words:
            found.append(int(entry.name))
    return found


@whole("AT-DAP-08", "AT-DAP-07", "AT-DAP-22")
@pytest.mark.parametrize("late", [False, True])
def test_the_opening_is_in_order_whenever_launch_is_answered(
    adapter: PlannedAdapter, late: bool
) -> None:
    asked = [
        {"type": "request", "command": "runInTerminal", "arguments": {"args": ["x"]}},
        {"type": "request", "command": "startDebugging", "arguments": {}},
        {"type": "event", "event": "unknownEvent", "body": {}},
    ]
    adapter.plan(late_launch=late, before={"launch": asked})
    said = adapter.launched(args=["a"], env={"K": "v"})
    assert said["debug_session_id"].startswith("dap_")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "entry")
    assert said["threads"] == [{"id": 7, "name": "main"}]
    assert adapter.commands()[:3] == ["initialize", "launch", "configurationDone"]
    told = [one["seq"] for one in adapter.received()]
    assert told == list(range(1, len(told) + 1))
    [launch] = [one for one in adapter.received("launch") if one["type"] == "request"]
    root = str(adapter.project.root)
    assert launch["arguments"]["program"] == f"{root}/main.fake"
    assert launch["arguments"]["args"] == ["a"]
    assert launch["arguments"]["env"] == {"K": "v"}
    assert launch["arguments"]["cwd"] == root
    adapter.do("threads")
    answers = [one for one in adapter.received() if one["type"] == "response"]
    assert [(one["command"], one["success"]) for one in answers] == [
        ("runInTerminal", False),
        ("startDebugging", False),
    ]


@whole("AT-DAP-02", "AT-DAP-03", "AT-DAP-63")
def test_each_agent_has_one_session_of_its_own(adapter: PlannedAdapter) -> None:
    first = adapter.launched()["debug_session_id"]
    for again in (
        ("launch", {"runtime": "fake", "script": "./main.fake"}),
        ("attach", {"runtime": "fake", "port": 5678}),
    ):
        assert adapter.refusal(again[0], **again[1])["code"] == "dap_session_active"
    assert adapter.do("threads")["threads"] == [{"id": 7, "name": "main"}]
    other = Debugger(adapter.project, CODER)
    assert other.refusal("stack_trace")["code"] == "dap_session_ended"
    assert other.refusal("disconnect")["code"] == "dap_session_ended"
    second = other.do("launch", runtime="fake", script="./main.fake")["debug_session_id"]
    assert second != first
    assert len(adapters(adapter)) == 2
    other.do("disconnect")
    assert adapter.do("threads")["threads"]
    adapter.do("set_breakpoint", line=2, **AT)
    adapter.stack(adapter.frame(0, "main", 2))
    adapter.after("continue", stopped("breakpoint", hitBreakpointIds=[100]))
    adapter.do("continue")
    adapter.do("disconnect")
    wait_for(lambda: len(rows_of(adapter.project, "debug.session_ended")) == 2)
    rows = rows_of(adapter.project, "debug.*")
    assert [(one["event"], one["data"]["debug_session_id"]) for one in rows] == [
        ("debug.session_started", first),
        ("debug.session_started", second),
        ("debug.session_ended", second),
        ("debug.breakpoint_hit", first),
        ("debug.session_ended", first),
    ]


NEEDED: dict[str, Any] = {
    "path": "./main.fake",
    "line": 1,
    "expression": "1",
    "memory_reference": "m",
    "count": 1,
    "data": "aGk=",
    "command": "x",
    "name": "n",
    "data_id": "d",
    "instruction_reference": "i",
}


@whole("AT-DAP-04", "AT-DAP-61", "AT-DISP-20")
def test_without_a_session_every_other_action_says_so(adapter: PlannedAdapter) -> None:
    tools = adapter.project.get("/tools")["tools"]
    [told] = [one for one in tools if one["name"] == "debug"]
    actions = set(told["parameters"]["properties"]["action"]["enum"]) - {"launch", "attach"}
    assert len(actions) == 25

    def all_refused() -> None:
        for action in sorted(actions):
            assert adapter.refusal(action, **NEEDED)["code"] == "dap_session_ended", action

    all_refused()
    assert adapter.received() == []
    adapter.launched()
    adapter.do("disconnect")
    all_refused()
    adapter.launched()
    adapter.answer("threads", "die")
    assert adapter.refusal("threads")["code"] == "dap_session_ended"
    all_refused()


@whole("AT-DAP-27")
@pytest.mark.parametrize("fault", ["refuses", "dies", "dies at once"])
def test_a_failed_launch_leaves_nothing_behind(adapter: PlannedAdapter, fault: str) -> None:
    what: Any = {"error": "Build error: no such file"} if fault == "refuses" else "die"
    adapter.answer("initialize" if fault == "dies at once" else "launch", what)
    refused = adapter.refusal("launch", runtime="fake", script="./main.fake")
    if fault == "refuses":
        assert "Build error" in refused["message"]
    wait_for(lambda: adapters(adapter) == [])
    assert rows_of(adapter.project, "debug.session_started") == []
    assert adapter.refusal("threads")["code"] == "dap_session_ended"
    adapter.plan(answers={})
    assert adapter.launched()["status"] == "stopped"


@whole("AT-FAIL-05", "AT-DAP-61")
def test_an_adapter_that_dies_ends_the_session_as_a_crash(adapter: PlannedAdapter) -> None:
    adapter.launched()
    adapter.answer("threads", "die")
    refused = adapter.refusal("threads")
    assert (refused["code"], refused["data"]["number"]) == ("dap_session_ended", -32000)
    [ended] = wait_for(lambda: rows_of(adapter.project, "debug.session_ended"))
    assert ended["data"]["reason"] == "crash"
    assert adapter.refusal("continue")["code"] == "dap_session_ended"
    adapter.plan(answers={})
    assert adapter.launched()["status"] == "stopped"


@whole("AT-DAP-62", "AT-FAIL-06", "AT-DAP-39")
def test_a_program_that_ended_can_be_launched_again(adapter: PlannedAdapter) -> None:
    adapter.launched()
    exited = {"event": "exited", "body": {"exitCode": 3}}
    adapter.after("continue", exited, {"event": "terminated"})
    assert adapter.do("continue") == {"status": "exited", "exit_code": 3}
    assert adapter.do("step_over") == {"status": "exited", "exit_code": 3}
    assert adapter.launched()["status"] == "stopped"


@whole("AT-DAP-60")
@pytest.mark.parametrize("terminate", [None, True, False])
def test_disconnect_ends_the_adapter(adapter: PlannedAdapter, terminate: bool | None) -> None:
    adapter.launched()
    given = {} if terminate is None else {"terminate_debuggee": terminate}
    told = terminate is not False
    said = adapter.do("disconnect", **given)
    assert said == {"disconnected": True, "debuggee_terminated": told}
    wait_for(lambda: adapters(adapter) == [])
    [asked] = adapter.received("disconnect")
    assert asked["arguments"] == {"terminateDebuggee": told}
    [row] = rows_of(adapter.project, "debug.session_ended")
    assert row["data"]["reason"] == "disconnect"


@whole("AT-DAP-23", "AT-DAP-25")
def test_without_a_stop_on_entry_the_program_runs_and_attach_answers_alike(
    adapter: PlannedAdapter,
) -> None:
    given: dict[str, Any] = {"runtime": "fake", "script": "./main.fake", "stop_on_entry": False}
    said = adapter.do("launch", **given)
    assert said["status"] == "running"
    assert "stopped_reason" not in said
    adapter.do("disconnect")
    said = adapter.do("attach", runtime="fake", port=5678)
    assert set(said) >= {"debug_session_id", "status", "threads"}
    adapter.do("disconnect", terminate_debuggee=False)
    adapter.do("attach", runtime="fake", port=5679, host="127.0.0.1")
    asked = [one["arguments"] for one in adapter.received("attach")]
    assert [(one["host"], one["port"]) for one in asked] == [
        ("localhost", 5678),
        ("127.0.0.1", 5679),
    ]
    adapter.do("disconnect")
    for wrong in ({"port": 0}, {"port": 65536}, {"port": "1"}, {}):
        assert adapter.refusal("attach", runtime="fake", **wrong)["code"] == "invalid_params"


@whole("AT-DAP-05", "AT-DAP-04")
@pytest.mark.parametrize("how", ["completed", "cancelled"])
def test_the_end_of_a_run_ends_its_sessions(
    adapter: PlannedAdapter, model: ModelServer, how: str
) -> None:
    adapter.plan(stay=True)  # it outlives its input and SIGTERM
    adapter.after("configurationDone", stopped("entry"))
    word = f"vole-{how}"
    launch = call("debug", action="launch", runtime="fake", script="./main.fake")
    wait = call("shell.bash", command="touch here; while [ ! -e go ]; do sleep 0.05; done")
    model.play(word, launch, wait, say("Done."))
    talk = Talk(adapter.project)
    run_id = talk.begin(word)
    wait_for((adapter.project.root / "here").exists)
    assert len(adapters(adapter)) == 1
    if how == "cancelled":
        adapter.project.post(f"/sessions/{talk.id}/cancel")
    else:
        adapter.project.write("go", "")
    assert talk.ended(run_id)["status"] == how
    wait_for(lambda: adapters(adapter) == [])
    [row] = wait_for(lambda: rows_of(adapter.project, "debug.session_ended"))
    assert row["data"]["reason"] == "run_ended"
    adapter.plan(stay=False)


@whole("AT-DAP-06")
def test_an_unloaded_project_leaves_no_debugger(adapter: PlannedAdapter, daemon: Daemon) -> None:
    adapter.launched()
    Debugger(adapter.project, CODER).do("launch", runtime="fake", script="./main.fake")
    assert len(adapters(adapter)) == 2
    daemon.ask("DELETE", f"/projects/{adapter.project.id}")
    wait_for(lambda: adapters(adapter) == [])


@whole("AT-DAP-24", "AT-DAP-15")
def test_launch_looks_at_its_paths_first(adapter: PlannedAdapter) -> None:
    project = adapter.project
    project.write("src/a.fake", "x\n")
    project.write("lib/b.fake", "x\n")
    top = {"dap": {"adapters": [{"runtime": "fake", "type": "x", "adapter": adapter.command}]}}
    coder = agent("debug", cage=caged("ro:./src", capabilities=["exec"]))
    poor = agent("debug", cage=caged(capabilities=["exec"]))
    project.describe(cage="disabled", subagents={"coder": coder, "poor": poor}, top=top)
    project.reload()
    for who, script, cwd, code in (
        ("primary", "../x", "./", "invalid_params"),
        ("primary", "./src/a.fake", "../", "invalid_params"),
        ("primary", "./none", "./", "file_not_found"),
        ("primary", "./src/a.fake", "./none", "file_not_found"),
        (CODER, "./lib/b.fake", "./src", "capability_denied"),
        (CODER, "./src/a.fake", "./lib", "capability_denied"),
    ):
        given = {"runtime": "fake", "script": script, "cwd": cwd}
        assert Debugger(project, who).refusal("launch", **given)["code"] == code, (script, cwd)
    assert adapter.received() == []
    assert Debugger(project, CODER).refusal("threads")["code"] == "dap_session_ended"
    assert Debugger(project, path_of("poor")).refusal("threads")["code"] == "capability_denied"


@whole("AT-DAP-18", "AT-DAP-19", "AT-DAP-20", "AT-AMB-19")
def test_debuggers_that_need_ptrace_need_a_relaxed_cage(adapter: PlannedAdapter) -> None:
    project = adapter.project
    kinds: dict[str, dict[str, Any]] = {
        "silent": {},
        "tracing": {"requires_ptrace": True},
        "harmless": {"requires_ptrace": False},
    }
    named = [
        {"runtime": name, "type": "x", "adapter": ["/bin/true"], **more}
        for name, more in kinds.items()
    ]
    coder = agent("debug", cage=caged("ro:.", capabilities=["exec"]))
    loose = agent("debug", cage=caged("ro:.", capabilities=["exec"], seccomp="relaxed"))
    project.describe(
        cage="disabled",
        subagents={"coder": coder, "loose": loose},
        top={"dap": {"adapters": named}},
    )
    project.reload()

    def tried(who: str, runtime: str) -> dict[str, Any]:
        return Debugger(project, who).refusal("launch", runtime=runtime, script="./main.fake")

    for runtime in ("silent", "tracing"):
        refused = tried(CODER, runtime)
        assert refused["code"] == "dap_requires_relaxed_seccomp"
        assert refused["data"]["number"] == -32001
        assert "relaxed" in json.dumps(refused["data"])
        attach = {"runtime": runtime, "port": 5678}
        refused = Debugger(project, CODER).refusal("attach", **attach)
        assert refused["code"] in ("dap_requires_relaxed_seccomp", "capability_denied")
    started = [tried(CODER, "harmless")["code"]]
    started += [tried(path_of("loose"), runtime)["code"] for runtime in kinds]
    started += [tried("primary", runtime)["code"] for runtime in kinds]
    assert "dap_requires_relaxed_seccomp" not in started
    assert "capability_denied" not in started
    assert len(rows_of(project, "tool.denied")) >= 2


@whole("AT-DAP-26", "AT-PERM-12")
@pytest.mark.parametrize(
    ("allow", "reached"),
    [
        ([], []),
        (["allowed.test:5678"], ["allowed.test:5678"]),
        (["allowed.test:*"], ["allowed.test:5678", "allowed.test:99"]),
        (["*"], ["example.org:5678", "allowed.test:5678", "allowed.test:99"]),
    ],
)
def test_a_caged_caller_attaches_only_where_its_network_goes(
    adapter: PlannedAdapter, allow: list[str], reached: list[str]
) -> None:
    project = adapter.project
    cage = caged("ro:.", capabilities=["exec"], net={"allow": allow})
    named = {"runtime": "fake", "type": "x", "adapter": ["/bin/true"], "requires_ptrace": False}
    project.describe(
        subagents={"coder": agent("debug", cage=cage)}, top={"dap": {"adapters": [named]}}
    )
    project.reload()
    for target in ("example.org:5678", "allowed.test:5678", "allowed.test:99", "localhost:5678"):
        host, port = target.split(":")
        refused = Debugger(project, CODER).refusal(
            "attach", runtime="fake", port=int(port), host=host
        )
        assert (refused["code"] == "capability_denied") is (target not in reached), refused
        if target not in reached:
            assert target in json.dumps(refused["data"]["detail"])


@whole("AT-DAP-13", "AT-DAP-09")
def test_a_debugger_is_the_projects_the_operators_or_the_default_one(
    adapter: PlannedAdapter,
) -> None:
    project = adapter.project
    refused = adapter.refusal("launch", runtime="cobol", script="./main.fake")
    assert refused["code"] == "dap_adapter_not_found"
    assert refused["data"]["detail"]["runtime"] == "cobol"
    refused = adapter.refusal("launch", runtime="theirs", script="./main.fake")
    assert refused["code"] == "dap_adapter_not_found"
    detail = refused["data"]["detail"]
    assert (detail["runtime"], detail["command"]) == ("theirs", ["no-such"])
    assert detail["install"]
    own = {"runtime": "theirs", "type": "mine", "adapter": adapter.command}
    project.describe(cage="disabled", top={"dap": {"adapters": [own]}})
    project.reload()
    adapter.after("configurationDone", stopped("entry"))
    assert adapter.do("launch", runtime="theirs", script="./main.fake")["status"] == "stopped"
    adapter.do("disconnect")
    project.daemon.ask("PUT", f"/projects/{project.id}/trust", {"trusted": False})
    # Its agents only read now, so nothing starts anybody's debugger.
    assert "no-such" not in str(adapter.refusal("launch", runtime="theirs", script="./main.fake"))
    trust(project)
    assert adapter.do("launch", runtime="theirs", script="./main.fake")["status"] == "stopped"


@whole("AT-DAP-40", "AT-DAP-41", "AT-DAP-59")
def test_a_running_program_can_be_paused_and_not_inspected(adapter: PlannedAdapter) -> None:
    adapter.launched()
    adapter.stack(adapter.frame(0, "main", 2))
    assert adapter.do("continue")["status"] == "running"
    for action in ("stack_trace", "variables", "scopes", "step_over"):
        refused = adapter.refusal(action)
        assert (refused["code"], refused["data"]["number"]) == ("dap_not_stopped", -32000)
    assert adapter.refusal("evaluate", expression="1")["code"] == "dap_not_stopped"
    assert adapter.do("continue")["status"] == "running"
    adapter.after("pause", stopped("pause"))
    said = adapter.do("pause")
    assert (said["status"], said["stopped_reason"]) == ("stopped", "pause")
    assert said["location"] == {
        "path": "./main.fake",
        "line": 2,
        "column": 4,
        "source_preview": "line two",
    }
