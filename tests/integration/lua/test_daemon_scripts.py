"""Scripts in a whole daemon: configuration, HTTP, command line, and a real run with rewind."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx

from fakes.running_daemon import (
    ANY_PORT,
    InProcess,
    daemon_in_process,
    kaged,
    make_project,
    start_daemon,
)
from kaged.config.daemonconfig import load_daemon_config
from kaged.config.locations import Locations
from requirements import requirement

EXAMPLES = Path(__file__).parents[3] / "plugins" / "examples"
GRANTS = '[plugins.capabilities]\nrewind = ["session_write", "exec"]\n'


async def _project(inside: InProcess, root: Path) -> str:
    loaded = await inside.client.post("/api/v1/projects", json={"root": str(root), "trust": True})
    assert loaded.status_code == 201, loaded.text
    return str(loaded.json()["id"])


def _script(home: Path, name: str, text: str) -> None:
    folder = Locations.from_env({"HOME": str(home), "KAGED_HOME": str(home)}).lua_dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.lua").write_text(text, encoding="utf-8")


async def _json(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if status != 204 else None


@requirement("LC-GRANT-04")
def test_the_grants_of_the_document_are_read_from_the_operators_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(GRANTS, encoding="utf-8")
    grants = load_daemon_config(path, {}).value.plugins.capabilities
    assert sorted(grants.of("rewind")) == ["exec", "session_write"]
    assert grants.of("other") == frozenset()


async def test_a_front_end_asks_a_script_to_draw_over_http(tmp_path: Path) -> None:
    home, root = tmp_path / "home", make_project(tmp_path / "work")
    home.mkdir(mode=0o700)
    _script(home, "head", "kage.ui.set_header(function(width) return {'wide ' .. width} end)")
    async with daemon_in_process(home) as inside:
        place = f"/api/v1/projects/{await _project(inside, root)}/lua/front"
        ask = {"script": "head", "entry": "render", "params": {"what": "header", "width": 80}}
        found = await _json(await inside.client.post(place, json=ask))
        assert found["lines"] == [[{"text": "wide 80"}]]
        missing = await _json(await inside.client.post(place, json={**ask, "script": "x"}), 409)
        assert missing["error"]["code"] == "lua_script_down"
        await _json(await inside.client.post(place, json={**ask, "entry": "command"}), 422)


async def test_commands_and_dialogs_over_http(tmp_path: Path) -> None:
    home, root = tmp_path / "home", make_project(tmp_path / "work")
    home.mkdir(mode=0o700)
    _script(
        home,
        "ask",
        """kage.register_command{name='name', description='Asks', handler=function(raw)
          return 'hello ' .. tostring(kage.ui.input('Who?')) .. raw end}""",
    )
    _script(home, "broken", "nonsense(")
    async with daemon_in_process(home) as inside:
        base = f"/api/v1/projects/{await _project(inside, root)}/lua"
        found = await _json(await inside.client.get(base))
        assert [one["state"] for one in found["scripts"]] == ["running", "failed"]
        assert [one["name"] for one in found["commands"]] == ["name"]

        body = {"name": "/name", "raw": "!", "interactive": True}

        async def person() -> None:
            found = await _json(await inside.client.get(f"{base}/dialogs", params={"wait_s": 20}))
            (dialog,) = found["dialogs"]
            assert (dialog["kind"], dialog["title"]) == ("input", "Who?")
            place = f"{base}/dialogs/{dialog['id']}"
            await _json(await inside.client.post(place, json={"answer": "Ada"}), 204)
            again = await inside.client.post(place, json={"answer": "x"})
            assert again.json()["error"]["code"] == "lua_dialog_not_found"

        ran, _ = await asyncio.gather(inside.client.post(f"{base}/commands", json=body), person())
        assert (await _json(ran))["text"] == "hello Ada!"
        missing = await inside.client.post(f"{base}/commands", json={"name": "nope"})
        assert missing.json()["error"]["code"] == "lua_command_not_found"
        nowhere = "/api/v1/projects/prj_01M7H7VQJKJCQ50D1B6TXF5N00/lua"
        assert (await inside.client.get(nowhere)).status_code == 404

        _script(
            home, "broken", "kage.register_command{name='fixed', description='', handler=print}"
        )
        again = await _json(await inside.client.post(f"{base}/reload"))
        assert [one["name"] for one in again["commands"]] == ["name", "fixed"]

        checked = await inside.client.post(
            "/api/v1/lua/check",
            json={"name": "x", "source": "kage.request_capabilities({'exec'})\nkage.fs.read('x')"},
        )
        report = await _json(checked)
        assert report["ok"] is False
        assert report["capabilities"] == {"exec": False}
        assert report["used_at_load"] == ["kage.fs.read"]


def test_a_run_is_undone_and_redone_from_the_command_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    folder = Locations.from_env({"HOME": str(home), "KAGED_HOME": str(home)}).lua_dir
    folder.mkdir(parents=True)
    shutil.copy(EXAMPLES / "rewind.lua", folder)
    root = make_project(
        tmp_path / "work",
        "version: 1\nproject: sample\nprimary:\n  model: scripted\n  system_prompt: You help.\n"
        "  tools: {file.*: {enabled: true}}\n",
    )
    (root / "a.txt").write_text("one\n", encoding="utf-8")
    who = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    script = tmp_path / "script.yaml"
    script.write_text(
        "turns:\n"
        "  - call: [{tool: file.read, with: {path: a.txt}}]\n"
        '  - call: [{tool: file.write, with: {path: a.txt, content: "two\\n"}}]\n'
        "  - say: done\n",
        encoding="utf-8",
    )
    daemon = start_daemon(
        home, config=ANY_PORT + GRANTS, env={"KAGED_SCRIPT": str(script)}, forked=True
    )
    try:
        assert daemon.said.get("ready"), daemon.log()
        assert kaged(home, "project", "load", "--trust", str(root)).returncode == 0
        listed = kaged(home, "lua", "list", "-p", str(root))
        assert "rewind" in listed.stdout, listed.stdout + listed.stderr
        ran = kaged(home, "run", "--model", "scripted", "change it", cwd=root)
        assert ran.returncode == 0, ran.stdout + ran.stderr + daemon.log()[-4000:]
        assert (root / "a.txt").read_text(encoding="utf-8") == "two\n", ran.stdout + ran.stderr
        undone = kaged(home, "lua", "run", "undo", "-p", str(root))
        assert undone.returncode == 0, undone.stdout + undone.stderr + daemon.log()[-3000:]
        said = undone.stdout + undone.stderr
        assert (root / "a.txt").read_text(encoding="utf-8") == "one\n", said
        redone = kaged(home, "lua", "run", "redo", "-p", str(root))
        assert redone.returncode == 0, redone.stdout + redone.stderr
        assert (root / "a.txt").read_text(encoding="utf-8") == "two\n"
        checked = kaged(home, "lua", "check", str(EXAMPLES / "rewind.lua"))
        assert "asks for exec: granted" in checked.stdout, checked.stdout + checked.stderr
    finally:
        daemon.stop()


def test_a_script_ends_a_run_and_writes_the_summary_of_a_session(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    _script(
        home,
        "guide",
        "kage.on('should_stop_after_turn', function(turn)\n"
        "  return turn.had_tool_calls and turn.index == 1\n"
        "end)\n"
        "kage.on('compact_prepare', function(plan)\n"
        "  return { summary = 'We read it ' .. plan.summarized .. ' times over.' }\n"
        "end)\n",
    )
    root = make_project(
        tmp_path / "work",
        "version: 1\nproject: sample\nprimary:\n  model: default\n  system_prompt: You help.\n"
        "  compaction: {strategy: summarize, threshold: 500}\n"
        "  tools: {file.*: {enabled: true}}\n",
    )
    (root / "a.txt").write_text("one two three\n" * 200, encoding="utf-8")
    (home / "story.yaml").write_text(
        "turns:\n"
        "  - when: {user: go}\n    repeat: true\n    say: First.\n"
        "    call: [{tool: file.read, with: {path: a.txt}}]\n"
        "  - say: Second.\n    repeat: true\n",
        encoding="utf-8",
    )
    local = home / "local.toml"
    local.write_text('[models.default]\nmodel = "scripted:story.yaml"\n', encoding="utf-8")
    local.chmod(0o600)
    daemon = start_daemon(home, config=ANY_PORT, forked=True)
    try:
        assert daemon.said.get("ready"), daemon.log()
        assert kaged(home, "project", "load", "--trust", str(root)).returncode == 0
        assert "guide" in kaged(home, "lua", "list", "-p", str(root)).stdout
        ran = kaged(home, "run", "go", cwd=root)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "First." in ran.stdout
        assert "Second." not in ran.stdout, "the script ends the run after the first turn"
        (one,) = json.loads(kaged(home, "session", "list", "--json", cwd=root).stdout)["items"]
        for _ in range(2):
            again = kaged(home, "run", "--session", one["id"], "go", cwd=root)
            assert again.returncode == 0, again.stdout + again.stderr
        # The script is asked by the first command of a daemon, too.
        daemon.stop()
        daemon = start_daemon(home, config=None, forked=True)
        compacted = kaged(home, "session", "compact", one["id"], "--json", cwd=root)
        shown = kaged(home, "session", "export", one["id"], cwd=root).stdout
        assert "times over." in shown, compacted.stdout + compacted.stderr + shown[-2000:]
    finally:
        daemon.stop()
