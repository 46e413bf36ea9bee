"""`ChatPrompt`: the line that a person types on, below what the run shows, at the same time."""

from __future__ import annotations

import queue
import shutil
import sys
import termios
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from kaged.cli.terminal.screen import fitted

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

KEY_PAUSE_S: Final = 0.1
"""How long Esc waits for what may follow it, since other keys begin with it as well."""

REFRESH_S: Final = 0.25
MESSAGE_LIMIT_CHARS: Final = 500_000
SPARED_LINES: Final = 8
MARK: Final = "> "


class ChatPrompt:
    """A prompt that other threads may write above. `steer` gets the text when Esc is pressed."""

    def __init__(
        self,
        history: History,
        completer: Completer,
        *,
        toolbar: Callable[[], str],
        is_busy: Callable[[], bool],
        interrupt: Callable[[], None],
        steer: Callable[[str], None],
        **session: Any,
    ) -> None:
        self._is_busy = is_busy
        self._interrupt = interrupt
        self._steer = steer
        self._live: list[str] = []
        self._next_live: list[str] = []
        self._pending: list[str] = []
        self._writing = False
        self._asked: str | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._lock = threading.Lock()
        self._session: PromptSession[str] = PromptSession(
            self._message,
            history=history,
            completer=completer,
            complete_in_thread=True,
            complete_while_typing=True,
            multiline=True,
            prompt_continuation="  ",
            bottom_toolbar=lambda: ANSI(f"\x1b[0;2m{fitted(toolbar(), self.size()[0] - 1)}\x1b[0m"),
            key_bindings=self._keys(),
            reserve_space_for_menu=6,
            erase_when_done=True,
            refresh_interval=REFRESH_S,
            **session,
        )
        # Writing above the prompt would switch the terminal's own echo on for that moment.
        self._session.app.input.cooked_mode = nullcontext
        self._session.app.before_render += self._look
        self._session.app.ttimeoutlen = KEY_PAUSE_S
        self._session.app.timeoutlen = KEY_PAUSE_S

    # -- what the conversation uses --------------------------------------------------------------

    def line(self) -> str | None:
        """Return what a person typed; None when they want to leave."""
        try:
            return self._session.prompt(pre_run=self.flush)
        except (EOFError, KeyboardInterrupt):
            return None
        finally:
            self.flush()

    def ask(self, question: str) -> str | None:
        """Ask something and wait for the next line; called by the thread that follows a run."""
        self._asked = question
        self._session.history.keeps = False  # type: ignore[attr-defined]  # a ChatHistory
        self._refresh()
        try:
            return self._answers.get()
        finally:
            self._asked = None
            self._session.history.keeps = True  # type: ignore[attr-defined]  # as above
            self._refresh()

    def answer(self, line: str | None) -> bool:
        """Hand a line to whoever asked; returns whether anybody did."""
        if self._asked is None:
            return False
        self._answers.put(line)
        return True

    # -- what a surface does ---------------------------------------------------------------------

    def size(self) -> tuple[int, int]:
        """Return columns and lines; some are left for the prompt itself."""
        found = shutil.get_terminal_size()
        return found.columns, max(4, found.lines - SPARED_LINES)

    def update(self, finished: Sequence[str], live: Sequence[str]) -> None:
        """Write finished lines above the prompt, and these between them and it."""
        columns = self.size()[0]
        below = [fitted(one, columns - 1) for one in live]
        app = self._session.app
        with self._lock:
            self._pending += finished
            self._next_live = below
        loop, context = app.loop, app.context
        if app.is_running and loop is not None and context is not None:
            # A loop that ends meanwhile leaves the lines to the next prompt.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._draw, context=context)

    def write(self, lines: Sequence[str]) -> None:
        """Write finished lines above the prompt."""
        self.update(lines, self._next_live)

    def flush(self) -> None:
        """Write what waits. Only where no prompt is drawn."""
        with self._lock:
            lines, self._pending = self._pending, []
            self._live = self._next_live
        _write(lines)

    def _draw(self) -> None:
        """On the prompt's loop: write what waits, and draw the prompt anew below it."""
        if self._pending:
            run_in_terminal(self.flush)
        else:
            self._live = self._next_live
            self._session.app.invalidate()

    def _look(self, _app: object) -> None:
        """Before the prompt is drawn: see to lines that came while none was there."""
        if self._pending and not self._writing:
            self._writing = True

            def write() -> None:
                self._writing = False
                self.flush()

            run_in_terminal(write)

    def _refresh(self) -> None:
        app = self._session.app
        if app.is_running:
            app.invalidate()

    def _message(self) -> ANSI:
        asked = self._asked
        return ANSI("".join(f"{one}\n" for one in self._live) + (MARK if asked is None else asked))

    # -- keys ------------------------------------------------------------------------------------

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        # What was typed before the prompt was there comes with the line end of the terminal.
        @keys.add("enter")
        @keys.add("c-j")
        def _send(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("escape", "c-j")
        def _newline(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("escape")
        def _interrupt(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.complete_state is not None:
                buffer.cancel_completion()
            elif self._is_busy():
                text = buffer.text.strip()
                buffer.reset(append_to_history=bool(text))
                self._steer(text) if text else self._interrupt()

        @keys.add("c-c")
        def _clear(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.text:
                buffer.reset()
            elif self._is_busy():
                self._interrupt()
            else:
                event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        return keys


@contextmanager
def quiet_keyboard() -> Generator[None]:
    """Let the terminal keep what is typed to itself, also between two prompts."""
    if not sys.stdin.isatty():
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    quiet = [*before]
    quiet[0] &= ~termios.ICRNL
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _write(lines: Sequence[str]) -> None:
    if lines:
        sys.stdout.write("".join(f"{one}\n" for one in lines))
        sys.stdout.flush()
