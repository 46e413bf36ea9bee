"""A guest that writes and writes: the daemon's log stays small, and others are still in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from whole.harness.daemon import Daemon, wait_for
from whole.harness.guests import Guest

LINES = 20_000
SHARE = 1000
"""More lines of this length than a guest may write at once; twice as many are read in a second."""
LOUD = """
from kit import *
import sys
greet()
def on(message):
    for number in range(message["params"]["lines"]):
        sys.stderr.write("noise " + "x" * 200 + "\\n")
    sys.stderr.flush()
    answer(message, "done")
serve(on)
"""


def said(daemon: Daemon, plugin: str) -> list[dict[str, Any]]:
    """Return the lines of the log with what a plugin wrote to its standard error."""
    lines = [json.loads(one) for one in daemon.log().splitlines() if one.startswith("{")]
    return [one for one in lines if one["event"] == "plugin.stderr" and one.get("plugin") == plugin]


def test_a_plugin_cannot_fill_the_log_and_what_was_left_out_is_counted(
    daemon: Daemon, tmp_path: Path
) -> None:
    loud, quiet = (
        Guest(daemon, tmp_path, LOUD, name=name, methods=["a.write"]) for name in ("loud", "quiet")
    )
    for one in (loud, quiet):
        assert one.run()["state"] == "running"
    assert loud.call("a.write", lines=LINES) == "done"
    assert quiet.call("a.write", lines=3) == "done"
    wait_for(lambda: len(said(daemon, "quiet")) == 3, "another's lines")

    def all_counted() -> bool:
        """Let the plugin write one more line, which says how many were left out before it."""
        loud.call("a.write", lines=1)
        return sum(int(one.get("left_out", 0)) for one in said(daemon, "loud")) >= SHARE

    wait_for(all_counted, "the number of lines that were left out")
    assert len(said(daemon, "loud")) < SHARE
    for one in (loud, quiet):
        daemon.post(f"/plugins/{one.name}/disable")
