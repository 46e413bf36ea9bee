"""Of everything that runs for a daemon, only a person's own command holds that person's token."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path

from fakes.channel_lab import channel_lab
from fakes.host_over_http import HttpHost, write_stub
from fakes.mcp_lab import calculator
from fakes.service_home import service_home
from fakes.work_lab import until
from kaged.base import Tasks
from requirements import requirement

NAP = """
local caps = kage.request_capabilities({ "exec" })
kage.register_command({
  name = "nap",
  description = "Sleeps",
  handler = function() kage.exec({ cmd = "sleep", args = { "613" }, timeout_secs = 700 }) end,
})
"""
SAYS_OTHERWISE = "echo ASH_CONTEXT_TOKEN=for-bob; exec sleep 611"


def children() -> dict[int, tuple[str, bytes]]:
    """Return every process below this one: its command line and its environment."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, tuple[str, bytes]] = {}
    for pid in parents:
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and pid != os.getpid():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            found[pid] = (line.decode("utf-8", "replace"), environ)
    return found


def user_of(environ: bytes) -> str | None:
    """Return whom the token in an environment acts for; None when there is none."""
    for one in environ.split(b"\0"):
        if one.startswith(b"ASH_CONTEXT_TOKEN="):
            payload = one.partition(b"=")[2].split(b".")[1]
            return str(json.loads(base64.urlsafe_b64decode(payload + b"=="))["sub"])
    return None


@requirement("SC-TOK-12")
async def test_only_the_command_of_a_person_holds_that_persons_token(tmp_path: Path) -> None:
    """A plugin, a Lua worker and its program, an MCP server and a bridge run at the same time."""
    scripts = tmp_path / "home" / "lua"
    scripts.mkdir(parents=True)
    (tmp_path / "home").chmod(0o700)
    (scripts / "nap.lua").write_text(NAP, encoding="utf-8")
    more = calculator() + '[plugins.capabilities]\nnap = ["exec"]\n'
    stub = write_stub(tmp_path / "mem", name="mem")
    ann = {"user": "ann", "chat_type": "private", "chat_id": "c-ann"}
    tasks = Tasks("test", lambda _name, _error: None)
    async with service_home(tmp_path, more=more) as home:
        host = HttpHost(home.inside)
        await host.running(stub)
        await home.link(**ann)
        base = f"/projects/{home.id}"
        tasks.start(host.post(f"{base}/lua/commands", {"name": "nap"}), "nap")
        tasks.start(home.run(SAYS_OTHERWISE, **ann), "command of ann")
        tasks.start(home.run("exec sleep 612", "primary.subagents.outsider", **ann), "outsider")
        kinds = {
            "a person's command": "sleep 611",
            "a command without the grant": "sleep 612",
            "a program of a script": "sleep 613",
            "a Lua worker": "worker_main",
            "a plugin": "main.py",
            "an MCP server": "mcp_tool_server",
            "a bridge": "letters-bridge",
        }

        def unseen() -> set[str]:
            lines = [line for line, _ in children().values()]
            return {kind for kind, word in kinds.items() if not any(word in one for one in lines)}

        try:
            for _ in range(400):
                if not unseen():
                    break
                await asyncio.sleep(0.1)
            assert unseen() == set()
            # The program itself, not the shell and the cage that are about to become it.
            await until(
                lambda: any(
                    line.startswith("sleep 611") and user_of(environ)
                    for line, environ in children().values()
                )
            )
            holders: set[str] = set()
            for line, environ in children().values():
                whom = user_of(environ)
                if whom is None:
                    assert b"ASH_CONTEXT_TOKEN=" not in environ, line
                    continue
                assert whom == "ann", line
                holders.add(line)
            assert any("sleep 611" in line for line in holders), holders
            for kind, word in kinds.items():
                if kind != "a person's command":
                    assert not any(word in line for line in holders), (kind, holders)
        finally:
            await tasks.close()
        await until(lambda: not any("sleep 611" in line for line, _ in children().values()))
    # Nobody is known who asks: there is no token, and ash-sb says so.
    folder = tmp_path / "nobody"
    folder.mkdir()
    async with channel_lab(folder) as lab:
        nobody = await lab.run("ash-sb capability list; echo $?; env", identity=None)
        assert "ASH_CONTEXT_TOKEN is not set" in nobody["stdout"] + nobody["stderr"], nobody
        assert "ASH_CONTEXT_TOKEN=" not in nobody["stdout"]
