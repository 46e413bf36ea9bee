"""`ChangeFeed`: tells listeners (a language server's file sync) what tools did to files."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.workspace.path import ProjectPath

_log = get_logger(__name__)


class ChangeKind(StrEnum):
    """What happened to a file."""

    READ = "read"
    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One thing that happened to one file.

    `content` is the whole content afterwards where the sender had it at hand; None means: read
    the file if you need it.
    """

    kind: ChangeKind
    path: ProjectPath
    sha256: str | None = None
    content: bytes | None = None


Listener: TypeAlias = Callable[[FileChange], None]


class ChangeFeed:
    """Calls every listener for every change, in order, on the caller's thread.

    Listeners must be quick: whatever takes time they put in a queue of their own.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every change from now on; call the result to end that."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def publish(self, change: FileChange) -> None:
        """Call every listener; one that raises is logged and stops no other."""
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:  # noqa: BLE001 - boundary: the change has happened, whoever minds
                _log.exception("workspace.listener_failed", path=change.path.relative)
