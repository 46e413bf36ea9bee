"""`FileSync`: keeps the servers' idea of the project's files equal to what tools and disk hold.

Per project, not per agent. Files that tools have read or written are remembered; a server that
starts later gets them all, and before each question whatever changed on disk is sent again.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

from kaged.base import JsonValue, KagedError, Tasks
from kaged.base.file_stamp import Stamp, stamp_of
from kaged.base.log import get_logger
from kaged.toolbox.lsp.polling import CREATED, DELETED
from kaged.toolbox.lsp.pool import LspPool
from kaged.toolbox.lsp.positions import to_uri
from kaged.toolbox.lsp.server import MAX_OPEN_FILES, LspServer, OpenFile
from kaged.toolbox.lsp.watching import ProjectWatch
from kaged.workspace import ChangeKind, FileChange, ProjectPath, Workspace

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
SKIPPED: Final = frozenset({"node_modules", "__pycache__", "target", "dist", "build", "venv"})

ListFiles: TypeAlias = Callable[["str", "str | None"], Awaitable["Iterable[bytes] | None"]]
"""Lists the files below a root that git does not ignore, with a text only those that hold it; None
when it could not list all."""

_Look: TypeAlias = tuple[str, bool, Stamp | None, str | None]
"""A file's path, whether it can be read, its stamp, and its text unless it is known."""

_log = get_logger(__name__)


class FileSync:
    """Listens to the workspace and tells the running servers of the project."""

    def __init__(self, workspace: Workspace, pool: LspPool, list_files: ListFiles | None) -> None:
        self._list_files = list_files
        self._workspace = workspace
        self._pool = pool
        self._tracked: OrderedDict[str, ProjectPath] = OrderedDict()
        self._heard: dict[str, int] = {}
        self._tasks = Tasks("file sync", _failed)
        self._unsubscribe = workspace.changes.subscribe(self.hear)
        self._watching = asyncio.Lock()
        self._watch = ProjectWatch(workspace.root, pool.languages, is_skipped)

    async def close(self) -> None:
        """Stop listening."""
        self._unsubscribe()
        self._watch.close()
        await self._tasks.close()

    def hear(self, change: FileChange) -> None:
        """Take note of what a tool did to a file, and tell the file's server if it runs."""
        language = self._pool.languages.of(change.path.resolved)
        if language is None:
            return
        path = change.path.resolved
        server = self._pool.running(language.language)
        if change.kind is not ChangeKind.READ:
            self._watch.forget(path)
        if change.kind is ChangeKind.DELETED:
            self._tracked.pop(path, None)
            if server is not None:
                server.hide(path)
                _watched(server, path, DELETED)
            return
        self._track(change.path)
        self._heard[path] = self._heard.get(path, 0) + 1
        if server is None:
            return  # a server that starts later gets all that is tracked
        if change.content is None:
            self._tasks.start(self._catch_up(server, change.path), f"sync {change.path.relative}")
            return
        text = decoded(change.content)
        if text is None:
            return
        file = server.show(path, language.language_id, text)
        if change.kind is not ChangeKind.READ:
            server.saved(file)
        if change.kind is ChangeKind.CREATED:
            _watched(server, path, CREATED)

    async def watch(self) -> None:
        """Begin to watch the project's files, once; later take in what the kernel does not tell."""
        run = self._workspace.threads.run
        async with self._watching:
            if self._watch.begun:
                self._watch.drain()  # it may tell of folders that have to be polled
                self._watch.note(await run(self._watch.poll))
                return
            root = self._workspace.root
            listed = None if self._list_files is None else await self._list_files(root, None)
            await run(
                lambda: self._watch.begin(None if listed is None else folders_of(root, listed))
            )
            self._watch.follow()

    def missed_changes(self, language: str) -> bool:
        """Return whether so much has changed that a server can only find out by reading it all."""
        return self._watch.missed(language)

    def caught_up(self, language: str) -> None:
        """Drop the changes of a language's files: its server will start and read them all."""
        self._watch.caught_up(language)

    def tell_outside_changes(self, server: LspServer) -> None:
        """Notify a server of files that changed without a tool.

        Files that it has open are not among them: their texts are compared and sent.
        """
        changed = self._watch.take(server.language)
        events: list[JsonValue] = [
            {"uri": to_uri(path), "type": kind}
            for path, kind in changed.items()
            if path not in server.files
        ]
        if events:
            server.others_changed(events)

    def tracked(self) -> tuple[ProjectPath, ...]:
        """Return the files that tools have touched and servers are told of, oldest first."""
        return tuple(self._tracked.values())

    def remember(self, paths: Iterable[ProjectPath]) -> None:
        """Take over what another bridge of the project has tracked."""
        for path in paths:
            if self._language(path.resolved) is not None:
                self._track(path)

    async def refresh(self, server: LspServer) -> None:
        """Bring a server up to date: all remembered files of its language, as they are on disk."""
        looks = self._looks(server)
        if looks:
            self._tell(server, await self._workspace.threads.run(lambda: [one() for one in looks]))

    async def open(
        self, server: LspServer, path: ProjectPath, *, refresh: bool = False
    ) -> OpenFile:
        """Make sure that a server has a file in its newest state, and return it.

        With `refresh` all others are brought up to date too, in the same go.
        Raises FileMissing, FileTooLarge, WrongKind and FileUnreadable when it cannot be read.
        """
        looks = self._looks(server, but=path.resolved) if refresh else []
        content, looked = await self._workspace.threads.run(
            lambda: (
                self._workspace.read_bytes(path, MAX_FILE_BYTES),
                [one() for one in looks],
            )
        )
        self._tell(server, looked)
        self._track(path)
        text = content.data.decode("utf-8-sig", errors="replace")
        return self._show(server, path.resolved, text, content.stamp)

    # -- own -----------------------------------------------------------------------------------

    def _looks(self, server: LspServer, but: str = "") -> list[Callable[[], _Look]]:
        """Return what there is to look at on disk for a server; each runs in a thread."""
        files = server.files
        return [
            partial(self._look, known, None if (file := files.get(path)) is None else file.stamp)
            for path, known in self._tracked.items()
            if path != but and self._language(path) == server.language
        ]

    def _tell(self, server: LspServer, looked: Iterable[_Look]) -> None:
        for path, there, stamp, text in looked:
            if not there:
                self._tracked.pop(path, None)
                server.hide(path)
            elif text is not None:
                self._show(server, path, text, stamp)

    async def _catch_up(self, server: LspServer, path: ProjectPath) -> None:
        """Read a file that a tool has read, and show it unless more was heard of it meanwhile."""
        heard = self._heard.get(path.resolved)
        known = server.files.get(path.resolved)
        stamp = None if known is None else known.stamp
        _, _, now, text = await self._workspace.threads.run(lambda: self._look(path, stamp))
        if text is not None and self._heard.get(path.resolved) == heard:
            self._show(server, path.resolved, text, now)

    def _show(self, server: LspServer, path: str, text: str, stamp: Stamp | None) -> OpenFile:
        language = self._pool.languages.of(path)
        language_id = server.language if language is None else language.language_id
        before = server.files.get(path)
        known_text = None if before is None else before.source.text
        file = server.show(path, language_id, text, stamp)
        if known_text is not None and known_text != text:
            server.saved(file)
        return file

    def _look(self, path: ProjectPath, known: Stamp | None) -> _Look:
        """Read a file if it is not as the server has it. Runs in a thread."""
        try:
            info = os.stat(path.resolved, follow_symlinks=False)  # noqa: PTH116 - already resolved
            stamp = stamp_of(info)
            if stamp is not None and stamp == known:
                return path.resolved, True, stamp, None
            content = self._workspace.read_bytes(path, MAX_FILE_BYTES)
        except (KagedError, OSError) as error:
            _log.debug("lsp.sync_failed", path=path.relative, error=str(error))
            return path.resolved, False, None, None
        return path.resolved, True, content.stamp, decoded(content.data)

    def _track(self, path: ProjectPath) -> None:
        self._tracked[path.resolved] = path
        self._tracked.move_to_end(path.resolved)
        while len(self._tracked) > MAX_OPEN_FILES:
            forgotten, _ = self._tracked.popitem(last=False)
            self._heard.pop(forgotten, None)

    def _language(self, path: str) -> str | None:
        found = self._pool.languages.of(path)
        return None if found is None else found.language


def is_skipped(name: str) -> bool:
    """Return whether a folder is one that tools fill, which no question is about."""
    return name in SKIPPED or name.startswith(".")


def folders_of(root: str, files: Iterable[bytes]) -> set[str]:
    """Return the folders that some files of a project lie in, and those above them."""
    found = {root}
    for one in files:
        folder = os.fsdecode(one).removeprefix("./").rpartition("/")[0]
        while folder and (path := f"{root.rstrip('/')}/{folder}") not in found:
            found.add(path)
            folder = folder.rpartition("/")[0]
    return found


def decoded(data: bytes) -> str | None:
    """Return a file's text; None for one that is no text a server could use."""
    if len(data) > MAX_FILE_BYTES or b"\0" in data[:8192]:
        return None
    return data.decode("utf-8-sig", errors="replace")


def _failed(name: str, error: BaseException) -> None:
    # A file that a server does not hear of costs an answer, never the file operation.
    _log.warning("lsp.sync_failed", task=name, error=repr(error))


def _watched(server: LspServer, path: str, kind: int) -> None:
    server.notify(
        "workspace/didChangeWatchedFiles", {"changes": [{"uri": to_uri(path), "type": kind}]}
    )
