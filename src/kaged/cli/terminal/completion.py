"""`ChatCompleter`: commands behind `/` at the beginning, files of the project behind `@`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from kaged.cli.output import one_line
from kaged.cli.terminal.project_files import ProjectFiles

_FILE: Final = re.compile(r"(?:^|\s)@(\S*)$")


class ChatCompleter(Completer):
    """Completes what is typed in a chat. `commands` maps names to what they do."""

    def __init__(self, commands: Mapping[str, str], files: ProjectFiles) -> None:
        self._commands = commands
        self._files = files

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield what could stand where the cursor is."""
        del complete_event
        before = document.text_before_cursor
        if before.startswith("/") and not re.search(r"\s", before):
            for name, told in self._commands.items():
                if name.startswith(before[1:]):
                    yield Completion(name, start_position=1 - len(before), display_meta=told)
            return
        found = _FILE.search(before)
        if found is None:
            return
        for path in self._files.find(found[1]):
            # A name that holds controls is shown by their codes, and goes into no message.
            if one_line(path) == path and not re.search(r"\s", path):
                yield Completion(path, start_position=-len(found[1]))
