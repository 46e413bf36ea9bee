"""The seven walks of the architecture page, as a real daemon takes them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from fakes.host_over_http import write_stub
from fakes.running_daemon import KAGED, environment, kaged, make_home, start_daemon

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
RECORDER = ROOT / "tests" / "tools" / "recorder"
REWIND = ROOT / "plugins" / "examples" / "rewind.lua"
BRIDGE = ROOT / "plugins" / "examples" / "letters-bridge" / "bridge.py"
IN_THE_CAGE = ("kaged.sdk.", "kaged.sandbox.")
"""What runs where this test cannot look."""

pytestmark = pytest.mark.timeout(400)

PROJECT = """\
version: 1
project: walks
primary:
  model: default
  system_prompt: You help.
  tools: {file.*: {enabled: true}, shell.*: {enabled: true}}
  cage: {fs: [{mode: rw, path: .}], capabilities: [shell, services]}
"""

STORY = """\
turns:
  - when: {user: change}
    say: I read it.
    call: [{tool: file.read, with: {path: a.txt}}]
  - say: I write it.
    call: [{tool: file.write, with: {path: a.txt, content: "two\\n"}}]
  - say: Done.
"""

POLICY = '''\
"""Changes the arguments of a call, so that it is admitted anew."""
from cpex.framework import Plugin, PluginResult


class Shouting(Plugin):
    async def tool_pre_invoke(self, payload, context, extensions):
        if payload.name != "file.write":
            return PluginResult()
        louder = {**payload.args, "content": payload.args["content"].upper()}
        return PluginResult(
            modified_payload=payload.model_copy(update={"args": louder}),
            modified_extensions=extensions.model_copy(update={"custom": {"loud": True}}),
        )

    async def tool_post_invoke(self, payload, context):
        return PluginResult()
'''


POLICIES = """\
plugin_dirs: [.]
plugins:
  - {name: loud, kind: loud.Shouting, hooks: [tool_pre_invoke, tool_post_invoke]}
"""


def read_walks() -> dict[str, list[str]]:
    """Return the functions of each walk, by the first words of its heading."""
    walks: dict[str, list[str]] = {}
    for heading, text in re.findall(
        r"^### (Walk \d+)[^\n]*\n(.*?)(?=^#|\Z)",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    ):
        walks[heading] = re.findall(r"^\d+\. `([\w.]+)`", text, re.MULTILINE)
    return walks


WALKS = read_walks()


def missing_from(recorded: Sequence[str], walk: Sequence[str]) -> list[str]:
    """Return the hops of a walk that were not entered after those before them."""
    missing, calls = [], iter(recorded)
    for hop in walk:
        if hop.startswith(IN_THE_CAGE):
            continue
        rest = list(calls)
        if hop not in rest:
            missing.append(hop)
            calls = iter(rest)
            continue
        calls = iter(rest[rest.index(hop) + 1 :])
    return missing


def test_a_hop_out_of_order_is_found() -> None:
    assert missing_from(["a", "b", "a", "c"], ["a", "c"]) == []
    assert missing_from(["b", "a"], ["a", "b"]) == ["b"]
    assert missing_from(["a"], ["a", "kaged.sdk.x"]) == []


class Stage:
    """A home and a project in which every walk can be taken, and the record of them."""

    def __init__(self, top: Path) -> None:
        self.home, self.root, self.trace = make_home(top / "home"), top / "work", top / "trace"
        files = {
            self.root / ".kaged" / "project.yaml": PROJECT,
            self.root / "a.txt": "one\n",
            self.home / "lua" / "rewind.lua": REWIND.read_text(encoding="utf-8"),
            self.home / "local.toml": '[models.default]\nmodel = "scripted:story.yaml"\n',
            self.home / "story.yaml": STORY,
            self.home / "loud.py": POLICY,
            self.home / "policies.yaml": POLICIES,
            top / "letters.json": '{"operator": ["Hello."]}',
            top / "names": "\n".join(hop for walk in WALKS.values() for hop in walk),
        }
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o600)
        query = {"ask": ["kaged.storage.query", {"sql": "SELECT 1 AS n", "params": []}]}
        self.stub = write_stub(
            top / "box",
            {"on": {"box.count": [query]}},
            name="box",
            methods=["box.count"],
            capabilities=["kaged:storage:read"],
        )
        self.config = (
            '[daemon]\nbind = "127.0.0.1:0"\n[pipeline]\nfile = "policies.yaml"\n'
            '[plugins.capabilities]\nrewind = ["session_write", "exec"]\n'
            "[capabilities.providers.post]\n"
            f"command = {json.dumps([sys.executable, str(BRIDGE)])}\n"
            f"env = {{ LETTERS = {json.dumps(str(top / 'letters.json'))} }}\n"
        )
        self.spied = {
            "KAGED_RECORD": str(top / "names"),
            "KAGED_RECORDED": str(self.trace),
            "PYTHONPATH": str(RECORDER),
        }
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "x"]):
            subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True)
        self.walks: dict[str, list[str]] = {}
        self.daemon = start_daemon(self.home, config=self.config, forked=True)
        self.do("project", "load", "--trust", str(self.root))
        self.daemon.stop()
        self.trace.write_text("", encoding="utf-8")

    def take(self, name: str, work: Callable[[], object]) -> None:
        """Do something, and keep what was entered meanwhile."""
        before = len(self.trace.read_text(encoding="utf-8").splitlines())
        work()
        self.walks[name] = self.trace.read_text(encoding="utf-8").splitlines()[before:]

    def start(self) -> None:
        """Start the daemon whose steps are written down, and call it before all of it is there."""
        self.daemon = start_daemon(self.home, config=self.config, env=self.spied)
        assert self.daemon.said.get("ready"), self.daemon.log()
        self.do("tool", "call", "file.read", "path=a.txt")

    def do(self, *words: str) -> str:
        """Run a command; returns what it printed."""
        done = kaged(self.home, *words, cwd=self.root, env=self.spied)
        said = (words, done.stdout, done.stderr, self.daemon.log()[-3000:])
        assert done.returncode == 0, said
        return done.stdout

    def bash(self, command: str) -> str:
        """Run a command line in the agent's cage."""
        called = json.loads(self.do("tool", "call", "shell.bash", f"command={command}", "--json"))
        assert called["result"]["exit_code"] == 0, called
        return str(called["result"]["stdout"])

    async def read_over_mcp(self) -> None:
        """Read a file as a foreign MCP client does."""
        words = [*KAGED[1:], "mcp", "--project", str(self.root), "--agent", "primary"]
        env = {**environment(self.home), **self.spied}
        async with Client(StdioServerParameters(command=KAGED[0], args=words, env=env)) as client:
            answer = await client.call_tool("file_read", {"path": "a.txt"})
            assert answer.is_error is False, answer.content


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Take every walk through the front door; returns what was entered in each."""
    top = tmp_path_factory.mktemp("walks")
    top.chmod(0o755)
    stage = Stage(top)
    try:
        stage.take("Walk 7", stage.start)
        stage.do("lua", "list", "-p", str(stage.root))
        stage.do("plugin", "install", str(stage.stub), "--yes")
        stage.do("plugin", "enable", "box")
        stage.take("Walk 1", lambda: stage.do("run", "change it"))
        stage.walks["Walk 6"] = stage.walks["Walk 1"]
        assert (stage.root / "a.txt").read_text(encoding="utf-8") == "TWO\n"
        session = json.loads(stage.do("session", "list", "--json"))["items"][0]["id"]
        stage.do("session", "switch", session)
        stage.take("Walk 2", lambda: stage.do("plugin", "call", "box", "box.count"))
        begun = json.loads(stage.bash("ash-sb capability auth begin -c post.box --json"))
        done = f"ash-sb capability auth complete --flow-id {begun['flow_id']} --code agreed"
        stage.bash(done)
        stage.take("Walk 3", lambda: stage.bash("ash-sb capability invoke -c post.box -o list"))
        stage.take("Walk 4", lambda: asyncio.run(stage.read_over_mcp()))
        stage.take("Walk 5", lambda: stage.do("lua", "run", "undo", "-p", str(stage.root)))
    finally:
        stage.daemon.stop()
    return stage.walks


@pytest.mark.parametrize("name", WALKS)
def test_a_daemon_takes_the_walk_in_the_order_of_the_page(
    name: str, recorded: dict[str, list[str]]
) -> None:
    missing = missing_from(recorded[name], WALKS[name])
    assert missing == [], [hop for hop in dict.fromkeys(recorded[name]) if hop in WALKS[name]]
