"""`run_view`: how a run is shown here: drawn on a terminal, as plain lines, or as JSON."""

from __future__ import annotations

import os
import sys

from kaged.cli.runview import RunView


def run_view(*, as_json: bool, agent: str = "primary", thinking: bool = False) -> RunView:
    """Return the view for where this process writes to."""
    if as_json or not can_draw():
        return RunView(
            as_json=as_json,
            agent=agent,
            thinking=thinking,
            live=_moves_cursor() and sys.stderr.isatty(),
            colors=not os.environ.get("NO_COLOR"),
        )
    from kaged.cli.terminal.screen import DirectScreen
    from kaged.cli.terminal.status import RunStatus
    from kaged.cli.terminal.view import TerminalView

    screen = DirectScreen(sys.stdout)
    return TerminalView(screen, RunStatus(agent), agent=agent, thinking=thinking)


def can_draw() -> bool:
    """Return whether somebody looks at a terminal that knows how to move its cursor."""
    return _moves_cursor() and sys.stdout.isatty() and sys.stderr.isatty()


def _moves_cursor() -> bool:
    return os.environ.get("TERM", "dumb") != "dumb"
