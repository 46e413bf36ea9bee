"""What scripts and plugins may subscribe to happens in a running daemon, each of it.

One daemon as users start it, one project, and three spies that leave a file for everything that
they are called with: a script, a caged plugin and a policy plugin. What is declared is read from
the reference pages, so that an event which nothing fires fails here.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from fakes.mcp_lab import calculator
from fakes.running_daemon import (
    ANY_PORT,
    KAGED,
    DaemonProcess,
    environment,
    kaged,
    make_home,
    start_daemon,
)

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PATIENCE_S = 60.0
pytestmark = pytest.mark.timeout(400)

PROJECT = """\
version: 1
project: parity
primary:
  model: default
  system_prompt: You help.
  compaction: {strategy: summarize, threshold: 600}
  plugins:
    spy: {package: spy, hooks: [on_session_start, on_session_idle, pre_compact, post_compact]}
  tools:
    file.*: {enabled: true}
    "calc.*": {enabled: true}
"""

STORY = """\
turns:
  - when: {system: You sum up}
    repeat: true
    say: It was about counting.
  - when: {user: count}
    repeat: true
    say: I count.
    call: [{tool: calc.count, with: {upto: 2}}]
  - when: {user: read}
    repeat: true
    say: I read.
    call: [{tool: file.read, with: {path: a.txt}}]
  - repeat: true
    say: Done.
"""

SPY_SCRIPT = """\
for _, name in ipairs({NAMES}) do
  kage.on(name, function() kage.fs.write('fired/' .. name, 'yes') end)
end
kage.on('user_bash', function() end)
local function branch() kage.session.fork() end
kage.register_command{name='branch', description='Forks.', handler=branch}
"""

SPY_PLUGIN = '''\
#!/usr/bin/env python3
"""Leaves a file for every request and notification of the host. Needs the standard library only."""
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    method, request_id = message["method"], message.get("id")
    with open("FOLDER/" + method, "w") as file:
        file.write(line)
    if method == "initialize":
        result = {"name": "spy", "version": "1.0.0", "api_version": 1, "methods": [],
                  "notifications": [], "capabilities_used": []}
    else:
        result = {"config.update": {}, "ping": {"status": "ok"}}.get(method)
    if request_id is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}), flush=True)
    if method == "shutdown":
        break
'''

MANIFEST = """\
name: spy
version: 1.0.0
kaged_api: 1
description: Writes down what it is told.
command: [/usr/bin/env, python3, ./main.py]
capabilities: ["write:fs:FOLDER", "net:[]"]
health_interval_sec: 5
hooks: [on_session_start, on_session_idle, pre_compact, post_compact]
config_schema:
  type: object
  properties: {depth: {type: boolean, default: false}}
knobs:
  depth: {type: boolean, label: Deep, default: false, binds_to: config.depth}
"""

SPY_POLICY = '''\
"""Leaves a file for every hook that it is called for."""
from pathlib import Path
from cpex.framework import Plugin, PluginResult
from cpex.framework.decorator import hook


def _spy(name):
    async def look(self, payload, context):
        (Path(self.config.config["folder"]) / name).write_text("yes")
        return PluginResult()
    look.__name__ = name.replace(".", "_")
    return hook(name)(look)


Spy = type("Spy", (Plugin,), {name.replace(".", "_"): _spy(name) for name in NAMES})
'''


@dataclass(frozen=True, slots=True)
class Fired:
    """What each spy was called with, and what people were shown."""

    script: set[str]
    plugin: set[str]
    policy: set[str]
    warnings: list[str]
    log: str


def declared_events() -> set[str]:
    """Return the events of scripts, as the reference lists them."""
    page = (REFERENCE / "kage.md").read_text(encoding="utf-8")
    table = page.partition("| Event | Kind | Payload |")[2].partition("| Refused |")[0]
    return set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def declared_hooks(*, fired: bool) -> set[str]:
    """Return the hooks of policy plugins that the reference says the daemon fires, or does not."""
    page = (REFERENCE / "pipeline.md").read_text(encoding="utf-8")
    table = page.partition("\n## Hooks\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {
        name
        for row in rows
        if row.rstrip().endswith("| no |") is not fired
        for name in re.findall(r"`([\w.]+)`", row.split("|")[1])
    }


def until(done: Callable[[], bool], daemon: DaemonProcess) -> None:
    """Wait for it."""
    end = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end, daemon.log()[-3000:]
        time.sleep(0.1)


async def read_resource(home: Path, root: Path) -> None:
    """Read a resource of the outside server as an MCP client of an agent does."""
    words = [*KAGED[1:], "mcp", "--project", str(root), "--agent", "primary"]
    params = StdioServerParameters(command=KAGED[0], args=words, env=environment(home))
    async with Client(params) as client:
        listed = (await client.list_resources(cursor="sessions.0")).resources
        found = next(one for one in listed if "calc" in str(one.uri))
        assert (await client.read_resource(str(found.uri))).contents


@pytest.fixture(scope="module")
def fired(tmp_path_factory: pytest.TempPathFactory) -> Fired:
    """Run the daemon through everything that fires something; returns what the spies saw."""
    top = tmp_path_factory.mktemp("parity")
    home, root = make_home(top / "home"), top / "work"
    heard, seen = top / "heard", top / "seen"
    for folder in (home / "lua", root / ".kaged", root / "fired", heard, seen, top / "spy"):
        folder.mkdir(parents=True)
    (root / "a.txt").write_text("one two three\n" * 500, encoding="utf-8")
    (root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
    (home / "local.toml").write_text(
        '[models.default]\nmodel = "scripted:story.yaml"\n'
        '[models.other]\nmodel = "scripted:story.yaml"\n',
        encoding="utf-8",
    )
    (home / "local.toml").chmod(0o600)
    (home / "story.yaml").write_text(STORY, encoding="utf-8")
    names = ", ".join(f"'{name}'" for name in sorted(declared_events()))
    (home / "lua" / "spy.lua").write_text(SPY_SCRIPT.replace("NAMES", names), encoding="utf-8")
    (top / "spy" / "main.py").write_text(SPY_PLUGIN.replace("FOLDER", str(heard)), encoding="utf-8")
    (top / "spy" / "main.py").chmod(0o755)
    (top / "spy" / "kaged-plugin.yaml").write_text(
        MANIFEST.replace("FOLDER", str(heard)), encoding="utf-8"
    )
    hooks = sorted(declared_hooks(fired=True) | declared_hooks(fired=False))
    (home / "spy_policy.py").write_text(SPY_POLICY.replace("NAMES", repr(hooks)), encoding="utf-8")
    (home / "policies.yaml").write_text(
        "plugin_dirs: [.]\nplugins:\n  - name: spy\n    kind: spy_policy.Spy\n"
        f"    hooks: {json.dumps(hooks)}\n    config: {{folder: {seen}}}\n",
        encoding="utf-8",
    )
    config = (
        f'{ANY_PORT}[sessions]\nidle_seconds = 1\n[pipeline]\nfile = "policies.yaml"\n'
        f"{calculator()}"
    )

    def do(*words: str) -> str:
        done = kaged(home, *words, cwd=root)
        assert done.returncode == 0, (words, done.stdout, done.stderr, daemon.log()[-3000:])
        return done.stdout

    daemon = start_daemon(home, config=config, forked=True)
    try:
        assert daemon.said.get("ready"), daemon.log()
        do("plugin", "install", str(top / "spy"), "--yes")
        do("plugin", "enable", "spy")
        do("project", "load", "--trust", str(root))
        until(lambda: "calc.count" in do("tool", "list"), daemon)
        do("run", "please count")
        session = json.loads(do("session", "list", "--json"))["items"][0]["id"]
        do("run", "--session", session, "--model", "other", "please read")
        for _ in range(2):
            do("run", "--session", session, "please read")
        do("session", "compact", session)
        for name in ("kaged.hook.on_session_idle", "ping"):
            until((heard / name).exists, daemon)
        asyncio.run(read_resource(home, root))
        do("run", "please read")
        do("session", "switch", session)
        do("lua", "run", "branch")
        do("session", "switch", json.loads(do("session", "list", "--json"))["items"][0]["id"])
        do("plugin", "knobs", "spy", "--project", str(root), "--set", "depth=true")
        warnings = json.loads(do("status", "--json"))["warnings"]
        do("project", "unload", str(root))
    finally:
        daemon.stop()
    return Fired(
        script={one.name for one in (root / "fired").iterdir()},
        plugin={one.name for one in heard.iterdir()},
        policy={one.name for one in seen.iterdir()},
        warnings=warnings,
        log=daemon.log(),
    )


def test_every_event_of_scripts_fires(fired: Fired) -> None:
    declared = declared_events()
    assert {"turn_end", "session_before_switch", "should_stop_after_turn"} <= declared
    assert declared - fired.script == set()
    assert "event user_bash never happens here" in fired.log


def test_every_request_and_hook_of_plugins_is_sent(fired: Fired) -> None:
    system = {"initialize", "initialized", "shutdown", "ping", "config.update"}
    projects = {"projects.activated", "projects.deactivated"}
    hooks = {"on_session_start", "on_session_idle", "pre_compact", "post_compact"}
    hooks = {f"kaged.hook.{name}" for name in hooks}
    assert (system | projects | hooks) - fired.plugin == set()


def test_every_hook_of_policies_fires_or_is_named_as_one_that_does_not(fired: Fired) -> None:
    # `token_delegate` needs a server behind HTTP; tests/whole/pipeline/test_outgoing_requests.py.
    assert declared_hooks(fired=True) - fired.policy == {"token_delegate"}
    never = declared_hooks(fired=False)
    assert never & fired.policy == set()
    (warning,) = [one for one in fired.warnings if "nothing in the daemon fires" in one]
    named = re.findall(r"daemon fires ([\w., ]+?) \(", warning)
    assert never == {hook for group in named for hook in group.split(", ")}
