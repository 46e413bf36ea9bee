"""`ToolInvocation`: what a handler gets. Everything in it passed the gates."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import JsonObject, JsonValue
from kaged.base.log import get_logger
from kaged.kernel.permissions import CompiledPolicy
from kaged.tools.context import ToolCallContext
from kaged.tools.errors import InvalidToolParams
from kaged.workspace import Author, ProjectPath, Workspace
from kaged.workspace.errors import FileMissing

_log = get_logger(__name__)


class ToolInvocation:
    """One call on its way through a handler.

    `args` are validated with defaults applied; do not change them. `paths` are resolved and
    allowed, in the order of `Tool.paths`. `policy` None means: no cage. `workspace` is that of the
    caller's project. `headers` are what policies put on the request of a tool with an `endpoint`.
    """

    __slots__ = (
        "_audit",
        "args",
        "context",
        "headers",
        "paths",
        "policy",
        "tool_name",
        "workspace",
    )

    def __init__(
        self,
        context: ToolCallContext,
        args: JsonObject,
        paths: tuple[ProjectPath, ...],
        policy: CompiledPolicy | None,
        workspace: Workspace,
        audit: AuditLog,
        tool_name: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.headers = headers
        self.context = context
        self.args = args
        self.paths = paths
        self.policy = policy
        self.workspace = workspace
        self.tool_name = tool_name
        self._audit = audit

    def emit(self, event: str, **fields: JsonValue) -> None:
        """Write an audit event of this call; adds project, request and caller.

        Never fails for want of a disk: what the event is about has happened, and the gap itself
        becomes part of the record (AT-AUD-29).
        """
        context = self.context
        made = AuditEvent(
            event,
            fields,
            project_id=context.project_id,
            request_id=context.request_id,
            caller=context.caller,
        )
        try:
            self._audit.post(made)
        except AuditUnavailable as error:
            _log.error("audit.event_lost", audit_event=event, error=str(error))

    @property
    def author(self) -> Author:
        """On whose behalf the call changes files."""
        context = self.context
        return Author(context.session_id, context.run_id, context.caller, self.tool_name)

    def search_start(self, path: ProjectPath, field: str = "path") -> tuple[str, bool]:
        """Return where to look for files, as `./` path without links, and whether it is one file.

        Raises FileMissing, and InvalidToolParams for neither a directory nor a regular file.
        """
        try:
            mode = Path(path.resolved).lstat().st_mode
        except OSError:
            raise FileMissing(path.relative, requested=path.requested) from None
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise InvalidToolParams.of_field(field, "must be a directory or a regular file")
        return self.workspace.relative_of(path.resolved), stat.S_ISREG(mode)

    def readable(self, resolved: str) -> bool:
        """Return whether the caller may see the content of a resolved path."""
        return self.policy is None or self.policy.mode_at(resolved) is not None

    def writable(self, resolved: str) -> bool:
        """Return whether the caller may change a resolved path."""
        return self.policy is None or self.policy.mode_at(resolved) == "rw"
