"""The files that the demo starts from: the sample project, its plugins and the model's script."""

from __future__ import annotations

import json
from typing import Final

# -- the sample project: a test of it fails --------------------------------------------------------

SOURCES: Final = {
    "tides.py": '''\
def hours_between(now, later):
    """Return the hours from one time of day to a later one."""
    return later - now
''',
    "harbour.py": '''\
from tides import hours_between


def waiting_time(arrives, high_tide):
    """Return how many hours a boat waits for high tide."""
    return hours_between(arrives, high_tide)
''',
    "test_harbour.py": """\
import unittest

from harbour import waiting_time


class Waiting(unittest.TestCase):
    def test_afternoon_arrival(self):
        self.assertEqual(waiting_time(14, 17), 3)

    def test_overnight_arrival(self):
        self.assertEqual(waiting_time(22, 4), 6)
""",
    "charts/harbour.txt": "high tide at 17:00 and at 4:00\n",
    "secrets.env": "HARBOUR_KEY=under-the-mat\n",
    ".gitignore": "__pycache__/\n",
}

PROJECT: Final = """\
version: 1
project: { name: Paper Boats, description: A sample for the demo. }

primary:
  model: default
  system_prompt: You maintain this program.
  cage:
    fs: [{ mode: rw, path: . }]
    net: { allow: ["tides.example.org:443"] }
    capabilities: [shell, services]
  tools:
    "file.*": { enabled: true }
    "edit.*": { enabled: true }
    "search.*": { enabled: true }
    "code.lsp": { enabled: true }
    "shell.*": { enabled: true }
    "memory-markdown.*": { enabled: true }
  plugins:
    charts: { package: chart-reader }
    memory: { package: memory-markdown }
  subagents:
    lookout:
      model: default
      description: Reads the charts and reports the tides.
      system_prompt: You read charts and change nothing.
      cage:
        fs: [{ mode: ro, path: charts }]
      tools:
        "file.read": { enabled: true }
"""
MISSPELT: Final = PROJECT.replace("    net:", "    nett:")

# -- the model's answers ---------------------------------------------------------------------------

MODELS: Final = """\
[models.default]
model = "scripted:story.yaml"
"""

# A turn waits for what the tool really answered (`contains`), so the demo stops where a tool fails.
# FILE_OF_THE_BRIDGE stands for a path that is known when the demo is set up.
SCRIPT: Final = """\
turns:
  - when: { user: test fails }
    say: I'll run the tests to see the failure.
    call: [{ tool: shell.bash, with: { command: python3 -B -m unittest } }]
  - when: { tool: shell.bash, contains: "-18 != 6" }
    say: An overnight arrival waits -18 hours. I'll find where that value is computed.
    call: [{ tool: search.grep, with: { pattern: hours_between } }]
  - when: { tool: search.grep, contains: harbour.py }
    call:
      - tool: code.lsp
        with: { action: definition, path: harbour.py, line: 6, symbol: hours_between }
  - when: { tool: code.lsp, contains: "def hours_between(now, later)" }
    call: [{ tool: file.read, with: { path: tides.py } }]
  - say: The function ignores midnight. I'll ask the lookout for the tide times before I change it.
    call: [{ tool: agent-lookout, with: { message: When is high tide? Read every file you can. } }]
  - when: { contains: "at 17:00 and at 4:00" }
    say: From 22:00 to 4:00 is 6 hours, past midnight. I'll count modulo 24.
    call:
      - tool: edit.text
        with: { path: tides.py, old_string: later - now, new_string: (later - now) % 24 }
  - call: [{ tool: shell.bash, with: { command: python3 -B -m unittest } }]
  - when: { tool: shell.bash, contains: OK }
    call:
      - tool: memory-markdown.retain
        with: { content: Hours between two times of day are counted modulo 24. }
  - say: Fixed in tides.py, and both tests pass. I saved a note about the reason.

  - when: { user: clock, system: counted modulo 24 }
    say: "Modulo 24. My note from the last session says so."

  - when: { user: mail }
    say: I'll list the mail, and also try to read the mail server's key.
    call:
      - { tool: shell.bash, with: { command: ash-sb capability invoke -c post.box -o list } }
      - { tool: shell.bash, with: { command: "cat FILE_OF_THE_BRIDGE; env | grep -c BOX_KEY" } }
  - when: { tool: shell.bash, contains: No such file }
    say: "One message: the boat leaves at nine. The key is not reachable from here."

  - when: { user: clean up }
    call: [{ tool: file.read, with: { path: test_harbour.py } }]
  - say: The overnight test looks odd. I'll delete it and write a note.
    call:
      - tool: edit.text
        with:
          path: test_harbour.py
          old_string: |2

                def test_overnight_arrival(self):
                    self.assertEqual(waiting_time(22, 4), 6)
          new_string: ""
      - { tool: file.create, with: { path: NOTES.txt, content: "Removed an odd test.\\n" } }
  - say: The tests are cleaned up.

  - agent: primary.subagents.lookout
    say: I'll read the chart, and try secrets.env as well.
    call:
      - { tool: file.read, with: { path: charts/harbour.txt } }
      - { tool: file.read, with: { path: secrets.env } }
  - agent: primary.subagents.lookout
    say: "High tide is at 17:00 and at 4:00. I was not allowed to read the other file."
"""

# -- a third-party plugin --------------------------------------------------------------------------

PLUGIN: Final = {
    "kaged-plugin.yaml": """\
name: chart-reader
version: 1.0.0
kaged_api: 1
description: Reads the charts of a project.
command: [/usr/bin/env, python3, ./main.py]
capabilities:
  - read:fs:project:/charts
  - kaged:storage:read
methods: [chart.read, journal.peek]
""",
    "main.py": """\
import sys
sys.path.insert(0, "/opt/kaged/sdk/python")
from kaged.sdk import Plugin, RpcError

plugin = Plugin("chart-reader", "1.0.0")

@plugin.method("chart.read")
def read(params, context):
    try:
        with open(params["path"], encoding="utf-8") as file:
            return {"text": file.read()}
    except OSError as error:
        raise RpcError(f"denied: {params['path']}: {error.strerror}", number=-32001) from error

@plugin.method("journal.peek")
async def peek(params, context):
    return await plugin.storage.query("SELECT * FROM audit_events")

plugin.start()
""",
}

# -- the mail bridge -------------------------------------------------------------------------------

LETTERS: Final = json.dumps(
    {"ann": ["Dear Ann, the boat leaves at nine."], "bob": ["Bob, bring rope."]}
)
BOX_KEY: Final = "brass-7741"

CONFIG: Final = """\
[daemon]
bind = "127.0.0.1:0"

[auth]
operator = "ann"
trusted_proxies = ["127.0.0.1/32"]  # the chat front end, which names the user and the chat

[lsp.servers.python]
command = {server}

[plugins.capabilities]
rewind = ["session_write", "exec"]  # a Lua script and its two powers

[capabilities.providers.post]
command = {bridge}
env = {{ LETTERS = {letters}, BOX_KEY = {key} }}
"""
