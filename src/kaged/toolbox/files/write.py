"""`file.write` and `file.create`: a whole file in one step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.files.window import CUT_MARK
from kaged.tools import InvalidToolParams, Tool, ToolDefinition, ToolInvocation, one_path
from kaged.tools.fields import closed, text
from kaged.workspace import Written
from kaged.workspace.content import MAX_TEXT_BYTES
from kaged.workspace.errors import FileExists, FileMissing, FileNotRead
from kaged.workspace.text import sendable

WRITE_DESCRIPTION: Final = """\
Write a whole file: create it, or replace everything in it with `content`.

The content is taken exactly as given. Missing directories are made. To overwrite an existing \
file you must have read it with file.read in this session, and it must not have changed \
since. For small changes use edit.text."""

CREATE_DESCRIPTION: Final = """\
Create a new file with the given content; missing directories are made.

Fails with file_exists if there is anything at that path already; use file.write to overwrite."""

PARAMETERS: Final[JsonObject] = closed(
    {
        "path": text("Project-relative path, e.g. ./src/new.py."),
        "content": text("The whole content of the file."),
    },
    ["path", "content"],
)

RETURNS: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "bytes_written": {"type": "integer"},
        "created": {"type": "boolean"},
        "warnings": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["path", "bytes_written", "created"],
}

_NUMBERED: Final = re.compile(r"(\d+): ")


@dataclass(frozen=True, slots=True)
class _Done:
    written: Written
    data: bytes
    warnings: list[JsonValue]


async def write_file(call: ToolInvocation) -> JsonValue:
    """Answer one call of `file.write`."""
    workspace, context, path = call.workspace, call.context, call.paths[0]

    def work() -> _Done:
        data = encoded(call.args, "content")
        try:
            old = workspace.read_bytes(path)
        except FileMissing:
            try:
                return _done(call, data, workspace.write_bytes(path, data, create_only=True))
            except FileExists:
                # It appeared this very moment: nobody has read that.
                raise FileNotRead(path.relative) from None
        workspace.reads.require(context.session_id, context.caller, path, old.sha256)
        return _done(call, data, workspace.write_bytes(path, data, expect_sha=old.sha256))

    async with workspace.locks.mutating([path]):
        return await workspace.threads.finish(work, lambda done: _settled(call, done))


async def create_file(call: ToolInvocation) -> JsonValue:
    """Answer one call of `file.create`."""
    workspace, path = call.workspace, call.paths[0]

    def work() -> _Done:
        data = encoded(call.args, "content")
        if path.link:
            # Even one that leads nowhere is something that is there (AT-FILE-34).
            raise FileExists(path.relative)
        return _done(call, data, workspace.write_bytes(path, data, create_only=True))

    async with workspace.locks.mutating([path]):
        return await workspace.threads.finish(work, lambda done: _settled(call, done))


def encoded(args: JsonObject, field: str) -> bytes:
    """Return a text argument as UTF-8. Raises InvalidToolParams."""
    try:
        data = cast("str", args[field]).encode("utf-8")
    except UnicodeEncodeError as error:
        problem = f"character {error.start} is half a surrogate pair and cannot be written"
        raise InvalidToolParams.of_field(field, problem) from None
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidToolParams.of_field(field, f"is longer than {MAX_TEXT_BYTES} bytes")
    return data


def _done(call: ToolInvocation, data: bytes, written: Written) -> _Done:
    return _Done(written, data, _warnings(cast("str", call.args["content"])))


def _settled(call: ToolInvocation, done: _Done) -> JsonObject:
    written = done.written
    call.workspace.settle(call.author, [written], [done.data])
    path = sendable(written.path.relative)
    call.emit("file.written", path=path, bytes=written.size, tool_name=call.tool_name)
    answer: JsonObject = {
        "path": path,
        "bytes_written": written.size,
        "created": written.created,
    }
    if done.warnings:
        answer["warnings"] = done.warnings
    return answer


def _warnings(content: str) -> list[JsonValue]:
    """Return a warning when the content looks like the output of file.read, not like a file."""
    found: list[JsonValue] = []
    lines = content[:20_000].splitlines()[:50]
    numbers = [_NUMBERED.match(line) for line in lines]
    first = numbers[0] if numbers else None
    if len(numbers) > 1 and first is not None:
        start = int(first[1])
        expected = range(start, start + len(numbers))
        if [one and int(one[1]) for one in numbers] == list(expected):
            found.append(
                "every line begins with a line number as file.read shows them; they are now part "
                "of the file"
            )
    if f"{CUT_MARK}\n" in content or content.endswith(CUT_MARK):
        found.append(
            f"the content holds the mark {CUT_MARK} that file.read puts in place of the rest of a "
            "long line"
        )
    return found


def write_tool() -> Tool:
    """Return `file.write` for the registry."""
    return Tool(
        _definition("file.write", WRITE_DESCRIPTION), write_file, paths=one_path(), changes=True
    )


def create_tool() -> Tool:
    """Return `file.create` for the registry."""
    return Tool(
        _definition("file.create", CREATE_DESCRIPTION), create_file, paths=one_path(), changes=True
    )


def _definition(name: str, description: str) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        namespace="file",
        description=description,
        parameters=PARAMETERS,
        returns=RETURNS,
        requires=(FsRequirement(FsMode.RW),),
    )
