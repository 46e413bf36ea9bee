"""`ChatTerminal`: `kaged chat` for somebody at a terminal, who may type while the agent works.

One thread reads what is typed, another does it. What is typed meanwhile is queued: the daemon hands
it to the agent at the end of its turn.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any, Final, TextIO, cast

import typer

from kaged.cli.commands.asking import Read
from kaged.cli.commands.chat_session import COMMANDS, Chat
from kaged.cli.commands.driving import EndedRun, WatchedSession
from kaged.cli.context import locations, report
from kaged.cli.output import Output, one_line
from kaged.cli.runner import DaemonClient
from kaged.cli.terminal.completion import ChatCompleter
from kaged.cli.terminal.history import ChatHistory
from kaged.cli.terminal.markdown import styled
from kaged.cli.terminal.project_files import ProjectFiles
from kaged.cli.terminal.prompt import MESSAGE_LIMIT_CHARS, ChatPrompt, quiet_keyboard
from kaged.cli.terminal.status import RunStatus
from kaged.cli.terminal.tool_view import diff_lines
from kaged.cli.terminal.view import TerminalView

MEANWHILE: Final = frozenset({"help", "cost", "context", "diff", "model", "tools", "sessions"})
"""Commands that change nothing that a run stands on."""

LEAVE_S: Final = 2.0


class _AbovePrompt(io.TextIOBase):
    """A stream whose lines are written above the prompt."""

    def __init__(self, prompt: ChatPrompt) -> None:
        self._prompt = prompt
        self._rest = ""

    def isatty(self) -> bool:
        """Return whether people look at it."""
        return True

    def write(self, text: str, /) -> int:
        """Write the lines that are whole."""
        *lines, self._rest = (self._rest + text).split("\n")
        self._prompt.write(lines)
        return len(text)


class _Conversation(Chat):
    """A chat whose runs are shown above the prompt."""

    def __init__(self, terminal: ChatTerminal, client: DaemonClient, **more: Any) -> None:
        super().__init__(client, terminal.output, terminal.options, **more)
        self._terminal = terminal

    def conversation(self) -> WatchedSession:
        """Return what sends messages in the session and follows its runs."""
        return self._terminal.watched(self._client, self.session_id)

    def talk(self, conversation: WatchedSession, text: str | None) -> EndedRun | None:
        """Send a message and follow the run, and the runs that queued messages start behind it."""
        ended = super().talk(conversation, text)
        while ended is not None and ended.status != "cancelled" and self._terminal.queued:
            self._terminal.queued.clear()
            ended = conversation.watch(conversation.next_run(ended.run_id))
        return ended

    def show_diff(self, path: str, diff: str) -> None:
        """Show one edit in colors."""
        columns = self._terminal.prompt.size()[0]
        self._terminal.prompt.write([styled(path, "bold"), *diff_lines(diff, columns)])


class ChatTerminal:
    """The screen, the keyboard and what goes on between them."""

    def __init__(
        self, client: DaemonClient, options: dict[str, Any], *, thinking: bool, **session: Any
    ) -> None:
        """`session` is for prompt_toolkit: where it reads and writes in tests."""
        self.options = options
        self.queued: list[str] = []
        self._client = client
        self._control = client.another()  # what is typed while a run is followed
        self._controlling = threading.Lock()
        self._thinking = thinking
        self._next: str | None = None
        self._worker: threading.Thread | None = None
        self._view: TerminalView | None = None
        self._watched: WatchedSession | None = None
        self._leaving = False
        self.status = RunStatus(options["agent"])
        project = client.get("")
        names = {name: told for name, (_, told) in COMMANDS.items()}
        folder = locations().state_dir / "chat-history.d"
        self.prompt = ChatPrompt(
            ChatHistory(folder / str(project["id"])),
            ChatCompleter(names, ProjectFiles(str(project.get("root") or "/nowhere"))),
            toolbar=self._toolbar,
            is_busy=self._is_busy,
            interrupt=self._interrupt,
            steer=self._steer,
            **session,
        )
        above = cast("TextIO", _AbovePrompt(self.prompt))
        self.output = Output(as_json=False, stdout=above, stderr=above)
        self._chat = _Conversation(self, client, thinking=thinking)

    def run(self, session: str | None) -> None:
        """Talk until the person leaves."""
        with quiet_keyboard():
            self._chat.enter(session)
            while not self._leaving:
                line = self.prompt.line()
                if line is None or line.strip() in {"/quit", "/exit"}:
                    break
                try:
                    self._take(line.strip())
                except KeyboardInterrupt:  # between two prompts
                    self._interrupt()
            self._leave()

    def watched(self, client: DaemonClient, session_id: str) -> WatchedSession:
        """Return what follows runs, and asks its questions at the prompt."""
        view = TerminalView(
            self.prompt,
            self.status,
            agent=self.options["agent"],
            thinking=self._thinking,
            with_status=False,
        )
        self._view = view
        read: Read = self._read
        self._watched = WatchedSession(
            client, session_id, view, self.output, read=read, heard=self._heard
        )
        return self._watched

    # -- what is typed -------------------------------------------------------------------------

    def _take(self, line: str) -> None:
        if self.prompt.answer(line):
            self.prompt.write([styled(f"> {_shown(line)}", "cyan")])
            return
        if not line:
            return
        if len(line) > MESSAGE_LIMIT_CHARS:
            self.output.note(f"A message has at most {MESSAGE_LIMIT_CHARS} characters.")
            return
        self.prompt.write(["", *_echo(line)])
        name, _, rest = line[1:].partition(" ") if line.startswith("/") else ("", "", "")
        if not self._is_busy():
            self._start(line)
        elif self._chosen(line):
            return
        elif name == "steer" and rest.strip():
            self._steer(rest.strip())
        elif name in MEANWHILE:
            self._guarded(lambda: self._chat.beside(self._control).take(line))
        elif name:
            self.output.note(f"/{name} has to wait until the agent is done. Esc interrupts it.")
        else:
            self._guarded(lambda: self._queue(line))

    def _start(self, line: str) -> None:
        self._worker = threading.Thread(target=self._work, args=(line,), daemon=True)
        self._worker.start()

    def _work(self, line: str) -> None:
        text: str | None = line
        while text is not None:
            taken = text
            self._guarded(lambda: self._chat.take(taken))  # noqa: B023 - called at once
            self._view = self._watched = None
            text, self._next = self._next, None

    def _queue(self, text: str) -> None:
        """Hand a message to the run that is active."""
        path = f"/sessions/{self._chat.session_id}/message"
        self.queued.append(text)
        with self._controlling:
            sent = self._control.post(path, {"text": text, "queue": True})
        if not sent["queued"]:
            return  # the run was just over; it is followed as one that a queued message started
        self.prompt.write([styled("  queued for the end of the agent's turn", "dim")])

    def _steer(self, text: str) -> None:
        """End the run and go on with a message, behind those that wait already."""
        waiting, self.queued[:] = list(self.queued), []
        self._next = "\n\n".join([*waiting, text])
        if text and not text.startswith("/"):
            self.prompt.write(["", *_echo(text)])
        self._interrupt()

    def _interrupt(self) -> None:
        """End the run, in the background: that may take a moment."""
        if self._next is None and self.queued:
            waiting, self.queued[:] = list(self.queued), []
            self._next = "\n\n".join(waiting)
        if self.prompt.answer(None):
            return
        self.output.note("Canceling the run.")
        work = threading.Thread(target=lambda: self._guarded(self._cancel), daemon=True)
        work.start()

    def _cancel(self) -> None:
        with self._controlling:
            self._control.post(f"/sessions/{self._chat.session_id}/cancel")

    def _chosen(self, line: str) -> bool:
        """Take a line as the choice that a request waits for."""
        chosen = [False]

        def choose() -> None:
            watched = self._watched
            with self._controlling:
                chosen[0] = watched is not None and watched.requests.choose(line, self._control)

        self._guarded(choose)
        return chosen[0]

    def _read(self, question: str) -> str:
        found = self.prompt.ask(question)
        if found is None:
            raise typer.Abort
        return found

    # -- what there is to see ------------------------------------------------------------------

    def _heard(self, event: dict[str, Any]) -> None:
        """Forget a queued message once the agent was told it."""
        data = event["data"]
        if event["name"] != "entry.appended" or data.get("role") != "user":
            return
        watched = self._watched
        if watched is None or watched.takes_first(str(data.get("run_id"))):
            return
        if self.queued and data.get("agent") == self.options["agent"]:
            self.prompt.write(["", *_echo(self.queued.pop(0))])

    def _toolbar(self) -> str:
        parts = self.status.parts()
        if self.options["model"]:
            parts = [str(self.options["model"]), *parts[1:]]
        waiting = [f"{len(self.queued)} queued"] if self.queued else []
        view = self._view
        if view is not None and self._is_busy():
            return view.status_line("Esc interrupts", *waiting)
        return " · ".join([*(parts or ["ready"]), "/help"])

    def _is_busy(self) -> bool:
        return self._worker is not None and self._worker.is_alive()

    def _guarded(self, work: Any) -> None:
        """Do something; what goes wrong ends that, and not the chat."""
        try:
            work()
        except typer.Abort:
            self.output.note("Not answered.")
        except Exception as error:  # noqa: BLE001  # boundary: one line of a chat
            report(error, self.output)

    def _leave(self) -> None:
        self._leaving = True
        if self._is_busy():
            self.output.note(
                f"The run goes on without you. `kaged chat --session {self._chat.session_id}`"
                " shows the session."
            )
        self.prompt.flush()


def _echo(line: str) -> Sequence[str]:
    """Return what was typed as it stays on the screen."""
    first, *rest = _shown(line).split("\n")
    return [styled(f"> {first}", "bold cyan"), *(styled(f"  {one}", "cyan") for one in rest)]


def _shown(text: str) -> str:
    return "\n".join(one_line(one) for one in text.split("\n"))
