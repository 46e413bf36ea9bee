"""`OpenRequests`: what stops a run until a person chooses, shown and answered where it is followed.

A request says what is asked, in words, and its choices; what kind it is makes no difference here.
"""

from __future__ import annotations

import select
import sys
from typing import TYPE_CHECKING, Any, Final

from kaged.cli.output import one_line
from kaged.cli.runner import DaemonClient
from kaged.cli.runview import NOTE_CHARS

if TYPE_CHECKING:
    from kaged.cli.runview import RunView

MAX_DETAILS: Final = 40
_ASKED_ELSEWHERE: Final = frozenset({"ask", "form", "checkpoint", "dialog"})
"""Kinds with a way of their own: questions pause the run, dialogs belong to a script's command."""


class OpenRequests:
    """The requests of one session that wait for a choice, the oldest first."""

    def __init__(self, client: DaemonClient, view: RunView, *, interactive: bool) -> None:
        self._client = client.below("")
        self._view = view
        self._interactive = interactive
        self._open: dict[str, dict[str, Any]] = {}

    def take(self, name: str, data: dict[str, Any]) -> bool:
        """Take note of an event of a session's request; returns whether it is one to choose in."""
        if data.get("kind") in _ASKED_ELSEWHERE:
            return False
        request = str(data.get("id"))
        if name.endswith(".required"):
            self._show(request)
        elif self._open.pop(request, None) is not None:
            self._view.note("~ answered, or no longer asked")
        return True

    def choose(self, line: str, client: DaemonClient | None = None) -> bool:
        """Answer the oldest request with what was typed; returns whether it is one of its choices.

        Another thread than the one that follows the run brings a `client` of its own.

        Raises:
            DaemonRefused: it was answered meanwhile, or may not be answered so.
        """
        if not self._open:
            return False
        request, asked = next(iter(self._open.items()))
        choices, said = list(asked["choices"]), line.strip().casefold()
        if said.isdecimal() and 1 <= int(said) <= len(choices):
            choice = choices[int(said) - 1]
        else:
            choice = next((one for one in choices if one.casefold() == said), None)
        if choice is None:
            return False
        del self._open[request]
        answer = {"digest": asked["digest"], "answer": {"choice": choice}}
        asking = self._client if client is None else client.below("")
        asking.post(f"/inbox/{request}/answer", answer)
        return True

    def poll(self) -> None:
        """Take a choice from the terminal if one was typed. Does not wait."""
        from kaged.cli.client import DaemonRefused

        if not self._open or not self._interactive:
            return
        if not select.select([sys.stdin], [], [], 0)[0]:
            return
        line = sys.stdin.readline()
        try:
            if line and not self.choose(line):
                self._view.note("Type one of the choices, or its number.")
        except DaemonRefused as error:
            self._view.note(f"{error.message} [{error.code}]")

    def _show(self, request: str) -> None:
        """Show what is asked, and how to answer."""
        from kaged.cli.client import DaemonRefused

        try:
            asked = self._client.get(f"/inbox/{request}")
        except DaemonRefused:
            return  # answered or taken back meanwhile, or somebody else's to answer
        self._view.note(f"~ waits for a person: {one_line(asked['title'])}")
        for line in asked["details"][:MAX_DETAILS]:
            self._view.note(f"  {one_line(line)[:NOTE_CHARS]}")
        if not asked["choices"]:
            self._view.note(f"  `kaged inbox` shows how to answer {request}.")
            return
        self._open[request] = asked
        if self._interactive:
            for number, choice in enumerate(asked["choices"], start=1):
                self._view.note(f"  {number}. {one_line(choice)}")
            self._view.note("  Type a number and press Enter.")
        choices = "|".join(asked["choices"])
        self._view.note(f"  Answer with: kaged inbox choose {request} {choices}")
