"""What is written down before the story begins: the sample project, its guests and the script."""

from __future__ import annotations

import json
from typing import Final

# -- the sample project: a test of it fails --------------------------------------------------------

SOURCES: Final = {
    "tides.py": '''\
def hours_between(now, later):
    """Hours from one time of day to the next, on a clock of 24 hours."""
    return later - now
''',
    "harbour.py": '''\
from tides import hours_between


def waiting_time(arrives, high_tide):
    """How long a boat waits for the water that lifts it over the rocks."""
    return hours_between(arrives, high_tide)
''',
    "test_harbour.py": """\
import unittest

from harbour import waiting_time


class Waiting(unittest.TestCase):
    def test_a_boat_of_the_afternoon(self):
        self.assertEqual(waiting_time(14, 17), 3)

    def test_a_boat_of_the_night(self):
        self.assertEqual(waiting_time(22, 4), 6)
""",
    "charts/harbour.txt": "high tide at 17 and at 4; rocks north of the pier\n",
    "secrets.env": "HARBOUR_KEY=under-the-mat\n",
    ".gitignore": "__pycache__/\n",
}

PROJECT: Final = """\
version: 1
project: { name: Paper Boats, description: A sample for the demo. }

primary:
  model: default
  system_prompt: You look after the harbour's program.
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
      description: Reads the charts and says when the water is high.
      system_prompt: You read charts. You change nothing.
      cage:
        fs: [{ mode: ro, path: charts }]
      tools:
        "file.read": { enabled: true }
"""
MISSPELT: Final = PROJECT.replace("    net:", "    nett:")

# -- the model's part ------------------------------------------------------------------------------

MODELS: Final = """\
[models.default]
model = "scripted:story.yaml"
"""

# Turns wait for what the tools really answered (`contains`): where a tool fails, the story stops.
# The words FILE_OF_THE_BRIDGE stand for a path that is known when the stage is set.
SCRIPT: Final = """\
turns:
  - when: { user: test fails }
    say: I run the tests to see it fail.
    call: [{ tool: shell.bash, with: { command: python3 -B -m unittest } }]
  - when: { tool: shell.bash, contains: "-18 != 6" }
    say: A boat of the night waits -18 hours. I look for where that number is made.
    call: [{ tool: search.grep, with: { pattern: hours_between } }]
  - when: { tool: search.grep, contains: harbour.py }
    call:
      - tool: code.lsp
        with: { action: definition, path: harbour.py, line: 6, symbol: hours_between }
  - when: { tool: code.lsp, contains: "def hours_between(now, later)" }
    call: [{ tool: file.read, with: { path: tides.py } }]
  - say: It forgets midnight. Before I change it I ask the lookout when the water is high.
    call: [{ tool: agent-lookout, with: { message: When is high tide? Read all you can. } }]
  - when: { contains: at 17 and at 4 }
    say: So 22 to 4 is 6 hours, over midnight. I count round the clock.
    call:
      - tool: edit.text
        with: { path: tides.py, old_string: later - now, new_string: (later - now) % 24 }
  - call: [{ tool: shell.bash, with: { command: python3 -B -m unittest } }]
  - when: { tool: shell.bash, contains: OK }
    call:
      - tool: memory-markdown.retain
        with: { content: Hours between two times of day are counted round the clock. }
  - say: Fixed in tides.py, and both tests pass. I noted why, for the next time.

  - when: { user: clock, system: counted round the clock }
    say: "Modulo 24. I kept that from last time: hours are counted round the clock."

  - when: { user: mail }
    say: I ask the letterbox, and have a look at what else there is.
    call:
      - { tool: shell.bash, with: { command: ash-sb capability invoke -c post.box -o list } }
      - { tool: shell.bash, with: { command: "cat FILE_OF_THE_BRIDGE; env | grep -c BOX_KEY" } }
  - when: { tool: shell.bash, contains: No such file }
    say: "One letter: the boat leaves at nine. Of the letterbox's key there is no trace in here."

  - when: { user: tidy }
    call: [{ tool: file.read, with: { path: test_harbour.py } }]
  - say: The test of the night is odd. I throw it out and write a note.
    call:
      - tool: edit.text
        with:
          path: test_harbour.py
          old_string: |2

                def test_a_boat_of_the_night(self):
                    self.assertEqual(waiting_time(22, 4), 6)
          new_string: ""
      - { tool: file.create, with: { path: NOTES.txt, content: "tests: fewer is tidier\\n" } }
  - say: Tidied up.

  - agent: primary.subagents.lookout
    say: I read the chart, and try the secrets as well.
    call:
      - { tool: file.read, with: { path: charts/harbour.txt } }
      - { tool: file.read, with: { path: secrets.env } }
  - agent: primary.subagents.lookout
    say: High tide is at 17 and at 4. The other file is not for me.
"""

# -- a stranger's plugin ---------------------------------------------------------------------------

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

# -- the letterbox ---------------------------------------------------------------------------------

LETTERS: Final = json.dumps(
    {"ann": ["Dear Ann, the boat leaves at nine."], "bob": ["Bob, bring rope."]}
)
BOX_KEY: Final = "brass-7741"

CONFIG: Final = """\
[daemon]
bind = "127.0.0.1:0"

[auth]
operator = "ann"
trusted_proxies = ["127.0.0.1/32"]  # the chat assistant, which says who writes in which chat

[lsp.servers.python]
command = {server}

[plugins.capabilities]
rewind = ["session_write", "exec"]  # a Lua script, and the two powers it gets

[capabilities.providers.post]
command = {bridge}
env = {{ LETTERS = {letters}, BOX_KEY = {key} }}
"""
