"""Writes three files over and over, single and together, until it is killed."""

from __future__ import annotations

import itertools
import sys

from kaged.workspace import PlannedWrite, Workspace

workspace = Workspace(sys.argv[1])
paths = [workspace.resolve(name) for name in ("a", "b", "c")]
for path in paths:
    workspace.write_bytes(path, b"0" * 200_000)
print("ready", flush=True)  # noqa: T201 - tells the test
for number in itertools.count():
    content = bytes([48 + number % 70]) * 200_000
    if number % 2:
        workspace.write_bytes(paths[number % 3], content)
    else:
        workspace.write_all([PlannedWrite(path, content) for path in paths])
    print(number, flush=True)  # noqa: T201 - tells the test
