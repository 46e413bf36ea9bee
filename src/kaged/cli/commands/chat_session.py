"""`Chat`: a conversation in one session at a time, and its commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Final, Self

from kaged.cli.output import Output, counted, one_line, show_rows
from kaged.cli.runner import DaemonClient

if TYPE_CHECKING:
    from kaged.cli.commands.driving import EndedRun, WatchedSession
    from kaged.cli.runview import RunView

COMMANDS: Final = {
    "new": ("", "start a new session"),
    "sessions": ("", "list the sessions"),
    "switch": ("ID", "switch to another session"),
    "fork": ("[ENTRY]", "fork at an entry, or at the end, and switch to the fork"),
    "answer": ("", "answer the agent's question"),
    "undo": ("", "undo what the last run did to files"),
    "diff": ("", "show what the last run changed in files"),
    "compact": ("", "compact the agent's context window now"),
    "context": ("", "show how full the context window is"),
    "cost": ("", "show what this session took of models"),
    "model": ("[ALIAS]", "use another model from now on; without an alias, the agent's own"),
    "tools": ("", "list the agent's tools"),
    "steer": ("TEXT", "interrupt the agent with a message; in a terminal also: type, then Esc"),
    "help": ("", "show this list"),
    "quit": ("", "leave; the session is kept"),
}
"""The commands of a chat: what may follow each, and what it does."""

HELP: Final = "\n".join(
    [
        *(f"{f'/{name} {more}'.rstrip():<16}{told}" for name, (more, told) in COMMANDS.items()),
        "Everything else is sent to the agent. Ctrl-C cancels its run.",
    ]
)


class Chat:
    """A conversation in one session at a time, following switches."""

    def __init__(
        self, client: DaemonClient, output: Output, options: dict[str, Any], *, thinking: bool
    ) -> None:
        self._client = client
        self._output = output
        self._options = options
        self._thinking = thinking
        self._last_run: str | None = None
        self._follows = False
        self.session_id = ""
        self._untitled = False

    @property
    def _commands(self) -> dict[str, Callable[[str], None]]:
        """What each command does; made for each line, since a chat can be copied."""
        return {
            "new": lambda _rest: self.enter(None),
            "sessions": lambda _rest: self._sessions(),
            "switch": self._switch,
            "fork": self._fork,
            "answer": lambda _rest: self._say(None),
            "undo": lambda _rest: self._undo(),
            "compact": lambda _rest: self._compact(),
            "model": self._model,
            "tools": lambda _rest: self._tools(),
            "diff": lambda _rest: self._diff(),
            "cost": lambda _rest: self._cost(),
            "context": lambda _rest: self._context(),
            "steer": self._say,
            "help": lambda _rest: self._output.line(HELP),
        }

    def beside(self, client: DaemonClient) -> Self:
        """Return a chat in the same session for another thread, for looking only."""
        inner = copy(self)
        inner.use(client)
        return inner

    def use(self, client: DaemonClient) -> None:
        """Ask the daemon through this client from now on."""
        self._client = client

    def enter(self, session: str | None) -> None:
        """Enter a session; None starts a new one."""
        if session is None:
            found = self._client.post("/sessions", {"model": self._options["model"]})
        else:
            found = self._client.get(f"/sessions/{session}")
        self.session_id = str(found["id"])
        self._follows = bool(found["current"])
        self._untitled = found.get("title", "") is None
        self._last_run = None
        self._output.note(f"session {self.session_id}")

    def follow(self) -> None:
        """Enter the project's current session, if this chat was in the one before."""
        current = current_session(self._client) if self._follows else None
        if current is not None and current != self.session_id:
            self._output.note("The project has switched to another session.")
            self.enter(current)

    def run(self, lines: Callable[[], str | None]) -> None:
        """Handle lines until there are no more, or one asks to leave."""
        from kaged.cli.client import DaemonRefused

        while True:
            line = lines()
            if line is None or line.strip() in {"/quit", "/exit"}:
                return
            if not line.strip():
                continue
            try:
                self.take(line.strip())
            except DaemonRefused as error:
                # An error of the daemon ends the line, not the chat.
                self._output.error(error.code, error.message, error.fix, error.body)

    def take(self, line: str) -> None:
        """Handle one line: a command, or a message for the agent."""
        if not line.startswith("/"):
            self.follow()
            self._say(line)
            return
        name, _, rest = line[1:].partition(" ")
        work = self._commands.get(name)
        if (work is None or name == "undo") and self._script(name, rest.strip()):
            self.follow()
        elif work is None:
            self._output.note(f"There is no command /{name}. /help lists the commands.")
        else:
            work(rest.strip())

    def _script(self, name: str, rest: str) -> bool:
        """Run a script's command; returns whether a script has one of that name."""
        from kaged.cli.commands.lua_dialogs import on_terminal, run_script_command, script_has

        if not script_has(self._client, name):
            return False
        asks = on_terminal() and not self._output.as_json
        found = run_script_command(self._client, self._client, name, rest, interactive=asks)
        for notice in found["notices"]:
            self._output.note(f"[{notice['script']}] {notice['message']}")
        if found["text"]:
            self._output.note(found["text"])
        return True

    def view(self) -> RunView:
        """Return what the next run is shown by."""
        from kaged.cli.views import run_view

        return run_view(
            as_json=self._output.as_json, agent=self._options["agent"], thinking=self._thinking
        )

    def conversation(self) -> WatchedSession:
        """Return what sends messages in the session and follows its runs."""
        from kaged.cli.commands.driving import WatchedSession

        return WatchedSession(self._client, self.session_id, self.view(), self._output)

    def talk(self, conversation: WatchedSession, text: str | None) -> EndedRun | None:
        """Send a message and follow the run; None answers the pending question."""
        if text is None:
            return conversation.settle()
        return conversation.say(text, **self._options)

    def _say(self, text: str | None) -> None:
        """Send a message to the agent; None answers its question."""
        if text == "":
            self._output.note("/steer needs a text.")
            return
        self._give_title(text)
        with self.conversation() as conversation:
            ended = self.talk(conversation, text)
            if ended is None:
                self._output.note(
                    "The agent has no pending question, or there is no terminal to answer on."
                )
                return
            self._last_run = ended.run_id
            moved = conversation.switched_to
        if moved is not None:
            self.enter(moved)

    def _give_title(self, text: str | None) -> None:
        """Name a session after the first thing that is said in it."""
        from kaged.cli.client import DaemonRefused
        from kaged.cli.commands.driving import title_of

        title = title_of(text) if self._untitled and text else ""
        self._untitled = self._untitled and not title
        if title:
            with suppress(DaemonRefused):  # somebody else's session, which has the name they like
                self._client.patch(f"/sessions/{self.session_id}", {"title": title})

    def _sessions(self) -> None:
        found = self._client.get("/sessions", {"limit": 20})
        self._output.result(found)
        columns = (
            ("", lambda one: "→" if one["id"] == self.session_id else ""),
            "id",
            "status",
            "entries",
            "title",
        )
        show_rows(found["items"], columns, self._output)

    def _switch(self, which: str) -> None:
        if not which:
            self._output.note("/switch needs a session's id. /sessions lists the sessions.")
            return
        found = self._client.post(f"/sessions/{which}/switch")
        self._moved(found)

    def _fork(self, at: str) -> None:
        body = {"at": at or None, "switch": True}
        self._moved(self._client.post(f"/sessions/{self.session_id}/fork", body))

    def _moved(self, found: dict[str, Any]) -> None:
        session = found["session"]
        if found["pending"] or session is None:
            self._output.note("The session is switched when the active run has ended.")
        else:
            self.enter(str(session["id"]))

    def _undo(self) -> None:
        if self._last_run is None:
            self._output.note(
                "There was no run in this chat yet. `kaged undo list` lists older steps."
            )
            return
        found = self._client.post("/undo", {"run_id": self._last_run})
        self._output.result(found)
        for file in found["files"]:
            self._output.line(f"{file['change']} {file['path']}")

    def _compact(self) -> None:
        body = {"agent": self._options["agent"], "dry_run": False}
        found = self._client.post(f"/sessions/{self.session_id}/compact", body)
        self._output.result(found)
        done = "was compacted" if found.get("compacted") else "needs no compaction"
        self._output.line(f"The context window {done}.")

    def _diff(self) -> None:
        """Show the edits of the last run, as their tools told them."""
        params = {"run_id": self._last_run, "limit": 200}
        if self._last_run is None:
            self._output.note("There was no run in this chat yet.")
            return
        found = self._client.get(f"/sessions/{self.session_id}/tool-calls", params)["items"]
        edits = [one for one in found if _diff_of(one)]
        self._output.result(edits)
        for one in edits:
            self.show_diff(one_line(one["params"].get("path", "")), _diff_of(one))
        if not edits:
            self._output.note("The last run edited no file.")

    def show_diff(self, path: str, diff: str) -> None:
        """Show one edit."""
        self._output.line(path)
        self._output.line(diff)

    def _cost(self) -> None:
        """Show what the runs of this session took."""
        runs = list(self._client.pages(f"/sessions/{self.session_id}/runs"))
        sums = {
            name: sum((one["usage"] or {}).get(name) or 0 for one in runs)
            for name in ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")
        }
        self._output.result({"runs": len(runs), **sums})
        cost = f"${sums['cost_usd']:.4f}" if sums["cost_usd"] else "no known price"
        self._output.line(
            f"{counted(len(runs), 'run')}: {sums['input_tokens']} tokens in "
            f"({sums['cached_tokens']} from a cache), {sums['output_tokens']} out, {cost}."
        )

    def _context(self) -> None:
        """Show how full the window is, and what a compaction would make of it."""
        body = {"agent": self._options["agent"], "dry_run": True}
        found = self._client.post(f"/sessions/{self.session_id}/compact", body)
        self._output.result(found)
        for name in ("tokens", "tokens_before", "threshold", "context_tokens", "tokens_after"):
            if found.get(name) is not None:
                self._output.line(f"{name.replace('_', ' ')}: {found[name]}")

    def _model(self, alias: str) -> None:
        self._options["model"] = alias or None
        self._output.note(f"model: {alias}" if alias else "model: the agent's own")

    def _tools(self) -> None:
        found = self._client.get("/tools", {"agent": self._options["agent"]})
        self._output.table(
            ["tool", "what it does"],
            [[one["name"], one["description"].splitlines()[0]] for one in found["tools"]],
        )


def _diff_of(call: dict[str, Any]) -> str:
    result = call.get("result")
    diff = result.get("diff") if isinstance(result, dict) else None
    return diff if isinstance(diff, str) else ""


def current_session(client: DaemonClient) -> str | None:
    """Return the project's current session."""
    found = client.get("/sessions/tree")["current"]
    return None if found is None else str(found)
