"""What runs for the daemon in a soak: a project, a script for its model, a plugin, two bridges.

Which call dies, stalls or leaves something behind is said by the client that makes it, so that one
seed decides the whole run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

BRIDGE_TIMEOUT_S = 2
STALL_S = (
    6143  # longer than any soak waits; a number of its own, to be found in a list of processes
)

PROJECT = """\
version: 1
project: soak
primary:
  model: played
  system_prompt: You work.
  tools:
    "file.*": { enabled: true }
    "search.*": { enabled: true }
    "shell.*": { enabled: true }
  plugins:
    keeper: { package: keeper }
  subagents:
    courier:
      model: played
      system_prompt: You carry.
      cage: { fs: [{ mode: rw, path: . }], capabilities: [shell, services] }
      tools: { "shell.*": { enabled: true } }
"""
SCRIPT = """\
turns:
  - when: { user: look }
    say: I look first.
    call: [{ tool: search.glob, with: { pattern: "*.txt" } }]
  - say: Done.
"""
MANIFEST = """\
name: keeper
version: 1.0.0
kaged_api: 1
description: Keeps rows and dies when told to.
command: [/usr/bin/env, python3, ./main.py]
capabilities: [kaged:storage:read, kaged:storage:write]
methods: [row.keep, row.list]
"""
PLUGIN = """\
import os, sys
sys.path.insert(0, "/opt/kaged/sdk/python")
from kaged.sdk import Plugin
plugin = Plugin("keeper", "1.0.0")

@plugin.method("row.keep")
async def keep(params, context):
    if params["fault"] == "die":
        os._exit(9)
    await plugin.storage.exec("CREATE TABLE IF NOT EXISTS kept (word TEXT PRIMARY KEY)")
    await plugin.storage.exec("INSERT INTO kept VALUES (?)", [params["word"]])
    if params["fault"] == "die_after":
        os._exit(9)
    return {"kept": params["word"]}

@plugin.method("row.list")
async def rows(params, context):
    await plugin.storage.exec("CREATE TABLE IF NOT EXISTS kept (word TEXT PRIMARY KEY)")
    found = await plugin.storage.query(
        "SELECT word FROM kept WHERE word > ? ORDER BY word LIMIT 500", [params["after"]])
    return {"words": [row["word"] for row in found.rows]}

plugin.start()
"""
BRIDGE = f"""\
import json, os, subprocess, sys, time
LEDGER, LASTS = sys.argv[1], sys.argv[2] == "lasts"
LEAVE = "setsid sleep {STALL_S} >/dev/null 2>&1 </dev/null &"

def answer(request):
    reply = {{"version": 1, "id": request["id"]}}
    if request["method"] == "definitions":
        note = {{"name": "note", "description": "Note a word.", "mutating": True,
                "requires_auth": False, "input_schema": {{"type": "object"}}}}
        book = {{"id": request["namespace"] + ".book", "description": "A ledger.",
                "operations": [note]}}
        features = ["persistent"] if LASTS else []
        return reply | {{"result": {{"definitions": [book], "features": features}}}}
    given = request["params"]["input_data"]
    fault = given["fault"]
    if fault == "stall":
        time.sleep({STALL_S})
    if fault == "die":
        os._exit(3)
    if fault == "garbage":
        print("this is no envelope", flush=True)
        os._exit(0)
    if fault == "leave":
        subprocess.run(["sh", "-c", LEAVE], check=True)
    ledger = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, (given["word"] + "\\n").encode())
    os.fsync(ledger)
    os.close(ledger)
    if fault == "die_after":
        os._exit(9)
    return reply | {{"result": {{"output": {{"noted": given["word"]}}}}}}

if LASTS:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
else:
    print(json.dumps(answer(json.loads(sys.stdin.read()))), flush=True)
"""
BRIDGES = {"once": "standby", "lasts": "persistent"}


def write_guests(folder: Path) -> None:
    """Write the home, the project, the plugin and the bridges below a folder."""
    home, root, plugin = folder / "home", folder / "project", folder / "keeper"
    home.mkdir(mode=0o700)
    bridge = folder / "bridge.py"
    bridge.write_text(BRIDGE, encoding="utf-8")
    config = '[daemon]\nbind = "127.0.0.1:0"\n'
    for name, mode in BRIDGES.items():
        # A persistent bridge is asked what it offers like any other: one request, one process.
        program = [sys.executable, "-I", str(bridge), str(folder / f"ledger-{name}.txt"), name]
        config += (
            f"[capabilities.providers.{name}]\ncommand = {json.dumps(program)}\n"
            f'mode = "{mode}"\ntimeout_seconds = {BRIDGE_TIMEOUT_S}\n'
        )
    _private(home / "config.toml", config)
    (home / "script.yaml").write_text(SCRIPT, encoding="utf-8")
    _private(home / "local.toml", f'[models.played]\nmodel = "scripted:{home}/script.yaml"\n')
    (root / ".kaged").mkdir(parents=True)
    (root / ".kaged" / "project.yaml").write_text(PROJECT, encoding="utf-8")
    plugin.mkdir()
    (plugin / "kaged-plugin.yaml").write_text(MANIFEST, encoding="utf-8")
    (plugin / "main.py").write_text(PLUGIN, encoding="utf-8")


def _private(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
