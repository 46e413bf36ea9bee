"""`RunView`: shows a run to people and programs.

In a terminal the agent's text is streamed, each tool call is a line with its result and time, and a
line at the bottom shows the current activity. In a pipe standard output holds only the agent's
text; the rest goes to standard error. As JSON every event is a line.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final, TextIO

from kaged.base import Clock, SystemClock
from kaged.cli.output import harmless, one_line

GIST_CHARS: Final = 60
NOTE_CHARS: Final = 300
MAX_LISTED: Final = 20
MAX_TEXT_CHARS: Final = 4_000_000

MARKS: Final = {
    "completed": ("✓", "ok", "32"),
    "denied": ("✗", "denied", "31"),
    "failed": ("!", "failed", "33"),
    "cancelled": ("-", "cancelled", "2"),
}
_DIM: Final = "2"
_BEGINS_ANEW: Final = ("turn.started", "model.retried")
_TELLING: Final = ("path", "pattern", "query", "command", "message", "title", "task", "action")


class RunView:
    """Shows the events of one run after the other. `text` is what the agent said last."""

    def __init__(
        self,
        *,
        as_json: bool,
        agent: str = "primary",
        thinking: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        clock: Clock | None = None,
        live: bool | None = None,
        colors: bool = True,
    ) -> None:
        """`live` says whether there is a line at the bottom; by default on a terminal."""
        self._json = as_json
        self._agent = agent
        self._thinking = thinking
        self._out = sys.stdout if stdout is None else stdout
        self._err = sys.stderr if stderr is None else stderr
        self._clock = clock or SystemClock()
        self._began_s = self._clock.monotonic_s()
        self._live = (self._err.isatty() if live is None else live) and not as_json
        self._colors = self._live and colors
        self._streams = self._out.isatty()
        self._held = ""
        self._open: TextIO | None = None  # where a line is begun and not ended
        self._status_shown = False
        self._running: dict[str, tuple[str, float]] = {}
        self._aside: dict[str, str] = {}
        self.text = ""
        self.calls = 0

    # -- events --------------------------------------------------------------------------------

    def show(self, event: dict[str, Any]) -> None:
        """Show one event."""
        name, data = event["name"], event["data"]
        if self._json:
            self._write(self._out, json.dumps({"event": name, **data}, separators=(",", ":")))
            if name == "text.delta" and data.get("agent") == self._agent:
                self._remember(str(data.get("text", "")))
            if name in _BEGINS_ANEW and data.get("agent") == self._agent:
                self.text = ""
            return
        show = getattr(self, f"_on_{name.replace('.', '_')}", None)
        if show is not None:
            show(data)

    def tick(self) -> None:
        """Draw the line at the bottom anew; call it now and then while nothing happens."""
        if not self._live or self._open is not None:
            return
        spent_s = self._clock.monotonic_s() - self._began_s
        doing = "thinking"
        if self._running:
            gist, since_s = next(reversed(self._running.values()))
            doing = f"{gist} {self._clock.monotonic_s() - since_s:.0f} s"
        told = f"… {doing} · {self.calls} calls · {spent_s:.0f} s"
        self._put_status(self._coloured(told, _DIM))

    def close(self) -> None:
        """Leave the terminal as it should be: no half line, no line at the bottom."""
        self._break()

    def note(self, text: str) -> None:
        """Print a note beside the agent's words."""
        self._write_line((text, ""))

    # -- one method per event; what has none is not shown --------------------------------------

    def _on_lua_notice(self, data: dict[str, Any]) -> None:
        self.note(f"[{data.get('script')}] {one_line(data.get('message'))}")

    _on_lua_load_notice = _on_lua_notice

    def _on_turn_started(self, data: dict[str, Any]) -> None:
        if data.get("agent") == self._agent:
            self.text = ""
        self.tick()

    def _on_text_delta(self, data: dict[str, Any]) -> None:
        text, agent = str(data.get("text", "")), str(data.get("agent"))
        if agent != self._agent:
            self._aside[agent] = (self._aside.get(agent, "") + text)[:NOTE_CHARS]
            return
        self._remember(text)
        if not self._streams:
            # A pipe gets an answer once it is whole: what breaks off is no part of the result.
            self._held = (self._held + text)[:MAX_TEXT_CHARS]
            return
        self._put(self._out, harmless(text))

    def _on_thinking_delta(self, data: dict[str, Any]) -> None:
        if not self._thinking or data.get("agent") != self._agent:
            return
        if self._open is self._out:
            self._break()
        self._put(self._err, self._coloured(str(data.get("text", "")), _DIM))

    def _on_turn_ended(self, data: dict[str, Any]) -> None:
        agent = str(data.get("agent"))
        said = self._aside.pop(agent, "")
        if said.strip():
            self._write_line((f"  {agent_key(agent)}: {one_line(said)}", _DIM))
        if agent == self._agent:
            self._break()

    def _on_tool_started(self, data: dict[str, Any]) -> None:
        gist = gist_of_call(data)
        self._running[str(data["request_id"])] = (gist, self._clock.monotonic_s())
        self._break()
        self.tick()

    def _on_tool_finished(self, data: dict[str, Any]) -> None:
        gist, _ = self._running.pop(str(data["request_id"]), (gist_of_call(data), 0.0))
        self.calls += 1
        status = str(data.get("status"))
        mark, word, colour = MARKS.get(status, ("?", status, "0"))
        caller = str(data.get("caller"))
        indent = "" if caller == self._agent else f"  {agent_key(caller)} "
        took = f"{float(data.get('duration_ms') or 0):.0f} ms"
        why = "" if status == "completed" else f": {why_of(data.get('error'))}"
        shown = f"{mark} {word:<9}" if self._live else f"{word:<9}"
        self._write_line((indent, _DIM), (shown, colour), (f" {gist}  {took}{why}", ""))

    def _on_model_retried(self, data: dict[str, Any]) -> None:
        wait = float(data.get("wait_s") or 0)
        if data.get("agent") == self._agent:
            self.text = self._held = ""
        self._aside.pop(str(data.get("agent")), None)
        self.note(f"~ retrying the model in {wait:.1f} s: {one_line(data.get('reason'))}")

    def _on_compaction_finished(self, data: dict[str, Any]) -> None:
        before, after = data.get("tokens_before"), data.get("tokens_after")
        self._write_line((f"~ context window compacted: {before} → {after} tokens", _DIM))

    def _on_run_ended(self, data: dict[str, Any]) -> None:
        for word, told in (
            ("to_review", "~ changed, and to be looked at before it is trusted"),
            ("taken_back", "~ taken back, because programs of this machine would run it"),
        ):
            paths = data.get(word)
            if isinstance(paths, list) and paths:
                listed = ", ".join(one_line(one) for one in paths[:MAX_LISTED])
                more = f" and {len(paths) - MAX_LISTED} more" if len(paths) > MAX_LISTED else ""
                self.note(f"{told}: {listed}{more}")

    def _on_session_switched(self, data: dict[str, Any]) -> None:
        self.note(f"~ the project's current session is now {data.get('to')}")

    def _on_session_switch_vetoed(self, data: dict[str, Any]) -> None:
        self.note(f"~ a switch was vetoed: {one_line(data.get('reason'))}")

    # -- writing -------------------------------------------------------------------------------

    def _remember(self, text: str) -> None:
        self.text = (self.text + text)[:MAX_TEXT_CHARS]

    def _put(self, where: TextIO, text: str) -> None:
        """Write a piece of a line."""
        self._clear_status()
        if self._open is not where:
            self._break()
        where.write(text)
        where.flush()
        if text:
            self._open = None if text.endswith("\n") else where

    def _break(self) -> None:
        """End the line that is begun, and give out what was held back."""
        self._clear_status()
        if self._open is not None:
            where, self._open = self._open, None
            self._write(where, "")
        if self._held:
            text, self._held = harmless(self._held), ""
            self._write(self._out, text.removesuffix("\n"))

    def _put_status(self, text: str) -> None:
        self._err.write(f"\r\x1b[2K{text}")
        self._err.flush()
        self._status_shown = True

    def _clear_status(self) -> None:
        if self._status_shown:
            self._err.write("\r\x1b[2K")
            self._err.flush()
            self._status_shown = False

    def _write_line(self, *pieces: tuple[str, str]) -> None:
        """Write a line beside the agent's words; each piece is (text, colour)."""
        if self._json:
            return
        self._break()
        self._write(self._err, "".join(self._coloured(text, colour) for text, colour in pieces))

    def _coloured(self, text: str, colour: str) -> str:
        plain = harmless(text)
        return f"\x1b[{colour}m{plain}\x1b[0m" if colour and self._colors else plain

    def _write(self, where: TextIO, text: str) -> None:
        where.write(f"{text}\n")
        where.flush()


def gist_of_call(data: dict[str, Any]) -> str:
    """Return a call in a few words: the tool, and the parameter that says the most."""
    params = data.get("params")
    told = ""
    if isinstance(params, dict):
        told = next((str(params[name]) for name in _TELLING if params.get(name)), "")
    gist = f"{data.get('tool_name')} {told}".strip()
    gist = one_line(gist)
    return gist if len(gist) <= GIST_CHARS else gist[: GIST_CHARS - 1] + "…"


def why_of(error: object) -> str:
    """Return why a call failed, in one line."""
    said = error.get("message") or error.get("code") if isinstance(error, dict) else error
    return one_line(said or "no reason given")[:NOTE_CHARS]


def agent_key(agent: str) -> str:
    """Return the last part of an agent's path."""
    return agent.rpartition(".")[2]
