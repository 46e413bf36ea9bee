"""What can go wrong with a project's files, as errors with a code.

No message names an absolute path of the host: they are shown to agents as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.base import KagedError
from kaged.workspace.text import sendable

if TYPE_CHECKING:
    from kaged.base import JsonValue


class PathRefused(KagedError):
    """The text names nothing that a tool may touch; `problem` says why in a few words."""

    code = "invalid_params"

    def __init__(self, problem: str, requested: str, *, fix: str | None = None) -> None:
        super().__init__(f"this path cannot be used: {problem}", fix=fix)
        self.problem = problem
        shown = requested if len(requested) <= 200 else f"{requested[:200]}…"
        self.data["detail"] = {
            "fields": [{"field": "path", "problem": problem}],
            "path": sendable(shown),
        }


class PathSealed(KagedError):
    """The path belongs to what defines the project itself, and no tool may change it."""

    code = "capability_denied"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} defines the project and its cages; no tool may change it",
            fix='the operator can change this: protect_kaged = "off" in [tools] of config.toml',
            detail=f"rw:fs:{path}",
        )


class WrongKind(KagedError):
    """There is something, but of another kind than the call needs (a directory, a device)."""

    code = "invalid_params"

    def __init__(self, path: str, problem: str, *, fix: str | None = None) -> None:
        path = sendable(path)
        super().__init__(f"{path} {problem}", fix=fix)
        self.problem = problem
        self.data["detail"] = {"fields": [{"field": "path", "problem": problem}], "path": path}


class FileMissing(KagedError):
    """There is no such file."""

    code = "file_not_found"

    def __init__(self, path: str, *, did_you_mean: tuple[str, ...] = ()) -> None:
        fix = f"did you mean {' or '.join(did_you_mean)}?" if did_you_mean else None
        super().__init__(f"there is no file {path}", fix=fix, path=path)
        if did_you_mean:
            self.data["did_you_mean"] = list(did_you_mean)


class FileExists(KagedError):
    """Something of that name is there already."""

    code = "file_exists"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} exists already", fix="overwrite it with file.write, or edit it", path=path
        )


class FileNotRead(KagedError):
    """The agent would overwrite what it has not seen."""

    code = "file_not_read"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__("Read the file before overwriting it.", path=path)


class FileChangedSinceRead(KagedError):
    """The content is another one than the agent last read or wrote; nothing was changed."""

    code = "file_changed_since_read"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} has changed since you read it", fix="read it again, then retry", path=path
        )


class FileBusy(KagedError):
    """Somebody else works on the file and did not finish in time."""

    code = "file_busy"

    def __init__(self, path: str) -> None:
        path = sendable(path)
        super().__init__(f"another call works on {path}", fix="try again", path=path)


class FileTooLarge(KagedError):
    """The file is larger than the call can take."""

    code = "file_too_large"

    def __init__(self, path: str, size: int, limit: int) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} has {size} bytes, the limit here is {limit}",
            fix="look into it with search.grep or a shell command",
            path=path,
            size=size,
            limit=limit,
        )


class FileUnreadable(KagedError):
    """The system did not let us read it."""

    code = "file_unreadable"

    def __init__(self, path: str, reason: str) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} could not be read: {reason}", fix="check its permissions", path=path
        )


class FileWriteFailed(KagedError):
    """The system did not let us write; everything is as it was before."""

    code = "file_write_failed"

    def __init__(self, path: str, reason: str, **data: JsonValue) -> None:
        path = sendable(path)
        super().__init__(
            f"{path} could not be written: {reason}",
            code=self.code,
            fix="check free space and permissions; nothing was changed",
            path=path,
            **data,
        )


class RestoreFailed(KagedError):
    """A change of several files failed half way and not every file could be put back.

    `left` lists the files that are not as they were, each with the name its old content has now.
    """

    code = "file_restore_failed"


class ProjectRootInvalid(KagedError):
    """The project's directory is not there, or no directory."""

    code = "project_root_invalid"


class UndoNotFound(KagedError):
    """There is nothing of that kind to undo, or not any more."""

    code = "undo_not_found"


class UndoConflict(KagedError):
    """Files were changed since, so that an undo would destroy something; nothing was changed."""

    code = "undo_conflict"
