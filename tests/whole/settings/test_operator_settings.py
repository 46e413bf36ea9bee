"""What the operator sets outside of projects, as a running daemon keeps to it; extras of tools."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.talk import Talk, asked, fresh, tool_answers

GUESTS = Path(__file__).parents[2] / "guests"
CONFIG = """\
[tools]
shells = ["python", "node"]
scrub_env = ["SECRET_KEY", "*_TOKEN"]
refuse_hard_links = true
protect_kaged = "all"
quotas = [
    { tools = "search.glob", calls = 3, per = "run" },
    { tools = "search.ast", calls = 2, per = "session" },
    { tools = "search.*", calls = 7, per = "session" },
]

[tools.limits]
glob_files = 2
search_output_kb = 16
shell_seconds = 1
shell_output_kb = 64

[lsp.servers.python]
command = ["operators-server", "--stdio"]
"""
CODER = "primary.subagents.coder"


class Ear(BaseHTTPRequestHandler):
    """A model server that only writes down which key it was shown."""

    keys: list[str] = []  # noqa: RUF012 - one server, one list

    def do_POST(self) -> None:
        """Note the key and refuse; what is left unread would reset the answer."""
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.keys.append(str(self.headers["Authorization"]))
        self.send_response(401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
        """Swallow the request log."""


@pytest.fixture(scope="module")
def ear() -> Iterator[str]:
    """Yield the address of a server that notes the keys it is shown."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ear)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def operated(module_path: Path, model: ModelServer, ear: str) -> Iterator[Daemon]:
    """Yield a daemon whose operator has set this and that."""
    local = (
        model.local_toml()
        + f'[models.keyed]\nmodel = "openai:gpt-4o"\nbase_url = "{ear}"\nretries = 0\n'
        + 'api_key = "${KEY_OF_MINE}-and-$${more}"\n'
        + f'[models.broken]\nmodel = "openai:gpt-4o"\nbase_url = "{ear}"\n'
        + 'api_key = "${NOT_SET_ANYWHERE}"\n'
    )
    env = {
        "KEY_OF_MINE": "sk-from-the-environment",
        "SECRET_KEY": "scrubbed-1",
        "MY_TOKEN": "scrubbed-2",
        "HARMLESS": "kept",
    }
    made = Daemon(module_path / "o", config=CONFIG, local=local, env=env)
    made.start()
    yield made
    made.close()


@pytest.fixture
def own_project(operated: Daemon, tmp_path: Path) -> Project:
    """Return a project whose root has no cage, and a subagent that has one."""
    project = Project(tmp_path / "p")
    project.describe(
        cage="disabled",
        subagents={
            "coder": {
                "model": "default",
                "system_prompt": "You code.",
                "cage": {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]},
                "tools": {
                    name: {"enabled": True} for name in ("file.*", "edit.*", "search.*", "shell.*")
                },
            }
        },
    )
    return operated.load(project)


@whole("AT-BEY-08")
def test_calls_beyond_a_quota_are_refused_and_on_record(
    operated: Daemon, own_project: Project, model: ModelServer
) -> None:
    glob = ("search.glob", {"pattern": "*"})
    ast = ("search.ast", {"pattern": "x", "lang": "python"})
    talk = Talk(own_project, model)
    made = talk.use(glob, glob, glob, glob, ast, ("file.read", {"path": "."}))
    codes = [one["error"] and one["error"]["code"] for one in made]
    assert codes == [None, None, None, "quota_exceeded", None, None]
    (denied,) = operated.audit("tool.denied", project_id=own_project.id)
    assert denied["request_id"] == made[3]["request_id"]
    assert denied["data"]["error_code"] == "quota_exceeded"
    # Another run begins anew; a session does not.
    made = talk.use(glob, ast, ast)
    assert [bool(one["error"]) for one in made] == [False, False, True]
    # Every rule counts what fits it, and of those the tightest decides; a refusal uses up nothing.
    made = talk.use(glob, glob)
    assert [bool(one["error"]) for one in made] == [False, True]
    assert "search.*:7/session" in str(made[1]["error"])
    word = fresh("coder")
    model.play(word, call(*glob[:1], **glob[1]), call(*ast[:1], **ast[1]), say("ok"))
    talk.hear(call("agent-coder", message=word), say("ok"))
    assert "quota_exceeded" not in str(tool_answers(asked(model, word)[-1])), "counted by itself"


@whole("AT-BEY-09")
def test_limits_of_tools_are_the_operators(own_project: Project) -> None:
    for name in "abc":
        own_project.write(f"{name}.txt", f"{'needle ' * 20}\n" * 400)
    found = own_project.call("search.glob", pattern="*.txt")
    assert (len(found["files"]), found["truncated"]) == (2, True)
    found = own_project.call("search.grep", pattern="needle", output_mode="content")
    assert found["truncated"] is True
    assert 8 * 1024 < len(str(found["matches"])) < 24 * 1024
    loud = own_project.call("shell.bash", command="yes | head -c 300000")
    assert loud["truncated"] is True
    assert len(loud["stdout"]) < 66 * 1024
    slow = own_project.call("shell.bash", command="sleep 600", timeout=500_000)
    assert (slow["timed_out"], slow["exit_code"]) == (True, 137)


@whole("AT-BEY-09")
def test_limits_beyond_safe_bounds_keep_a_daemon_from_starting(tmp_path: Path) -> None:
    wrong = {
        "search_seconds": 601, "search_output_kb": 5000, "glob_files": 100_000,
        "shell_seconds": 0, "shell_output_kb": 1, "file_wait_seconds": 0,
        "web_seconds": 0,
    }  # fmt: skip
    lines = "".join(f"{key} = {value}\n" for key, value in wrong.items())
    daemon = Daemon(tmp_path / "bad", config=f"[tools.limits]\n{lines}")
    try:
        assert daemon.start(expect=False)["ready"] is False
        said = daemon.cli("daemon", "start", code=None)
        assert said.code != 0
        assert all(f"tools.limits.{key}" in daemon.log() for key in wrong), daemon.log()
    finally:
        daemon.close()


@whole("AT-BEY-10")
def test_scrubbed_variables_stay_with_the_daemon(own_project: Project) -> None:
    said = own_project.call("shell.bash", command="env")["stdout"]
    assert "scrubbed" not in said
    assert "HARMLESS=kept" in said
    caged = own_project.call("shell.bash", CODER, command="env")["stdout"]
    assert "scrubbed" not in caged
    assert "HARMLESS" not in caged


@whole("AT-BEY-11")
def test_further_shells_run_programs_with_the_same_rights(own_project: Project) -> None:
    code = "import sys\nprint('it is', \"$HOME\", 6 * 7)\nsys.exit(3)"
    for agent in ("primary", CODER):
        ran = own_project.call("shell.python", agent, code=code)
        assert (ran["stdout"], ran["exit_code"]) == ("it is $HOME 42\n", 3)
    ran = own_project.call("shell.node", code="console.log([1, 2].map(n => n * 2).join())")
    assert (ran["stdout"], ran["exit_code"]) == ("2,4\n", 0)
    outside = own_project.call(
        "shell.python", CODER, code="import os\nprint(os.path.exists('/home'))"
    )
    assert outside["stdout"] == "False\n"
    assert own_project.fail("shell.python", code="  ")["code"] == "invalid_params"


@whole("AT-BEY-11", "AT-BEY-18")
def test_shells_that_nobody_enabled_and_namespaces_of_later_are_not_there(
    project: Project,
) -> None:
    for name in ("shell.python", "shell.node"):
        assert project.fail(name, code="1")["code"] == "tool_not_found"
    for namespace in ("compute", "project", "discover", "media", "job"):
        refused = project.fail(f"{namespace}.fetch", url="http://example.org")
        assert (refused["code"], refused["data"]["number"]) == ("tool_not_found", -32601)


@whole("AT-BEY-19")
def test_no_agent_changes_its_own_cage(own_project: Project) -> None:
    file = ".kaged/project.yaml"
    before = own_project.read(file)
    for agent in ("primary", CODER):
        own_project.call("file.read", agent, path=file)
        for tool, params in (
            ("edit.text", {"path": file, "old_string": "cage", "new_string": "cafe"}),
            ("file.write", {"path": file, "content": "x"}),
            ("file.create", {"path": ".kaged/more.yaml", "content": "x"}),
        ):
            refused = own_project.fail(tool, agent, **params)
            assert refused["code"] == "capability_denied", (agent, tool)
        own_project.call("file.create", agent, path=f"{agent[-3:]}.txt", content="x")
    own_project.call("shell.bash", CODER, command=f"echo x >> {file}; rm -rf .kaged; true")
    assert own_project.read(file) == before
    assert [one.name for one in (own_project.root / ".kaged").iterdir()] == ["project.yaml"]


@whole("AT-BEY-20")
def test_a_file_with_a_second_name_is_refused_to_a_caged_agent(
    own_project: Project, tmp_path: Path
) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("s3cret\n", encoding="utf-8")
    os.link(outside, own_project.root / "twin.txt")
    own_project.write("own.txt", "mine\n")
    for tool, params in (("file.read", {}), ("file.write", {"content": "x"})):
        refused = own_project.fail(tool, CODER, path="twin.txt", **params)
        assert refused["code"] == "capability_denied"
        assert "s3cret" not in str(refused)
    found = own_project.call("search.grep", CODER, pattern="s3cret", output_mode="content")
    assert "s3cret" not in str(found["matches"])
    assert own_project.call("file.read", CODER, path="own.txt")["content"] == "1: mine"
    assert own_project.call("file.read", path="twin.txt")["content"] == "1: s3cret"
    assert outside.read_text(encoding="utf-8") == "s3cret\n"


@whole("AT-BEY-20")
def test_otherwise_a_second_name_is_a_file_like_others(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "other.txt"
    outside.write_text("plain\n", encoding="utf-8")
    os.link(outside, project.root / "twin.txt")
    assert project.call("file.read", path="twin.txt")["content"] == "1: plain"


@whole("AT-BEY-15")
def test_calls_are_counted_per_tool_and_agent(operated: Daemon, own_project: Project) -> None:
    own_project.write("a.txt", "x\n")
    for agent in ("primary", CODER, "primary"):
        own_project.call("file.read", agent, path="a.txt")
    own_project.fail("file.read", path="nope.txt")

    def series(**wanted: str) -> list[dict[str, Any]]:
        query = "&".join(f"{key}={value}" for key, value in wanted.items())
        return list(operated.get(f"/tools/stats?project_id={own_project.id}&{query}")["series"])

    (mine,) = series(agent="primary", tool="file.read")
    assert (mine["calls"], mine["failed"], mine["denied"]) == (3, 1, 0)
    assert mine["errors"] == {"file_not_found": 1}
    assert mine["error_rate"] == round(1 / 3, 4)
    assert sum(mine["latency_ms"].values()) == 3
    assert [one["calls"] for one in series(agent=CODER)] == [1]
    own_project.call("file.read", path="a.txt")
    assert series(agent="primary", tool="file.read")[0]["calls"] == 4
    labels = f'agent="primary",outcome="ok",project="{own_project.id}",tool="file.read"'
    text = operated.client.get("/metrics").text
    assert f"kaged_tool_calls_total{{{labels}}} 3.0" in text


@whole("AT-DSL-19", "AT-AMB-48")
def test_secrets_come_from_the_environment_by_way_of_local_toml(operated: Daemon) -> None:
    Ear.keys.clear()
    said = operated.post("/models/check", {"alias": "keyed"})
    assert said["ok"] is False
    assert Ear.keys == ["Bearer sk-from-the-environment-and-${more}"]
    shown = {one["alias"]: one for one in operated.get("/models")["models"]}
    assert "sk-from" not in str(shown)
    # A variable that is not set puts its own section out of use, and no other.
    assert shown["broken"]["usable"] is False
    assert "NOT_SET_ANYWHERE" in str(shown["broken"]["problems"])
    assert shown["default"]["usable"] is True


@whole("AT-DSL-19")
@pytest.mark.parametrize("key", ["api_key", "token", "password", "client_secret"])
def test_secrets_are_refused_in_a_project_file(operated: Daemon, tmp_path: Path, key: str) -> None:
    project = Project(tmp_path / "p", plugins={"m": {"package": "@k/m", "config": {key: "s3cret"}}})
    refused = operated.error("POST", "/projects", {"root": str(project.root), "trust": True})
    assert refused["code"] == "config_invalid"
    (problem,) = refused["data"]["problems"]
    assert problem["key_path"] == f"primary.plugins.m.config.{key}"
    assert "local.toml" in problem["fix"]
    assert "s3cret" not in str(refused)


@whole("AT-DSL-19", "AT-DSL-21", "AT-AMB-48")
def test_a_projects_own_commands_count_once_the_operator_trusts_it(
    operated: Daemon, tmp_path: Path
) -> None:
    mark = tmp_path / "was-run"
    program = [sys.executable, "-c", f"open({str(mark)!r}, 'w').close()"]
    project = Project(tmp_path / "p")
    project.describe(
        cage="disabled",
        top={
            "lsp": {"servers": [{"lang": "python", "command": program}]},
            "dap": {"adapters": [{"runtime": "python", "adapter": program, "type": "python"}]},
        },
    )
    project.write("a.py", "x = 1\n")
    project.id = operated.post("/projects", {"root": str(project.root)})["id"]
    project.daemon = operated

    def server(language: str) -> dict[str, Any]:
        listed = project.get("/lsp")["servers"]
        return next(one for one in listed if one["language"] == language)

    # Untrusted: the operator's server where there is one, else the one that is built in.
    assert server("python")["command"] == ["operators-server", "--stdio"]
    assert server("go")["command"] == ["gopls"]
    for tool, wanted in (
        ("code.lsp", {"action": "diagnostics", "path": "a.py"}),
        ("debug", {"action": "launch", "runtime": "python", "script": "a.py"}),
    ):
        assert project.fail(tool, **wanted)["code"] == "tool_not_found"
    assert not mark.exists()
    operated.cli("project", "trust", project.id, "--yes")
    assert server("python")["command"] == program
    assert server("go")["command"] == ["gopls"]
    project.fail("code.lsp", action="diagnostics", path="a.py")
    wait_for(mark.exists)
    mark.unlink()
    assert project.fail("debug", action="launch", runtime="python", script="a.py")
    wait_for(mark.exists)
    operated.cli("project", "trust", project.id, "--revoke")
    assert server("python")["command"] == ["operators-server", "--stdio"]
