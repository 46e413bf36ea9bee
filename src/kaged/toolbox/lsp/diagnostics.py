"""What is wrong with a file or a directory: diagnostics, never a false "clean"."""

from __future__ import annotations

import asyncio
import stat
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.lsp.bridge import LspBridge
from kaged.toolbox.lsp.errors import LspRequestFailed, LspServerNotFound
from kaged.toolbox.lsp.handshake import Capabilities
from kaged.toolbox.lsp.published import QUIET_S
from kaged.toolbox.lsp.question import LspCall
from kaged.toolbox.lsp.server import LspServer, OpenFile, is_passing
from kaged.workspace import PathRefused, ProjectPath
from kaged.workspace.errors import FileMissing, FileTooLarge, FileUnreadable, WrongKind

SEVERITIES: Final = ("error", "warning", "information", "hint")
MAX_SCANNED: Final = 200
RECHECK_S: Final = 2.0
_RETRIES: Final = 5
_RETRY_S: Final = 0.1
_TSSERVER: Final = "typescript.tsserverRequest"
_TSSERVER_KINDS: Final = (
    "syntacticDiagnosticsSync",
    "semanticDiagnosticsSync",
    "suggestionDiagnosticsSync",
)
_TSSERVER_SEVERITIES: Final = {"error": 1, "warning": 2, "suggestion": 4}
MAX_ITEMS: Final = 10_000


@dataclass(frozen=True, slots=True)
class FileDiagnostics:
    """The diagnostics of one file; `complete` False when the server gave no answer in time."""

    items: tuple[JsonObject, ...]
    complete: bool


async def find_problems(question: LspCall) -> JsonValue:
    """Answer diagnostics for a file, or for all files below a directory."""
    bridge, path = question.bridge, question.path
    if stat.S_ISDIR(bridge.mode_of(path)):
        return await _directory(question)
    async with bridge.ready(path, question.session_id) as ready:
        found = await problems_of(bridge, ready.server, ready.file)
        shown: list[JsonValue] = [
            one
            for one in (describe(item, ready.file, ready.server) for item in found.items)
            if _wanted(one, question)
        ]
    result: JsonObject = {"path": path.relative, "diagnostics": shown, "count": len(shown)}
    if not found.complete:
        result |= {"complete": False, "pending_servers": [ready.server.language]}
    return result


async def problems_of(bridge: LspBridge, server: LspServer, file: OpenFile) -> FileDiagnostics:
    """Get what a server says about the present text of a file: pulled if it can be, else pushed."""

    def can_be_pulled() -> bool:
        return server.capabilities.offers("diagnosticProvider", "textDocument/diagnostic")

    items = None
    if not can_be_pulled():
        found = await _better_than_pushed(server, file, bridge.limit_s)
        if found is not None:
            return found
    if not can_be_pulled():
        # A server may say only after its start that it wants to be pulled; then it pushes nothing.
        items = await server.published.about(
            file.uri, file.version, file.shown_after, bridge.limit_s, can_be_pulled
        )
    if items is None and can_be_pulled():
        return await _pulled(server, file, bridge.limit_s)
    if items is not None:
        items = await _after_other_changes(server, file, items)
    return FileDiagnostics(items or (), items is not None)


async def _better_than_pushed(
    server: LspServer, file: OpenFile, limit_s: float
) -> FileDiagnostics | None:
    """Use what some pushing servers have beyond the protocol; None for all others."""
    if server.loading.may_tell_of_checks:
        return await _checked(server, file, limit_s)
    if asks_tsserver(server.capabilities):
        items = await tsserver_problems(server, file, limit_s)
        return None if items is None else FileDiagnostics(items, complete=True)
    return None


async def _checked(server: LspServer, file: OpenFile, limit_s: float) -> FileDiagnostics | None:
    """Take the list of a server that tells when it has looked; None when it turns out not to.

    Whatever version the list names: by then it is the server's last word, and a list that is as
    it was before an edit is not sent again.
    """
    await server.catch_up(file.uri, limit_s)
    if not server.loading.tells_of_checks:
        return None
    complete = await server.loading.until_checked(limit_s)
    known = server.published.get(file.uri)
    if not complete and (known is None or known.version != file.version):
        return FileDiagnostics((), complete=False)
    return FileDiagnostics(() if known is None else known.items, complete)


async def _after_other_changes(
    server: LspServer, file: OpenFile, items: tuple[JsonObject, ...]
) -> tuple[JsonObject, ...]:
    """Let a pushing server look again at a file that others have changed under, once per change.

    Its own text is as before, so nothing says whether its list is; without a new one it stands.
    """
    known = server.published.get(file.uri)
    if file.rechecked == server.changes or known is None:
        return items
    file.rechecked = server.changes
    if known.serial <= server.changed_after:
        fresh = await server.published.renewed(file.uri, server.changed_after, RECHECK_S)
        return items if fresh is None else fresh
    if file.sent == server.changes:
        return items
    # It came after the last change, and may yet have been on its way before: a moment tells.
    fresh = await server.published.renewed(file.uri, known.serial, QUIET_S)
    return items if fresh is None else fresh


async def _pulled(server: LspServer, file: OpenFile, limit_s: float) -> FileDiagnostics:
    params: JsonObject = {"textDocument": {"uri": file.uri}}
    identifier = server.capabilities.option("diagnosticProvider", "identifier")
    if isinstance(identifier, str):
        params["identifier"] = identifier
    for attempt in range(_RETRIES):
        try:
            answer = await server.request("textDocument/diagnostic", params, limit_s)
        except LspRequestFailed as error:
            if not is_passing(error) or attempt == _RETRIES - 1:
                raise
            await asyncio.sleep(_RETRY_S)
            continue
        items = answer.get("items") if isinstance(answer, dict) else None
        if isinstance(items, list):
            return FileDiagnostics(
                tuple(one for one in items if isinstance(one, dict)), complete=True
            )
        break
    return FileDiagnostics((), complete=False)


async def _directory(question: LspCall) -> JsonValue:
    bridge, path = question.bridge, question.path
    listed = await bridge.workspace.threads.run(lambda: bridge.files_below(path, MAX_SCANNED + 1))
    by_language = bridge.languages.among(listed[:MAX_SCANNED])
    shown: list[JsonValue] = []
    skipped: list[JsonValue] = []
    pending: list[JsonValue] = []
    last: LspServerNotFound | None = None
    for language, paths in sorted(by_language.items()):
        try:
            async with bridge.server(language, question.session_id) as server:
                for one in paths:
                    seen = question.inside(one)
                    answered = seen is None or await _one(question, server, seen, shown)
                    if not answered and language not in pending:
                        pending.append(language)
        except LspServerNotFound as error:
            skipped.append(language)
            last = error
    if last is not None and len(skipped) == len(by_language):
        raise last
    result: JsonObject = {"path": path.relative, "diagnostics": shown, "count": len(shown)}
    if skipped:
        result["skipped"] = skipped
    if pending:
        result |= {"complete": False, "pending_servers": pending}
    if len(listed) > MAX_SCANNED:
        result |= {"truncated": True, "files_checked": MAX_SCANNED}
    return result


async def _one(
    question: LspCall, server: LspServer, path: ProjectPath, shown: list[JsonValue]
) -> bool:
    try:
        file = await question.bridge.sync.open(server, path)
    except (FileMissing, FileTooLarge, FileUnreadable, PathRefused, WrongKind):
        return True  # gone or no source text: nothing to say about it
    found = await problems_of(question.bridge, server, file)
    for item in found.items:
        one = describe(item, file, server)
        if _wanted(one, question):
            shown.append({"path": path.relative, **one})
    return found.complete


def describe(item: JsonObject, file: OpenFile, server: LspServer) -> JsonObject:
    """Return one diagnostic as a tool's result has it; what the server left out is null."""
    try:
        span = file.source.span_from_server(item.get("range"), server.encoding)
        where: JsonObject = {
            "line": span.start.line,
            "character": span.start.character,
            "end_line": span.end.line,
            "end_character": span.end.character,
        }
    except TypeError:
        where = {"line": 1, "character": 0, "end_line": 1, "end_character": 0}
    severity, code, source = item.get("severity"), item.get("code"), item.get("source")
    known = type(severity) is int and 1 <= severity <= len(SEVERITIES)
    return where | {
        "severity": SEVERITIES[severity - 1] if known and isinstance(severity, int) else "error",
        "message": str(item.get("message", "")),
        "code": str(code) if isinstance(code, str | int) else None,
        "source": source if isinstance(source, str) else None,
    }


def _wanted(one: JsonObject, question: LspCall) -> bool:
    severity = question.text("severity")
    return severity in ("", "all") or severity == one["severity"]


# -- tsserver: its language server only pushes, and pushes too little ------------------------------
#
# typescript-language-server sends the lists of syntax and of types one after the other, without a
# version, and nothing at all when both are as empty as before. What is behind it can be asked.


def asks_tsserver(capabilities: Capabilities) -> bool:
    """Return whether a server passes questions on to a tsserver."""
    commands = capabilities.option("executeCommandProvider", "commands")
    return isinstance(commands, list) and _TSSERVER in commands


async def tsserver_problems(
    server: LspServer, file: OpenFile, limit_s: float
) -> tuple[JsonObject, ...] | None:
    """Return all problems of a file as the protocol has them; None when tsserver cannot say.

    Raises `lsp_timeout` and `lsp_server_unavailable`.
    """
    found: list[JsonObject] = []
    for kind in _TSSERVER_KINDS:
        params: JsonObject = {"command": _TSSERVER, "arguments": [kind, {"file": file.uri}]}
        try:
            answer = await server.request("workspace/executeCommand", params, limit_s)
        except LspRequestFailed:
            return None
        body = answer.get("body") if isinstance(answer, dict) else None
        if not isinstance(body, list):
            return None
        found.extend(_tsserver_problem(one) for one in body[:MAX_ITEMS] if isinstance(one, dict))
    return tuple(found)


def _tsserver_problem(said: JsonObject) -> JsonObject:
    """Return one of tsserver's problems, whose lines and columns count from 1, as LSP has it."""
    return {
        "range": {
            "start": _tsserver_position(said.get("start")),
            "end": _tsserver_position(said.get("end")),
        },
        "severity": _TSSERVER_SEVERITIES.get(str(said.get("category")), 1),
        "message": said.get("text", ""),
        "code": said.get("code"),
        "source": said.get("source", "typescript"),
    }


def _tsserver_position(said: JsonValue) -> JsonObject | None:
    line, offset = (said.get("line"), said.get("offset")) if isinstance(said, dict) else (0, 0)
    if type(line) is not int or type(offset) is not int or line < 1 or offset < 1:
        return None  # a problem without a place is shown at the file's beginning
    return {"line": line - 1, "character": offset - 1}
