"""`TerminalView`: a run for somebody who watches it in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

from rich.text import Text

from kaged.base import Clock
from kaged.base.lazy_dataclass import dataclass
from kaged.cli.output import harmless, one_line
from kaged.cli.runview import MARKS, NOTE_CHARS, RunView, agent_key, gist_of_call, why_of
from kaged.cli.terminal.markdown import MarkdownStream, rendered
from kaged.cli.terminal.screen import Surface, fitted
from kaged.cli.terminal.status import RunStatus, short_time
from kaged.cli.terminal.tool_view import detail_lines

MAX_RUNNING: Final = 6
"""How many calls and subagents have a line of their own at a time."""

_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_STYLES: Final = {"completed": "green", "denied": "red", "failed": "yellow", "cancelled": "dim"}


@dataclass(slots=True)
class _Running:
    """A call that runs."""

    gist: str
    agent: str
    since_s: float
    params: Any
    said: str = ""


@dataclass(slots=True)
class _Subagent:
    """A subagent at work."""

    since_s: float
    calls: int = 0
    said: str = ""
    running: dict[str, _Running] = field(default_factory=dict[str, "_Running"])


class TerminalView(RunView):
    """Shows events on a surface: what is finished, and what is going on below it.

    `with_status` says whether the line at the bottom is drawn here; a prompt draws it itself.
    """

    def __init__(
        self,
        surface: Surface,
        status: RunStatus,
        *,
        agent: str = "primary",
        thinking: bool = False,
        with_status: bool = True,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(as_json=False, agent=agent, thinking=thinking, clock=clock)
        self._surface = surface
        self._status = status
        self._with_status = with_status
        self._markdown = MarkdownStream()
        self._thought = ""
        self._calls: dict[str, _Running] = {}
        self._subagents: dict[str, _Subagent] = {}
        self._ticks = 0
        self._over = False
        self._last = ""

    def show(self, event: dict[str, Any]) -> None:
        """Show one event."""
        self._over = False
        self._status.take(event)
        super().show(event)

    def tick(self) -> None:
        """Show that it lives; called now and then while nothing happens."""
        self._ticks += 1
        self._over = False
        self._draw()

    def close(self) -> None:
        """Leave the terminal as it should be: everything finished, nothing below."""
        self._over = True
        self._finish(self._ended_text())

    def note(self, text: str) -> None:
        """Print a note beside the agent's words."""
        self._finish(_styled_lines(harmless(text), "dim", self._width))

    def activity(self) -> list[str]:
        """Return the lines about what runs now."""
        mark = _SPINNER[self._ticks % len(_SPINNER)]
        now_s = self._clock.monotonic_s()
        lines: list[str] = []
        for call in list(self._calls.values()):
            took = short_time(now_s - call.since_s)
            said = f" · {call.said}" if call.said else ""
            lines.append(self._line((f"{mark} ", "cyan"), (f"{call.gist} · {took}{said}", "")))
        for agent, one in list(self._subagents.items()):
            doing = next((call.gist for call in reversed(list(one.running.values()))), one.said)
            took = short_time(now_s - one.since_s)
            told = f"{doing or 'thinking'} · {one.calls} calls · {took}"
            lines.append(
                self._line((f"{mark} ", "cyan"), (f"{agent_key(agent)} ", "magenta"), (told, ""))
            )
        left_out = len(lines) - MAX_RUNNING
        if left_out > 0:
            lines = [*lines[:MAX_RUNNING], self._line((f"  … {left_out} more at work", "dim"))]
        return lines

    def status_line(self, *more: str) -> str:
        """Return the line at the bottom, as plain text, with `more` behind the time."""
        spent = short_time(self._clock.monotonic_s() - self._began_s)
        doing = "working" if self._calls or self._subagents else "thinking"
        return " · ".join([doing, spent, *more, *self._status.parts()])

    # -- events --------------------------------------------------------------------------------

    def _on_turn_started(self, data: dict[str, Any]) -> None:
        agent = str(data.get("agent"))
        if agent == self._agent:
            self.text = ""
        else:
            self._subagent(agent)
        self._draw()

    def _on_text_delta(self, data: dict[str, Any]) -> None:
        text, agent = str(data.get("text", "")), str(data.get("agent"))
        if agent != self._agent:
            one = self._subagent(agent)
            one.said = one_line((one.said + text)[-NOTE_CHARS:])
            self._draw()
            return
        self._remember(text)
        self._finish(
            [*self._ended_thought(), *self._spaced(self._markdown.feed(text, self._width))]
        )

    def _on_thinking_delta(self, data: dict[str, Any]) -> None:
        if self._thinking and data.get("agent") == self._agent:
            self._thought += str(data.get("text", ""))
            self._draw()

    def _on_turn_ended(self, data: dict[str, Any]) -> None:
        agent = str(data.get("agent"))
        if agent == self._agent:
            self._finish(self._ended_text())
            return
        one = self._subagents.get(agent)
        if one is not None and not data.get("had_tool_calls"):
            del self._subagents[agent]
            told = f"{one.calls} calls · {short_time(self._clock.monotonic_s() - one.since_s)}"
            said = f": {one.said[:NOTE_CHARS]}" if one.said else ""
            self._finish(
                [self._line(("  ", ""), (agent_key(agent), "magenta"), (f" {told}{said}", "dim"))]
            )
        elif one is not None:
            one.said = ""

    def _on_tool_started(self, data: dict[str, Any]) -> None:
        gist, caller = gist_of_call(data), str(data.get("caller"))
        call = _Running(gist, caller, self._clock.monotonic_s(), data.get("params"))
        of = self._calls if caller == self._agent else self._subagent(caller).running
        of[str(data["request_id"])] = call
        self._finish(self._ended_text() if caller == self._agent else [])

    def _on_tool_updated(self, data: dict[str, Any]) -> None:
        request = str(data.get("request_id"))
        found = next(
            (of[request] for of in (self._calls, *self._running_of_others()) if request in of), None
        )
        if found is not None:
            found.said = one_line(data.get("text") or "")[:NOTE_CHARS]
            self._draw()

    def _on_tool_finished(self, data: dict[str, Any]) -> None:
        request, caller = str(data["request_id"]), str(data.get("caller"))
        mine = caller == self._agent
        of = self._calls if mine else self._subagent(caller).running
        call = of.pop(request, None)
        self.calls += 1
        if not mine:
            self._subagent(caller).calls += 1
        status = str(data.get("status"))
        if not mine and status == "completed":
            self._draw()  # its own line counts it
            return
        mark, word, _ = MARKS.get(status, ("?", status, "0"))
        gist = gist_of_call(data) if call is None else call.gist
        took = f"{float(data.get('duration_ms') or 0) / 1000:.1f}s"
        why = "" if status == "completed" else f"{word}: {why_of(data.get('error'))}"
        head = self._line(
            ("" if mine else f"  {agent_key(caller)} ", "magenta"),
            (f"{mark} ", _STYLES.get(status, "")),
            (gist, "bold" if mine else ""),
            (f"  {took}", "dim"),
        )
        params = None if call is None else call.params
        details = detail_lines({**data, "params": params}, self._width) if mine else []
        reason = _styled_lines(why, _STYLES.get(status, ""), self._width - 4)
        told = [f"  {line}" for line in reason]
        said = self._ended_text()
        gap = [""] if self._last == "text" else []
        self._last = "call"
        self._finish([*said, *gap, head, *told, *details])

    def _on_model_retried(self, data: dict[str, Any]) -> None:
        if data.get("agent") == self._agent:
            self._markdown.drop()
            self._thought = self.text = ""
        wait = float(data.get("wait_s") or 0)
        self.note(f"~ retrying the model in {wait:.1f} s: {one_line(data.get('reason'))}")

    # -- drawing -------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return max(self._surface.size()[0], 20)

    def _subagent(self, agent: str) -> _Subagent:
        return self._subagents.setdefault(agent, _Subagent(self._clock.monotonic_s()))

    def _running_of_others(self) -> list[dict[str, _Running]]:
        return [one.running for one in self._subagents.values()]

    def _ended_text(self) -> list[str]:
        return [*self._ended_thought(), *self._spaced(self._markdown.end(self._width))]

    def _spaced(self, text: list[str]) -> list[str]:
        """Return lines of text with an empty one before them where they stand behind calls."""
        gap = [""] if text and self._last == "call" else []
        self._last = "text" if text else self._last
        return [*gap, *text]

    def _ended_thought(self) -> list[str]:
        text, self._thought = self._thought, ""
        return _styled_lines(harmless(text).strip("\n"), "dim italic", self._width) if text else []

    def _draw(self) -> None:
        self._finish(())

    def _finish(self, lines: Sequence[str]) -> None:
        if self._over:
            self._surface.update(list(lines), ())
            return
        width, height = self._surface.size()
        if self._thought:
            tail = _styled_lines(harmless(self._thought).strip("\n"), "dim italic", width)
        else:
            tail = self._markdown.tail(width)
        below = self.activity()
        if self._with_status:
            below = [*below, self._line((self.status_line(), "dim"))]
        room = max(1, height - len(below) - 2)
        self._surface.update(list(lines), [*tail[-room:], *below])

    def _line(self, *pieces: tuple[str, str]) -> str:
        """Return one line; each piece is (text, style)."""
        text = Text(no_wrap=True, overflow="ellipsis")
        for piece, style in pieces:
            text.append(harmless(piece), style=style)
        return fitted(rendered(text, 10_000)[0], self._width - 1)

    def _write_line(self, *pieces: tuple[str, str]) -> None:
        self._finish([self._line(*pieces)])


def _styled_lines(text: str, style: str, width: int) -> list[str]:
    return rendered(Text(text, style=style), width) if text else []
