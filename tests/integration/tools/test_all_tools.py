"""Every built-in tool of a real daemon in one project: who may use it, and what it lets out."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fakes.running_daemon import InProcess, daemon_in_process, make_project
from kaged.audit.events import EVENT_TYPES
from kaged.config.jsonschemas import compile_schema
from kaged.sessions.agent_tools import AgentToolService
from kaged.tools import ToolSource
from requirements import requirement

CANARY = "CANARY_OF_THE_DATA"
NAMES = ("file.*", "edit.*", "search.*", "code.*", "debug", "shell.*")
ALL = json.dumps({name: {"enabled": True} for name in NAMES})


def agent(key: str, cage: str) -> str:
    return f"    {key}: {{model: m, system_prompt: p, tools: {ALL}, cage: {cage}}}\n"


PROJECT = f"""\
project: sample
primary:
  model: m
  system_prompt: p
  tools: {ALL}
  subagents:
""" + "".join(
    agent(key, cage)
    for key, cage in {
        "half": "{fs: [{mode: ro, path: ./src}], capabilities: [exec, shell]}",
        "empty": "{fs: [], capabilities: [exec, shell]}",
        "plain": "{fs: [{mode: ro, path: ./src}, {mode: rw, path: ./out}], "
        "capabilities: [exec, shell], net: {allow: ['localhost:1']}}",
        "relaxed": "{fs: [{mode: ro, path: ./src}, {mode: rw, path: ./out}], "
        "capabilities: [exec, shell], seccomp: relaxed, net: {allow: ['localhost:1']}}",
        "whole": "{fs: [{mode: rw, path: .}], capabilities: [exec]}",
        "free": "disabled",
    }.items()
)
FILES = {
    "src/lib.py": "def greet(name: str) -> str:\n    return name\n",
    "src/main.py": "from src.lib import greet\n\nprint(greet('x'))\n",
    "src/loop.py": "total = 0\nfor i in range(3):\n    total += i\nprint(total)\n",
    "out/use.py": "from src.lib import greet\n\ngreet('o')\n",
    # Outside every cage: uses the same function, has an error, and words that must not leak.
    "data/secret.py": "from src.lib import greet\n\n"
    f"{CANARY} = greet(7)\nclass {CANARY}Type: ...\n",
}
CONFIG = """\
[daemon]
bind = "127.0.0.1:0"
[lsp.servers.python]
command = {ty}
[dap.adapters.tracing]
command = ["/bin/true"]
type = "tracing"
requires_ptrace = true
[dap.adapters.harmless]
command = ["/bin/true"]
type = "harmless"
requires_ptrace = false
"""


class AllTools:
    """A daemon with one project in which every built-in tool works."""

    def __init__(self, inside: InProcess, root: Path, project_id: str) -> None:
        self.inside = inside
        self.root = root
        self.id = project_id

    @property
    def tool_service(self) -> AgentToolService:
        tool_service = self.inside.daemon.services.subsystems.tools
        assert isinstance(tool_service, AgentToolService)
        return tool_service

    async def post(self, tool: str, key: str, params: dict[str, Any]) -> Any:
        path = key if key == "primary" else f"primary.subagents.{key}"
        return await self.inside.client.post(
            f"/api/v1/projects/{self.id}/tools/call",
            json={"agent": path, "tool": tool, "params": params},
            timeout=120,
        )

    async def call(self, tool: str, key: str = "primary", **params: Any) -> Any:
        answer = await self.post(tool, key, params)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    async def code(self, tool: str, key: str = "primary", **params: Any) -> str:
        """Return the error code of a call, or `ok`."""
        answer = await self.post(tool, key, params)
        return "ok" if answer.status_code == 200 else str(answer.json()["error"]["code"])

    async def events(self, name: str) -> list[dict[str, Any]]:
        """Return the audit rows of a name, oldest first."""
        await self.inside.daemon.services.audit.flush()
        answer = await self.inside.client.get(f"/api/v1/audit?limit=200&event={name}")
        assert answer.status_code == 200, answer.text
        return answer.json()["items"][::-1]


@pytest.fixture
async def tool_service(tmp_path: Path) -> AsyncIterator[AllTools]:
    tmp_path.chmod(0o755)
    root = make_project(tmp_path / "project", PROJECT)
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True, mode=0o755)
        (root / name).write_text(text, encoding="utf-8")
    ty = Path(sys.executable).parent / "ty"
    assert ty.exists(), "ty is missing; run scripts/setup --tests"
    config = CONFIG.format(ty=json.dumps([str(ty), "server"]))
    async with daemon_in_process(tmp_path / "home", config=config) as inside:
        answer = await inside.client.post(
            "/api/v1/projects", json={"root": str(root), "trust": True}
        )
        assert answer.status_code == 201, answer.text
        yield AllTools(inside, root, answer.json()["id"])


@requirement("AT-PERM-08")
async def test_every_path_of_a_call_is_checked(tool_service: AllTools) -> None:
    outside = "data/secret.py"
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("search.ast", "plain", {"pattern": "$A", "lang": "python", "paths": ["src", "data"]}),
        ("code.lsp", "plain", {"action": "rename_file", "path": "out/use.py",
                               "new_path": "data/use.py"}),
        ("code.lsp", "plain", {"action": "rename_file", "path": outside, "new_path": "out/x.py"}),
        ("debug", "plain", {"action": "launch", "runtime": "python", "script": outside}),
        ("debug", "plain", {"action": "launch", "runtime": "python", "script": "src/loop.py",
                            "cwd": "data"}),
        ("shell.bash", "plain", {"command": "true", "cwd": "data"}),
        ("edit.ast", "plain", {"rewrites": {"greet($A)": "hi($A)"}, "path": "data",
                               "dry_run": False}),
    ]  # fmt: skip
    before = {name: (tool_service.root / name).read_text("utf-8") for name in FILES}
    for tool, key, params in calls:
        code = await tool_service.code(tool, key, **params)
        assert code in {"capability_denied", "rename_scope_exceeds_cage"}, (tool, params)
    # Files that only the work itself finds count as well: src is read-only for this agent.
    said = await tool_service.post(
        "edit.ast",
        "plain",
        {"rewrites": {"greet($A)": "hi($A)"}, "path": ".", "lang": "python", "dry_run": False},
    )
    after = {name: (tool_service.root / name).read_text("utf-8") for name in FILES}
    changed = {name for name in FILES if after[name] != before[name]}
    assert changed <= {"out/use.py"}, said.text


@requirement("AT-PERM-22")
async def test_code_intelligence_in_the_columns_of_the_table(tool_service: AllTools) -> None:
    greet = {"path": "src/lib.py", "line": 1, "symbol": "greet"}
    for key in ("free", "plain", "relaxed"):
        uses = await tool_service.call("code.lsp", key, action="references", **greet)
        outside = [one for one in uses["references"] if one["path"].startswith("./data")]
        assert outside, key
        for one in outside:
            assert bool(one.get("outside_cage")) is (key != "free")
            assert ("preview" in one) is (key == "free")
        for action in ("definition", "hover"):
            assert await tool_service.code("code.lsp", key, action=action, **greet) == "ok"
    # A rename touches src (read-only) and data (not there at all for them).
    for key in ("plain", "relaxed"):
        code = await tool_service.code(
            "code.lsp", key, action="rename", path="out/use.py", line=3, symbol="greet",
            new_name="hello",
        )  # fmt: skip
        assert code == "rename_scope_exceeds_cage"
        assert "hello" not in (tool_service.root / "out/use.py").read_text("utf-8")
    done = await tool_service.call("code.lsp", "whole", action="rename", new_name="hello", **greet)
    assert done["files_changed"] == 4
    assert "hello" in (tool_service.root / "data/secret.py").read_text("utf-8")


@requirement("AT-PERM-23")
async def test_debugging_in_the_columns_of_the_table(tool_service: AllTools) -> None:
    # `python` is a real debugger that needs no ptrace; `/bin/true` is none, which is found out
    # only where it may be started at all.
    for key in ("free", "plain", "relaxed"):
        launched = await tool_service.call(
            "debug", key, action="launch", runtime="python", script="src/loop.py",
            stop_on_entry=True,
        )  # fmt: skip
        assert launched["status"] == "stopped", launched
        await tool_service.call("debug", key, action="disconnect")
        for action, more in (("launch", {"script": "src/loop.py"}), ("attach", {"port": 1})):
            given = {"action": action, "runtime": "tracing", **more}
            code = await tool_service.code("debug", key, **given)
            assert (code == "dap_requires_relaxed_seccomp") is (key == "plain"), (key, action, code)
            given["runtime"] = "harmless"
            code = await tool_service.code("debug", key, **given)
            assert code not in {"dap_requires_relaxed_seccomp", "ok"}, (key, action)


@requirement("AT-AUD-12", "AT-AUD-13", "AT-AUD-28", "AT-EAST-23")
async def test_what_changes_files_is_on_record_and_what_fails_is_not(
    tool_service: AllTools,
) -> None:
    await tool_service.call("file.create", path="out/new.py", content="n = 1\n")
    await tool_service.call("file.write", path="out/new.py", content="n = 2\n")
    written = [one["data"] for one in await tool_service.events("file.written")]
    assert [(one["path"], one["bytes"], one["caller"]) for one in written] == [
        ("./out/new.py", 6, "primary")
    ] * 2
    await tool_service.call("edit.text", path="out/new.py", old_string="2", new_string="3")
    rewrites = {"greet($A)": "greet(($A))"}
    dry: dict[str, Any] = {"rewrites": rewrites, "path": ".", "lang": "python"}
    preview = await tool_service.call("edit.ast", **dry, dry_run=True)
    touched = {one["path"] for one in preview["changes"]} if "changes" in preview else set()
    assert len(await tool_service.events("file.edited")) == 1
    await tool_service.call("edit.ast", **dry, dry_run=False)
    edited = [one["data"] for one in await tool_service.events("file.edited")]
    by_path = {one["path"]: one["replacements"] for one in edited}
    assert by_path["./out/new.py"] == 1
    assert {"./src/main.py", "./out/use.py", "./data/secret.py"} | touched <= set(by_path)
    assert all(one["replacements"] == 1 and one["caller"] == "primary" for one in edited)
    count = len(edited)
    await tool_service.call(
        "code.lsp", action="rename", path="src/lib.py", line=1, symbol="greet", new_name="hey"
    )
    renamed = [one["data"] for one in await tool_service.events("file.edited")][count:]
    assert {one["path"]: one["replacements"] for one in renamed} == {
        "./src/lib.py": 1, "./src/main.py": 2, "./out/use.py": 2, "./data/secret.py": 2,
    }  # fmt: skip
    await tool_service.call(
        "code.lsp", action="rename_file", path="out/new.py", new_path="out/newer.py"
    )
    assert (await tool_service.events("file.written"))[-1]["data"]["path"] == "./out/newer.py"
    # Nothing that was refused or only tried is on record as done.
    written_before = len(await tool_service.events("file.written"))
    edited_before = len(await tool_service.events("file.edited"))
    await tool_service.code("file.write", "half", path="src/main.py", content="x")
    await tool_service.code("file.write", path="src/main.py/x", content="x")
    await tool_service.code("file.create", path="src/main.py", content="x")
    await tool_service.code("edit.text", path="src/main.py", old_string="not there", new_string="x")
    await tool_service.code(
        "code.lsp", "plain", action="rename", path="out/use.py", line=3, symbol="hey", new_name="q"
    )
    await tool_service.code(
        "code.lsp", "plain", action="rename_file", path="out/use.py", new_path="data/u.py"
    )
    assert len(await tool_service.events("file.written")) == written_before
    assert len(await tool_service.events("file.edited")) == edited_before


@requirement("AT-REG-07", "AT-DISP-19", "AT-AUD-01")
async def test_every_result_is_plain_json_of_the_promised_shape(tool_service: AllTools) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("file.read", {"path": "src/main.py"}),
        ("file.write", {"path": "src/main.py", "content": FILES["src/main.py"]}),
        ("file.create", {"path": "out/fresh.py", "content": "x = 1\n"}),
        ("edit.text", {"path": "out/fresh.py", "old_string": "1", "new_string": "2"}),
        ("edit.ast", {"rewrites": {"greet($A)": "greet(($A))"}, "lang": "python", "path": "."}),
        ("edit.ast", {"rewrites": {"greet($A)": "greet(($A))"}, "lang": "python", "path": "out",
                      "dry_run": False}),
        *[("search.grep", {"pattern": "greet", "output_mode": mode, "path": "."})
          for mode in ("content", "files_with_matches", "count")],
        ("search.glob", {"pattern": "**/*.py"}),
        ("search.ast", {"pattern": "greet($A)", "lang": "python"}),
        ("shell.bash", {"command": "printf '\\377\\000hello'"}),
        ("shell.bash", {"command": "exit 3"}),
        *[("code.lsp", {"action": action, "path": "src/lib.py", "line": 1, "symbol": "greet"})
          for action in ("definition", "references", "hover", "type_definition",
                         "code_actions", "implementation")],
        ("code.lsp", {"action": "diagnostics", "path": "."}),
        ("code.lsp", {"action": "symbols", "path": "src/lib.py"}),
        ("code.lsp", {"action": "status"}),
        ("code.lsp", {"action": "capabilities", "path": "src/lib.py"}),
        ("code.lsp", {"action": "rename", "path": "src/lib.py", "line": 1, "symbol": "greet",
                      "new_name": "hello"}),
        ("code.lsp", {"action": "rename_file", "path": "out/fresh.py", "new_path": "out/f2.py"}),
        ("code.lsp", {"action": "reload"}),
        ("debug", {"action": "launch", "runtime": "python", "script": "src/loop.py",
                   "stop_on_entry": True}),
        ("debug", {"action": "set_breakpoint", "path": "src/loop.py", "line": 3}),
        ("debug", {"action": "list_breakpoints"}),
        ("debug", {"action": "continue"}),
        *[("debug", {"action": action}) for action in
          ("threads", "stack_trace", "scopes", "step_over", "modules")],
        ("debug", {"action": "evaluate", "expression": "float('nan')"}),
        ("debug", {"action": "remove_breakpoint", "path": "src/loop.py", "line": 3}),
        ("debug", {"action": "disconnect"}),
        ("kaged.issue", {"action": "create", "title": "One", "body": "Text"}),
        ("kaged.issue", {"action": "list"}),
        ("kaged.issue", {"action": "get", "number": 1}),
        ("kaged.issue", {"action": "comment", "number": 1, "body": "More"}),
        ("kaged.issue", {"action": "transition", "number": 1, "to": "triaged"}),
        ("kaged.workflow.list", {}),
    ]  # fmt: skip
    used: set[str] = set()
    for tool, params in calls:
        result = await tool_service.call(tool, **params)
        entry = tool_service.tool_service.registry.get(tool)
        assert entry is not None
        assert entry.definition.source is ToolSource.BUILTIN
        compile_schema(entry.definition.returns).validate(result)
        text = json.dumps(result, allow_nan=False)
        # Project files go by './' paths; the program's own output is its own business.
        assert str(tool_service.root) not in text or tool == "debug", (tool, params)
        for place in _paths(result):
            own = not place.startswith("/") or place.startswith(f"{tool_service.root}/")
            assert place.startswith(("./", "<")) or not own, (tool, place)
        if params.get("action") == "diagnostics":
            assert result["count"] == len(result["diagnostics"])
        used.add(tool)
    await _check_record(tool_service)
    rest = set(tool_service.tool_service.registry.names()) - used
    assert rest == {
        "kaged.todo", "kaged.ask", "kaged.form", "kaged.checkpoint", "kaged.workflow.trigger",
        "kaged.workflow.status", "skill.load", "skill.run", "kaged.upload", "shell.jobs",
        "web.fetch",
    }  # fmt: skip  # their labs check the shape of every result (ToolLab.call_with)


async def _check_record(tool_service: AllTools) -> None:
    """Check that every row on record has the shape of its event."""
    await tool_service.inside.daemon.services.audit.flush()
    answer = await tool_service.inside.client.get("/api/v1/audit?limit=500")
    rows = answer.json()["items"]
    assert len(rows) > 100
    for row in rows:
        event = EVENT_TYPES[row["event"]]
        assert datetime.fromisoformat(row["timestamp"]).tzinfo is not None, row
        wanted = {field.name for field in event.fields if field.required}
        assert wanted <= set(row["data"]), row
        if row["event"].startswith(("tool.", "file.", "kaged.", "debug.")):
            assert row["project_id"] == tool_service.id, row
        if row["event"].startswith(("tool.", "file.", "kaged.")):
            assert str(row["request_id"]).startswith("req_"), row
    assert {"tool.called", "tool.completed", "file.written", "file.edited"} <= {
        row["event"] for row in rows
    }


def _paths(value: Any) -> list[str]:
    """Return every value of a result that stands under the name of a path."""
    found: list[str] = []
    if isinstance(value, dict):
        for name, one in value.items():
            if name in {"path", "file", "old_path", "new_path"} and isinstance(one, str) and one:
                found.append(one)
            else:
                found += _paths(one)
    elif isinstance(value, list):
        for one in value:
            found += _paths(one)
    return found
