"""`LspBridge`: code intelligence for one project; what every action shares.

tool → bridge (path, language, server, up to date?) → action → places (what the caller may see)
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.base.realpath import real_path
from kaged.cage import Spawner
from kaged.toolbox.lsp.errors import LspServerNotFound
from kaged.toolbox.lsp.filesync import FileSync, ListFiles, is_skipped
from kaged.toolbox.lsp.languages import Languages
from kaged.toolbox.lsp.pool import IDLE_S, Emit, LspPool, ServerStopReason
from kaged.toolbox.lsp.positions import SourceText
from kaged.toolbox.lsp.server import REQUEST_LIMIT_S, LspServer, OpenFile
from kaged.toolbox.lsp.shown_texts import ShownTexts
from kaged.toolbox.lsp.turns import ServerTurns
from kaged.tools import InvalidToolParams
from kaged.workspace import PathRefused, ProjectPath, Workspace
from kaged.workspace.errors import FileMissing

INDEX_WAIT_S: Final = 15.0
FIRST_LOOK: Final = 2000
FILE_LIST: Final = "compile_commands.json"


@dataclass(frozen=True, slots=True)
class Ready:
    """A server that is up to date, with the file that the question is about."""

    server: LspServer
    file: OpenFile


class LspBridge:
    """The servers of one project and what they know of its files."""

    def __init__(
        self,
        workspace: Workspace,
        commands: Mapping[str, tuple[str, ...]],
        spawner: Spawner,
        *,
        clock: Clock,
        emit: Emit,
        environ: Mapping[str, str],
        idle_s: float = IDLE_S,
        limit_s: float = REQUEST_LIMIT_S,
        parallel: Mapping[str, int] | None = None,
        list_files: ListFiles | None = None,
        guard: Callable[[str, tuple[str, ...]], None] = lambda _language, _command: None,
    ) -> None:
        self.workspace = workspace
        self.languages = Languages(commands)
        self.limit_s = limit_s
        self.pool = LspPool(
            workspace.root,
            self.languages,
            spawner,
            clock=clock,
            emit=emit,
            environ=environ,
            idle_s=idle_s,
            limit_s=limit_s,
            guard=guard,
        )
        self._list_files = list_files
        self.sync = FileSync(workspace, self.pool, list_files)
        self._texts = ShownTexts(workspace)
        self._prefix = workspace.root.rstrip("/") + "/"
        self._parallel = parallel or {}
        self._turns: dict[str, ServerTurns] = {}

    async def close(self, reason: ServerStopReason) -> None:
        """Stop every server of the project."""
        await self.sync.close()
        await self.pool.close(reason)

    # -- paths and languages ---------------------------------------------------------------------

    def require_file(self, path: ProjectPath) -> None:
        """Refuse what is no file before any server is started.

        Raises FileMissing and InvalidToolParams.
        """
        if not stat.S_ISREG(self.mode_of(path)):
            raise InvalidToolParams.of_field("path", "must be a file for this action")

    def mode_of(self, path: ProjectPath) -> int:
        """Return what kind of thing a path is. Raises FileMissing."""
        try:
            return os.stat(path.resolved).st_mode  # noqa: PTH116 - a path that passed the guard
        except OSError:
            raise FileMissing(path.relative, requested=path.requested) from None

    def language_of(self, path: ProjectPath) -> str:
        """Return a file's language. Raises LspServerNotFound when no language claims it."""
        found = self.languages.of(path.resolved)
        if found is None:
            suffix = os.path.splitext(path.resolved)[1] or "no extension"  # noqa: PTH122 - a text
            raise LspServerNotFound(
                f"no language server is configured for {path.relative} ({suffix})",
                fix="add [lsp.servers.<language>] with a command to config.toml",
                detail={"language": None, "command": None, "install": None},
            )
        return found.language

    def workspace_language(self, path: ProjectPath) -> str:
        """Return the language whose server answers for a path: a file's own, or its directory's.

        Raises FileMissing and LspServerNotFound.
        """
        if not stat.S_ISDIR(self.mode_of(path)):
            return self.language_of(path)
        running = [one for one in self.pool.known() if self.pool.running(one) is not None]
        found = self.languages.among(self.files_below(path, limit=FIRST_LOOK))
        for language in (*running, *sorted(found, key=lambda one: -len(found[one]))):
            if language in found:
                return language
        raise LspServerNotFound(
            f"{path.relative} holds no file of a language with a configured server",
            fix="name a file, or add [lsp.servers.<language>] to config.toml",
            detail={"language": None, "command": None, "install": None},
        )

    def files_below(self, path: ProjectPath, limit: int) -> list[str]:
        """List source files below a directory, sorted, without the folders tools fill."""
        found: list[str] = []
        for folder, folders, names in os.walk(path.resolved):
            folders[:] = sorted(one for one in folders if not is_skipped(one))
            for name in sorted(names):
                if self.languages.of(name) is not None:
                    found.append(f"{folder}/{name}")
                    if len(found) >= limit:
                        return found
        return found

    async def files_with(self, text: str) -> list[str]:
        """List the files that hold a text and that git does not ignore; none without a lister."""
        root = self.workspace.root
        listed = None if self._list_files is None else await self._list_files(root, text)
        return [self._prefix + os.fsdecode(one).removeprefix("./") for one in listed or ()]

    # -- servers ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def server(self, language: str, session_id: str) -> AsyncGenerator[LspServer]:
        """Yield a language's server, running and notified of all changes so far, to one caller.

        Calls have their turns in the order in which they came; nobody's question is between the
        sync messages and the question of another.
        """
        async with self._turn(language, shared=False) as turns:
            async with turns.syncing:
                server = await self._server(language, session_id)
                await self.sync.refresh(server)
            yield server

    @asynccontextmanager
    async def ready(
        self, path: ProjectPath, session_id: str, *, shared: bool = False
    ) -> AsyncGenerator[Ready]:
        """Yield the server of a file with the file open in its newest state, to one caller.

        With `shared`, for questions that only read and are sent at once, other such callers have
        it too, as many as the server's settings allow.
        """
        self.require_file(path)
        language = self.language_of(path)
        async with self._turn(language, shared=shared) as turns:
            async with turns.syncing:
                server = await self._server(language, session_id)
                file = await self.sync.open(server, path, refresh=True)
            yield Ready(server, file)

    @asynccontextmanager
    async def _turn(self, language: str, *, shared: bool) -> AsyncGenerator[ServerTurns]:
        self.pool.require(language)
        turns = self._turns.get(language)
        if turns is None:
            turns = self._turns[language] = ServerTurns(self._parallel.get(language, 1))
        async with turns.turn(shared=shared):
            yield turns

    async def _server(self, language: str, session_id: str) -> LspServer:
        # Before a server reads the first file: what changes after that must not be missed.
        await self.sync.watch()
        running = self.pool.running(language)
        if running is None:
            self.sync.caught_up(language)
        elif self.sync.missed_changes(language) and not running.busy:
            self.sync.caught_up(language)
            await self.pool.reload((language,), session_id)
        server, _ = await self.pool.get(language, session_id)
        self.sync.tell_outside_changes(server)
        return server

    async def ask(self, server: LspServer, method: str, params: JsonObject) -> JsonValue:
        """Ask a server; an empty answer of one that is still loading is asked for again."""
        answer = await server.request(method, params, self.limit_s)
        loading = server.loading
        if not answer and not loading.was_ready and loading.busy:
            await loading.until_ready(self.limit_s)
            answer = await server.request(method, params, self.limit_s)
        loading.was_ready = loading.was_ready or not loading.busy
        return answer

    async def indexed(self, server: LspServer) -> bool:
        """Wait until the server knows the whole project; False when it still does not.

        Asked before every question about the project as a whole: an early answer to a rename
        would leave half of the code behind.
        """
        if server.loading.waits_for_begin:
            paths = list(server.files)
            if await self.workspace.threads.run(lambda: has_file_list(self.workspace.root, paths)):
                server.loading.will_begin()
        return await server.loading.until_ready(min(INDEX_WAIT_S, self.limit_s))

    async def texts_of(
        self, server: LspServer, paths: Sequence[ProjectPath]
    ) -> dict[str, SourceText | None]:
        """Return texts by resolved path, as the server has them, or else as they are on disk."""
        texts: dict[str, SourceText | None] = {
            path.resolved: file.source
            for path in paths
            if (file := server.files.get(path.resolved)) is not None
        }
        missing = [path for path in paths if path.resolved not in texts]
        if missing:
            texts.update(await self.workspace.threads.run(lambda: self._texts.read(missing)))
        return texts

    def project_path(self, resolved: str) -> ProjectPath | None:
        """Return a path of the server's as one of the project's; None when it lies outside."""
        workspace = self.workspace
        try:
            if resolved.startswith(self._prefix):
                found = workspace.resolve(workspace.relative_of(resolved))
                if found.resolved == resolved:
                    return found
            return workspace.resolve(workspace.relative_of(real_path(resolved)))
        except (PathRefused, OSError):
            return None


def has_file_list(root: str, paths: Iterable[str]) -> bool:
    """Return whether clangd will find a project's list of files, beside or above some files."""
    folders = {root}
    for path in paths:
        folder = os.path.dirname(path)  # noqa: PTH120 - a text
        while folder.startswith(root) and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120 - a text
    names = (FILE_LIST, f"build/{FILE_LIST}")
    return any(os.path.exists(f"{one}/{name}") for one in folders for name in names)  # noqa: PTH110 - many
