"""Servers that other people published run in cages, unmodified, and an agent uses their tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.mcp import TOOLS, node_server, python, python_server, typescript
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project

VENV = Path(sys.prefix)
MODULES = TOOLS / "node_modules"
SERVERS = 6


def section(name: str, command: list[str], *writable: Path, **variables: str) -> str:
    """Return a server's section of `config.toml`: it sees its own program and these folders."""
    readable = [str(VENV), str(MODULES)]
    fs = [{"mode": "ro", "path": one} for one in readable]
    fs += [{"mode": "rw", "path": str(one)} for one in writable]
    rules = ", ".join(f'{{ mode = "{one["mode"]}", path = "{one["path"]}" }}' for one in fs)
    env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in variables.items())
    return (
        f"[mcp.servers.{name}]\ncommand = {json.dumps(command)}\nenv = {{ {env} }}\n"
        f"cage = {{ fs = [{rules}] }}\n"
    )


@pytest.fixture(scope="module")
def folders(module_path: Path) -> dict[str, Path]:
    """Return a folder for each server that works on files."""
    made = {name: module_path / name for name in ("files", "memory", "repo")}
    for folder in made.values():
        folder.mkdir()
    (made["files"] / "note.txt").write_text("from outside\n", encoding="utf-8")
    (made["repo"] / "a.txt").write_text("one\n", encoding="utf-8")
    author = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "the first"]):
        subprocess.run(["git", *words], cwd=made["repo"], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, folders: dict[str, Path]) -> Iterator[Daemon]:
    """Yield a daemon with six published servers, all of them ready."""
    files, memory, repo = (folders[name] for name in ("files", "memory", "repo"))
    config = "".join(
        (
            section("everything", node_server("everything")),
            section("files", node_server("filesystem", str(files)), files),
            section(
                "remember",
                node_server("memory"),
                memory,
                MEMORY_FILE_PATH=str(memory / "memory.jsonl"),
            ),
            section("think", node_server("sequential-thinking")),
            section("repo", python_server("git", "--repository", str(repo)), repo),
            section("clock", python_server("time", "--local-timezone", "UTC")),
        )
    )
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()

    def ready() -> bool:
        states = {one["name"]: one["state"] for one in made.get("/mcp/servers")["servers"]}
        return len(states) == SERVERS and set(states.values()) == {"running"}

    try:
        wait_for(ready, f"all servers run: {made.log()[-500:]}")
        yield made
    finally:
        made.close()


Call = Callable[..., str]


@pytest.fixture
def ask(project: Project) -> Call:
    """Return a caller of outside tools; returns the text of the answer."""

    def call_tool(tool: str, **params: Any) -> str:
        return json.dumps(project.call(tool, **params), ensure_ascii=False)

    return call_tool


def test_every_published_server_offers_its_tools(project: Project) -> None:
    names = {one["name"].partition(".")[0] for one in project.get("/tools")["tools"]}
    assert {"everything", "files", "remember", "think", "repo", "clock"} <= names


def test_the_reference_server_answers_with_text_structure_and_progress(ask: Call) -> None:
    assert "Echo: hello" in ask("everything.echo", message="hello")
    assert "42" in ask("everything.get-sum", a=40, b=2)
    long = ask("everything.trigger-long-running-operation", duration=1, steps=2)
    assert "completed" in long


def test_files_of_its_own_folder_are_read_and_written_and_nothing_else(
    ask: Call, project: Project, folders: dict[str, Path]
) -> None:
    files = folders["files"]
    assert "from outside" in ask("files.read_text_file", path=str(files / "note.txt"))
    ask("files.write_file", path=str(files / "new.txt"), content="written")
    assert (files / "new.txt").read_text(encoding="utf-8") == "written"
    refused = project.fail("files.read_text_file", path="/etc/hostname")
    assert os.uname().nodename not in str(refused["data"])


def test_what_is_remembered_is_there_after_a_restart_of_the_server(
    ask: Call, daemon: Daemon
) -> None:
    entity = {"name": "kaged", "entityType": "program", "observations": ["has cages"]}
    ask("remember.create_entities", entities=[entity])
    daemon.post("/mcp/servers/remember/restart")
    wait_for(lambda: daemon.get("/mcp/servers/remember")["state"] == "running")
    assert "has cages" in ask("remember.search_nodes", query="kaged")


def test_thoughts_are_counted(ask: Call) -> None:
    first = {"thought": "one", "nextThoughtNeeded": True, "thoughtNumber": 1, "totalThoughts": 2}
    assert '"thoughtHistoryLength": 1' in ask("think.sequentialthinking", **first).replace("\\", "")
    second = {**first, "thoughtNumber": 2, "nextThoughtNeeded": False}
    assert "2" in ask("think.sequentialthinking", **second)


def test_a_repository_is_looked_at(ask: Call, folders: dict[str, Path]) -> None:
    repo = str(folders["repo"])
    assert "the first" in ask("repo.git_log", repo_path=repo)
    (folders["repo"] / "a.txt").write_text("two\n", encoding="utf-8")
    assert "-one" in ask("repo.git_diff_unstaged", repo_path=repo)


def test_an_agent_asks_the_clock(daemon: Daemon, project: Project, model: ModelServer) -> None:
    # With the tools of every server a request is longer than the model server's journal keeps.
    project.describe(tools={"clock.*": {"enabled": True}})
    project.reload()
    model.play(
        "flamingo-noon",
        call(
            "clock.convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"
        ),
        say("It is 21:00."),
    )
    daemon.cli("run", "flamingo-noon", cwd=project.root)
    answer = model.asked("flamingo-noon")[-1]["messages"][-1]
    assert answer["role"] == "tool"
    assert "21:00" in str(answer["content"])


@pytest.mark.parametrize("sdk", [typescript, python], ids=["typescript", "python"])
def test_a_client_of_others_uses_servers_of_others_through_an_agent(
    daemon: Daemon, project: Project, sdk: Any, folders: dict[str, Path]
) -> None:
    """Structure that a server declares is held against it by the client; errors stay errors."""

    def ask(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        return "callTool", {"name": name, "arguments": arguments}

    _, good, listed, *bad = sdk(
        daemon,
        project,
        ask("everything_get-structured-content", location="Chicago"),
        ask("files_list_directory", path=str(folders["files"])),
        ask("everything_get-structured-content", location="Nowhere"),
        ask("files_read_text_file", path="/etc/hostname"),
        ask("repo_git_log", repo_path="/nowhere"),
    )
    told = good["result"]["structuredContent"]
    assert told["from"] == "outside MCP server everything"
    assert told["structured"].keys() == {"temperature", "conditions", "humidity"}
    assert "note.txt" in listed["result"]["structuredContent"]["structured"]["content"]
    for answer, code, words in zip(
        bad,
        ("invalid_params", "mcp_call_failed", "mcp_call_failed"),
        ("must be one of", "outside allowed directories", "outside the allowed repository"),
        strict=True,
    ):
        result = answer["result"]
        assert result["isError"] is True
        assert "structuredContent" not in result
        assert result["content"][0]["text"].startswith(f"{code}: ")
        assert words in result["content"][0]["text"]
        assert result["_meta"]["kaged/error"]["code"] == code
