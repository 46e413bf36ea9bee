"""`UndoService`: takes back what tools did to the files of a project, on record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

from kaged.audit import AuditEvent, AuditLog
from kaged.base import JsonObject, JsonValue
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import AccessAction
from kaged.workspace import Workspace
from kaged.workspace.errors import PathProtected
from kaged.workspace.journal_files import JournalFiles
from kaged.workspace.workspace import OperatorHad, Undone


def open_undo(data_dir: Path, closing: AsyncExitStack) -> Callable[[str], JournalFiles]:
    """Return what finds the undo steps of a project on disk; one thread writes those of all."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="kaged-undo")
    closing.callback(thread.shutdown)
    return lambda project_id: JournalFiles(data_dir / "undo" / project_id, thread.submit)


AllowedSessions = Callable[[Collection[str], Actor, AccessAction], Awaitable[frozenset[str]]]
"""Returns those of some sessions with which somebody may do something."""


class UndoService:
    """Lists and undoes steps; a step is one tool call that changed files."""

    def __init__(
        self,
        workspace_of: Callable[[str], Workspace],
        audit: AuditLog,
        allowed_sessions: AllowedSessions,
        operator_had: OperatorHad,
    ) -> None:
        self._workspace_of = workspace_of
        self._audit = audit
        self._allowed_sessions = allowed_sessions
        self._operator_had = operator_had

    async def steps(
        self,
        project_id: str,
        *,
        session_id: str | None,
        run_id: str | None,
        limit: int,
        who: Actor,
    ) -> JsonObject:
        """List the steps of sessions that somebody may see, newest first.

        Raises `project_not_found`.
        """
        workspace = self._workspace_of(project_id)
        sessions = await self._sessions(workspace, who, AccessAction.SEE)
        found = workspace.journal.steps(session_id=session_id, run_id=run_id, sessions=sessions)
        return {"steps": [one.as_json() for one in found[:limit]], "total": len(found)}

    async def _sessions(
        self, workspace: Workspace, who: Actor, action: AccessAction
    ) -> frozenset[str] | None:
        """Return the sessions whose steps are somebody's to list or undo; None: all of them."""
        if not who.is_person:
            return None
        ids = {step.author.session_id for step in workspace.journal.steps()}
        return await self._allowed_sessions(ids, who, action)

    async def undo(
        self,
        project_id: str,
        *,
        session_id: str | None,
        run_id: str | None,
        count: int | None,
        who: Actor,
    ) -> JsonObject:
        """Take back the last `count` steps of a session, a run or everybody; None means all.

        Without a session or run only the last step goes, unless a count is given. Either all of
        it is undone or nothing is. People undo what was done in their own sessions.

        Raises:
            KagedError: `project_not_found`; it is not loaded.
            UndoNotFound: there is nothing to undo.
            UndoConflict: a file was changed since.
            PathProtected: it would bring back what a program of the host runs and the operator
                never had there; nothing is undone.
            AuditUnavailable: it could not be put on record.
        """
        workspace = self._workspace_of(project_id)
        self._audit.require_writable()
        if session_id is None and run_id is None and count is None:
            count = 1
        try:
            sessions = await self._sessions(workspace, who, AccessAction.MANAGE)
            undone = await workspace.undo(
                session_id=session_id,
                run_id=run_id,
                count=count,
                sessions=sessions,
                operator_had=self._operator_had,
            )
        except PathProtected as error:
            refused: JsonObject = {"path": error.path, "who": "undo", "caller": who.label}
            self._audit.post(AuditEvent("protected_path.refused", refused, project_id=project_id))
            raise
        files: list[JsonValue] = []
        for one in _files(undone):
            files.append({"path": one["path"], "change": one["change"]})
            await self._audit.record(
                AuditEvent(
                    "file.reverted",
                    one,
                    project_id=project_id,
                    request_id=who.request_id,
                    caller=who.label,
                )
            )
        await self._audit.flush()
        return {"steps": [one.as_json() for one in undone.steps], "files": files}


def _files(undone: Undone) -> list[JsonObject]:
    """Describe each file once, with the newest of the steps that had changed it."""
    author = {
        file.path.resolved: step.author for step in reversed(undone.steps) for file in step.files
    }
    return [
        {
            "path": one.path.relative,
            "change": "removed"
            if one.sha256 is None
            else ("brought back" if one.created else "restored"),
            "run_id": author[one.path.resolved].run_id,
            "session_id": author[one.path.resolved].session_id,
        }
        for one in undone.files
    ]
