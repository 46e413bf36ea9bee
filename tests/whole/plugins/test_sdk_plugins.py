"""Plugins written with the SDKs, and in plain shell, installed and used as anybody's are.

The same sample in Python, and in JavaScript on Node and on Bun: it runs in its cage, and everything
it does is seen through the daemon.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin import PluginFolder
from whole.harness.plugin_hooks import Talk
from whole.harness.plugin_store import TOOL
from whole.harness.project import Project

ROOT = Path(__file__).parents[3]
GUESTS = ROOT / "tests" / "guests"
BUN = ROOT / "build" / "tools" / "node_modules" / ".bin" / "bun"
METHODS = [
    "echo.say", "slow.wait", "slow.count", "gate.open", "fail.now", "print.noise", "store.all",
    "tell.all",
]  # fmt: skip
SCHEMA = {"type": "object", "properties": {"mood": {"type": "string", "default": "calm"}}}
LOCAL = "\n[plugins.sdk-sample-refuses]\nbad = true\n"  # until it is uninstalled


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that knows where Bun is."""
    config = f'[sandbox.runtimes]\nbun = "{BUN.resolve()}"\n'
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


def write(daemon: Daemon, root: Path, language: str, **manifest: Any) -> PluginFolder:
    """Return the sample's folder in a language."""
    file, program = ("main.py", "python3") if language == "python" else ("main.mjs", language)
    declared: dict[str, Any] = {
        "name": "sdk-sample",
        "command": ["/usr/bin/env", program, f"./{file}"],
        "capabilities": ["kaged:storage:write"],
        "methods": METHODS,
        "notifications": ["catalog.updated"],
        "tools": [TOOL, {**TOOL, "name": "forget"}],
        "hooks": ["on_session_start"],
        "config_schema": SCHEMA,
        **manifest,
    }
    one = PluginFolder(daemon, root, None, **declared)
    (root / "main.py").unlink()
    guest = "sdk_sample.py" if language == "python" else "sdk_sample.mjs"
    shutil.copy(GUESTS / guest, root / file)
    return one


@pytest.fixture(scope="module", params=["python", "node", "bun"])
def sample(
    request: pytest.FixtureRequest, daemon: Daemon, module_path: Path
) -> Iterator[PluginFolder]:
    """Yield the running sample in one language after the other."""
    one = write(daemon, module_path / str(request.param), str(request.param))
    state = one.run()
    try:
        assert state["state"] == "running", state
        yield one
    finally:
        daemon.ask("DELETE", "/plugins/sdk-sample?force=true")


def since(sample: PluginFolder, *events: str) -> list[dict[str, Any]]:
    """Return its rows since this one was installed."""
    start = sample.audit("plugin.installed")[-1]["seq"]
    return [row for row in sample.audit(*events) if row["seq"] > start]


@whole("PH-SDK-02", "PH-SDK-04", "PH-SDK-05", "PH-SDK-06")
def test_a_sample_greets_is_called_and_sees_the_context_apart(sample: PluginFolder) -> None:
    state = sample.state()
    assert set(METHODS) <= set(state["methods"])
    assert state["notifications"] == ["catalog.updated"]
    got = sample.call("echo.say", filter="web\n")
    assert got["params"] == {"filter": "web\n"}
    context = got["context"]
    assert context.pop("request_id").startswith("req_")
    assert context == {
        "operator_id": "operator",
        "project_id": None,
        "agent_path": None,
        "session_id": None,
    }
    assert got["user_id"] == "operator"
    failed = sample.fail("fail.now")
    assert failed["message"] == "out of cheese"
    assert sample.state()["metrics"]["errors"] == {"-32050": 1}


@whole("PH-SDK-07", "PH-SDK-20")
def test_what_is_sent_right_after_the_start_waits_for_its_time(sample: PluginFolder) -> None:
    exactly(1, lambda: since(sample, "plugin.notification"))
    assert since(sample, "plugin.protocol_violation", "plugin.stdout_noise") == []
    order = [row["event"] for row in since(sample, "plugin.initialized", "plugin.notification")]
    assert order == ["plugin.initialized", "plugin.notification"]
    if sample.manifest["command"][1] != "python3":
        lines = sample.daemon.get(f"/plugins/{sample.name}/logs")["lines"]
        assert any("asked early" in line for line in lines), lines
    assert sample.call("tell.all", n=1) == "told"
    rows = exactly(2, lambda: since(sample, "plugin.notification"))
    assert {row["data"]["notification_type"] for row in rows} == {"catalog.updated"}


@whole("PH-SDK-08")
def test_storage_calls_come_back_with_the_hosts_answers(sample: PluginFolder) -> None:
    first = sample.call("store.all")
    second = sample.call("store.all")
    assert first == {"touched": 1, "rows": [{"a": "x"}], "tables": ["t"], "denied": -32003}
    assert len(second["rows"]) == 2


@whole("PH-SDK-09", "PH-SDK-14", "PH-SDK-15")
def test_prints_and_log_lines_stay_off_the_wire(sample: PluginFolder) -> None:
    assert sample.call("print.noise") == "printed"
    lines = wait_for(
        lambda: [
            line
            for line in sample.daemon.get(f"/plugins/{sample.name}/logs")["lines"]
            if "an ordinary line" in line
        ]
    )
    found = yaml.safe_load(lines[-1])
    assert (found["msg"], found["shelf"]) == ("an ordinary line", 3)
    everything = sample.daemon.get(f"/plugins/{sample.name}/logs")["lines"]
    assert any("this is not JSON" in line for line in everything)
    assert since(sample, "plugin.stdout_noise") == []


@whole("PH-SDK-11", "PH-SDK-13")
def test_slow_calls_overlap_and_others_are_answered_meanwhile(sample: PluginFolder) -> None:
    with ThreadPoolExecutor(10) as pool:
        slow = [pool.submit(sample.call, "slow.wait", n=number) for number in range(10)]
        wait_for(lambda: sample.call("slow.count") == 10)
        assert not any(one.done() for one in slow)
        assert sample.call("gate.open") == "open"
        assert [one.result() for one in slow] == [{"n": number} for number in range(10)]
    assert since(sample, "plugin.health_fail") == []


@whole("PH-SDK-17", "PH-SDK-05", "PH-SDK-12")
def test_tools_hooks_and_configs_reach_their_handlers(
    sample: PluginFolder, project: Project, model: ModelServer
) -> None:
    declared = {"package": "sdk-sample", "config": {"mood": "wild"}}
    project.describe(plugins={"sdk-sample": declared})
    project.reload()
    got = project.call("sdk-sample.retain", content="x")
    assert got["params"] == {"content": "x"}
    assert (got["context"]["project_id"], got["context"]["agent_path"]) == (project.id, "primary")
    assert got["config"] is None
    assert got["configs"] == [{"mood": "calm"}, {"mood": "wild"}]
    unknown = project.fail("sdk-sample.forget", content="x")
    assert unknown["data"]["number"] == -32601
    session = Talk(project, model)
    prompt = session.prompt(session.say("Hi"))
    assert prompt.startswith("<plugin:sdk-sample>hello primary</plugin:sdk-sample>")
    sample.daemon.ask("DELETE", f"/projects/{project.id}")


@whole("PH-SDK-10")
def test_a_shutdown_is_answered_with_an_orderly_end(sample: PluginFolder) -> None:
    sample.daemon.post("/plugins/sdk-sample/disable")
    lines = sample.daemon.get("/plugins/sdk-sample/logs")["lines"]
    assert any("flushed" in line for line in lines), lines
    (row,) = since(sample, "plugin.stopped")
    assert row["data"]["exit_code"] == 0
    assert since(sample, "plugin.killed", "plugin.crashed") == []
    sample.daemon.post("/plugins/sdk-sample/enable")


@whole("PH-SDK-04", "PH-SDK-12")
@pytest.mark.parametrize("language", ["python", "node"])
def test_a_wrong_greeting_and_a_refused_config_end_the_start(
    daemon: Daemon, tmp_path: Path, language: str
) -> None:
    wrong = write(daemon, tmp_path / "wrong", language, name="sdk-other", tools=[])
    state = wrong.run()
    assert state["state"] == "failed"
    assert "sdk-other" in state["note"] or "plugin_name" in state["note"], state["note"]
    system = {"type": "object", "properties": {"bad": {"type": "boolean"}}}
    refuses = write(
        daemon, tmp_path / "refuses", language,
        name="sdk-sample-refuses", tools=[], config_schema=None, system_config_schema=system,
    )  # fmt: skip
    file = next(refuses.root.glob("main.*"))
    text = file.read_text(encoding="utf-8").replace('"sdk-sample"', '"sdk-sample-refuses"')
    file.write_text(text, encoding="utf-8")
    local = (daemon.home / "local.toml").read_text(encoding="utf-8")
    daemon.write("local.toml", local + LOCAL)
    state = refuses.run()
    assert state["state"] == "failed"
    assert "bad is set" in state["note"], state["note"]
    for one in (wrong, refuses):
        daemon.ask("DELETE", f"/plugins/{one.name}")


@whole("PH-SDK-18")
@pytest.mark.parametrize("language", ["python", "node"])
def test_the_config_of_a_call_is_offered_beside_the_parameters(
    daemon: Daemon, project: Project, tmp_path: Path, language: str
) -> None:
    name = f"sdk-per-call-{language}"
    one = write(daemon, tmp_path / "one", language, name=name, per_call_config=True)
    file = next(one.root.glob("main.*"))
    text = file.read_text(encoding="utf-8").replace('"sdk-sample"', f'"{name}"')
    file.write_text(text, encoding="utf-8")
    assert one.run()["state"] == "running", one.state()
    project.describe(plugins={name: {"package": name, "config": {"mood": "wild"}}})
    project.reload()
    got = project.call(f"{name}.retain", content="x")
    assert got["params"] == {"content": "x"}
    assert got["config"] == {"mood": "wild"}


def blocks(language: str) -> str:
    """Return the one code block of a language in the page about shell plugins."""
    page = ROOT / "docs" / "how-to" / "write-a-shell-plugin.md"
    found = re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@whole("PH-SDK-01", "PH-SDK-16")
def test_the_documented_shell_plugin_runs_without_an_sdk(daemon: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    manifest = yaml.safe_load(blocks("yaml"))
    assert any(str(entry).startswith("exec:jq:") for entry in manifest["capabilities"])
    manifest["health_interval_sec"] = 5
    manifest["tools"] = [TOOL]  # not in the script: it answers as the page says
    (folder / "kaged-plugin.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    (folder / "main.sh").write_text(blocks("bash"), encoding="utf-8")
    name = "my-simple-adapter"
    shown = daemon.post("/plugins/preview", {"path": str(folder)})
    daemon.post("/plugins", {"path": str(folder), "digest": shown["digest"]})
    assert daemon.post(f"/plugins/{name}/enable")["state"] == "running"
    got = daemon.post(f"/plugins/{name}/call/status.get", {})
    assert got["result"] == {"status": "fine"}
    project = daemon.load(Project(tmp_path / "p", plugins={name: {"package": name}}))
    assert project.fail(f"{name}.retain", content="x")["data"]["number"] == -32601
    daemon.post(f"/plugins/{name}/disable")
    rows = [row for row in daemon.audit("plugin.stopped") if row["data"]["name"] == name]
    assert [row["data"]["exit_code"] for row in rows] == [0]
    bad = daemon.audit("plugin.killed", "plugin.stdout_noise", "plugin.health_fail")
    assert [row for row in bad if row["data"]["name"] == name] == []


@whole("PH-SDK-19")
@pytest.mark.parametrize("runtime", ["node", "bun"])
def test_the_documents_javascript_sample_runs_in_its_cage(
    daemon: Daemon, tmp_path: Path, runtime: str
) -> None:
    fields = {"preset_dir": {"type": "string", "default": "/srv/presets"}}
    one = PluginFolder(
        daemon, tmp_path / "pi",
        name="oh-my-pi",
        version="1.4.2",
        command=["/usr/bin/env", runtime, "./index.mjs"],
        capabilities=["kaged:storage:write"],
        methods=["presets.list", "presets.search", "preset.install", "preset.uninstall"],
        notifications=["catalog.updated"],
        config_schema={"type": "object", "properties": fields},
    )  # fmt: skip
    sample = ROOT / "tests" / "fakes" / "sample_plugins" / "oh-my-pi.mjs"
    shutil.copy(sample, one.root / "index.mjs")
    assert one.run()["state"] == "running", one.state()
    assert one.call("presets.list", filter="web") == {
        "presets": ["web-server", "web-cache"],
        "dir": "/srv/presets",
        "params": {"filter": "web"},
    }
    assert one.call("presets.search", query="mail") == {"results": ["mail"]}
    assert one.call("preset.install", name="web-x") == {"installed": True}
    assert one.call("preset.uninstall") == {
        "rows": [{"id": "p1", "name": "web-x"}],
        "tables": ["presets"],
    }
    assert one.fail("no.such")["status"] == 404
    told = one.audit("plugin.notification")[-1]
    assert told["data"]["notification_type"] == "catalog.updated"
    daemon.post("/plugins/oh-my-pi/disable")
    lines = daemon.get("/plugins/oh-my-pi/logs")["lines"]
    for text in ("Scanned 2 presets", "flushed"):
        assert any(text in line for line in lines), lines
    assert one.audit("plugin.stdout_noise", "plugin.killed", "plugin.crashed") == []
    daemon.ask("DELETE", "/plugins/oh-my-pi")


@whole("PH-SDK-02", "PH-SDK-16")
@pytest.mark.parametrize("language", ["python", "node", "bash"])
def test_a_plugin_that_the_command_creates_runs_as_it_is(
    daemon: Daemon, tmp_path: Path, language: str
) -> None:
    name = f"fresh-{language}"
    daemon.cli("plugin", "new", name, "--lang", language, cwd=tmp_path)
    shown = daemon.post("/plugins/preview", {"path": str(tmp_path / name)})
    daemon.post("/plugins", {"path": str(tmp_path / name), "digest": shown["digest"]})
    state = daemon.post(f"/plugins/{name}/enable")
    assert state["state"] == "running", state
    assert state["methods"] or state["tools"]
