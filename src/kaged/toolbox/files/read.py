"""`file.read`: numbered lines of a text file, the entries of a directory, the kind of a binary."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Final, TypeAlias, cast

from kaged.base import JsonObject, JsonValue
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.files.sniff import SNIFFED_BYTES, mime_of_binary
from kaged.toolbox.files.suggest import did_you_mean
from kaged.toolbox.files.window import MAX_CONTENT_CHARS, LineWindow
from kaged.tools import InvalidToolParams, Tool, ToolDefinition, ToolInvocation
from kaged.tools.fields import closed, integer, text
from kaged.tools.kept_results import KeptResults, path_or_result, requires_unless_result
from kaged.tools.result_text import PagedText, ResultView, text_of
from kaged.workspace import ChangeKind, FileChange, ProjectPath, Workspace
from kaged.workspace.content import CHUNK_BYTES
from kaged.workspace.errors import FileMissing, FileTooLarge, FileUnreadable
from kaged.workspace.text import printable, sendable

DEFAULT_LIMIT: Final = 2000  # AT-FILE-04
MAX_READ_BYTES: Final = 2 * 1024**3
MAX_ENTRIES: Final = 200_000
_BIG: Final = 2**53 - 1  # the largest number that every JSON reader takes

DESCRIPTION: Final = """\
Read a text file, list a directory, or learn what a binary file is.

Lines come as `N: text` with their real line numbers; the number, colon and space are not part of \
the file, so leave them out when you quote text to edit.text. Use offset and limit to page through \
a long file: when `truncated` is true, continue at `next_offset`. Lines over 2000 characters are \
cut and end with [truncated]. A directory gives one entry per line, sub-directories with a \
trailing slash. Read a file before you overwrite or edit it."""

PARAMETERS: Final[JsonObject] = closed(
    {
        "path": text(
            "Project-relative path, e.g. ./src/main.py, or the handle of a kept result (result:/…)."
        ),
        "offset": integer(
            "First line (or directory entry) to return, counted from 1.",
            minimum=1,
            maximum=_BIG,
            default=1,
        ),
        "limit": integer(
            "How many lines to return at most.", minimum=1, maximum=_BIG, default=DEFAULT_LIMIT
        ),
    },
    ["path"],
)

RETURNS: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "type": {"enum": ["file", "directory", "binary"]},
        "content": {"type": "string"},
        "total_lines": {"type": "integer"},
        "truncated": {"type": "boolean"},
        "next_offset": {"type": "integer"},
        "notice": {"type": "string"},
        "size": {"type": "integer"},
        "mime": {"type": "string"},
    },
    "required": ["path", "type"],
}


_Seen: TypeAlias = tuple[JsonObject, str | None]
"""What is answered, and the hash of a file's content."""


async def read_result(call: ToolInvocation, kept: KeptResults | None) -> JsonValue:
    """Answer a call of `file.read` for a result that was too long for the caller's window."""
    handle, offset, limit = (call.args.get(one) for one in ("path", "offset", "limit"))
    if kept is None:
        raise InvalidToolParams.of_field("path", "no results are kept here")
    window = LineWindow(cast("int", offset or 1), cast("int", limit or DEFAULT_LIMIT))

    def work() -> JsonObject:
        with os.fdopen(kept.open(call.context, str(handle)), "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                window.feed(chunk)
        window.finish()
        content, following = window.numbered()
        return _windowed(str(handle), "file", content, window.total_lines, following)

    return await call.workspace.threads.run(work)


async def read_file(call: ToolInvocation) -> JsonValue:
    """Answer one call of `file.read`; blocking work is done in a thread."""
    path = call.paths[0]
    workspace = call.workspace
    offset = cast("int", call.args.get("offset", 1))
    limit = cast("int", call.args.get("limit", DEFAULT_LIMIT))

    def work() -> _Seen:
        try:
            return _look(workspace, path, offset, limit)
        except FileMissing:
            near = did_you_mean(workspace, path, call.readable)
            raise FileMissing(path.relative, requested=path.requested, did_you_mean=near) from None

    async with workspace.locks.reading(path):
        answer, sha256 = await workspace.threads.run(work)
        if sha256 is not None:
            context = call.context
            workspace.reads.note(context.session_id, context.caller, path.resolved, sha256)
            workspace.changes.publish(FileChange(ChangeKind.READ, path, sha256))
    return answer


def _look(workspace: Workspace, path: ProjectPath, offset: int, limit: int) -> _Seen:
    handle = workspace.open_read(path)
    try:
        info = os.fstat(handle)
        if stat.S_ISDIR(info.st_mode):
            return _listing(handle, path, offset, limit), None
        return _content(handle, path, info.st_size, LineWindow(offset, limit))
    except OSError as error:
        raise FileUnreadable(path.relative, error.strerror or "unknown error") from error
    finally:
        os.close(handle)


def _content(handle: int, path: ProjectPath, size: int, window: LineWindow) -> _Seen:
    shown = sendable(path.relative)
    if size > MAX_READ_BYTES:
        raise FileTooLarge(shown, size, MAX_READ_BYTES)
    # What is small is read in one go; one byte more shows the end without another call.
    chunk = os.read(handle, min(size + 1, CHUNK_BYTES))
    mime = mime_of_binary(chunk[:SNIFFED_BYTES], path.resolved)
    digest = hashlib.sha256()
    read = 0
    while chunk:
        digest.update(chunk)
        read += len(chunk)
        if read > MAX_READ_BYTES:
            raise FileTooLarge(shown, read, MAX_READ_BYTES)
        if mime is None:
            window.feed(chunk)
        chunk = os.read(handle, CHUNK_BYTES)
    if mime is not None:
        answer: JsonObject = {"path": shown, "type": "binary", "size": read, "mime": mime}
        return answer, digest.hexdigest()
    window.finish()
    content, following = window.numbered()
    answer = _windowed(shown, "file", content, window.total_lines, following)
    return answer, digest.hexdigest()


def _listing(handle: int, path: ProjectPath, offset: int, limit: int) -> JsonObject:
    names: list[str] = []
    complete = True
    with os.scandir(handle) as entries:
        for entry in entries:
            if len(names) >= MAX_ENTRIES:
                complete = False
                break
            # A link is shown as what it is, a name: where it leads may be outside the cage.
            slash = "/" if entry.is_dir(follow_symlinks=False) else ""
            names.append(entry.name + slash)
    names.sort()
    lines: list[str] = []
    size = 0
    for name in names[offset - 1 : offset - 1 + limit]:
        line = printable(name)
        size += len(line) + 1
        if size > MAX_CONTENT_CHARS:
            break
        lines.append(line)
    answer = _windowed(
        sendable(path.relative), "directory", "\n".join(lines), len(names), offset + len(lines)
    )
    if not complete:
        answer["truncated"] = True
        answer["notice"] = f"there are more than {MAX_ENTRIES} entries; only some were looked at"
    return answer


def _windowed(path: str, kind: str, content: str, total: int, following: int) -> JsonObject:
    truncated = following <= total
    answer: JsonObject = {
        "path": path,
        "type": kind,
        "content": content,
        "total_lines": total,
        "truncated": truncated,
    }
    if truncated:
        answer["next_offset"] = following
    return answer


def _paged(result: JsonObject) -> PagedText | None:
    """Return the numbered lines of a result, which can be read again from any of them on."""
    content = result.get("content")
    if not isinstance(content, str):
        return None
    rest = {name: value for name, value in result.items() if name != "content"}
    end = cast("int", result["total_lines"]) + 1
    following = cast("int", result.get("next_offset", end))
    first = following - (content.count("\n") + 1 if content else 0)
    return PagedText(text_of(rest), content, str(result["path"]), first)


def read_tool(kept: KeptResults | None = None) -> Tool:
    """Return `file.read` for the registry; `kept` are the results that it reads."""
    definition = ToolDefinition(
        name="file.read",
        namespace="file",
        description=DESCRIPTION,
        parameters=PARAMETERS,
        returns=RETURNS,
        requires=(FsRequirement(FsMode.RO),),
    )

    async def read(call: ToolInvocation) -> JsonValue:
        return await (read_file(call) if call.paths else read_result(call, kept))

    return Tool(
        definition,
        read,
        paths=path_or_result(),
        requires_for=requires_unless_result(definition),
        view=ResultView(is_read=True, paged=_paged),
    )
