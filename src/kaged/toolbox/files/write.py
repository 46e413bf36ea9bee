"""`file.write` and `file.create`: a whole file in one step."""

from __future__ import annotations

import re
from collections.abc import Callable
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


async def write_file(call: ToolInvocation) -> JsonValue:
    """Answer one call of `file.write`."""
    workspace, context, path = call.workspace, call.context, call.paths[0]

    def put(data: bytes) -> Written:
        try:
            old = workspace.read_bytes(path)
        except FileMissing:
            try:
                return workspace.write_bytes(path, data, create_only=True)
            except FileExists:
                # It appeared this very moment: nobody has read that.
                raise FileNotRead(path.relative) from None
        workspace.reads.require(context.session_id, context.caller, path, old.sha256)
        return workspace.write_bytes(path, data, expect_sha=old.sha256)

    return await _write(call, put)


async def create_file(call: ToolInvocation) -> JsonValue:
    """Answer one call of `file.create`."""
    workspace, path = call.workspace, call.paths[0]

    def put(data: bytes) -> Written:
        if path.link:
            # Even one that leads nowhere is something that is there (AT-FILE-34).
            raise FileExists(path.relative)
        return workspace.write_bytes(path, data, create_only=True)

    return await _write(call, put)


async def _write(call: ToolInvocation, put: Callable[[bytes], Written]) -> JsonValue:
    """Put the content in place, in a thread and under the file's lock, and tell of it."""
    workspace, args = call.workspace, call.args

    def work() -> tuple[Written, bytes, list[JsonValue]]:
        data = encoded(args, "content")
        return put(data), data, _warnings(cast("str", args["content"]))

    async with workspace.locks.mutating([call.paths[0]]):
        return await workspace.threads.finish(work, lambda done: _settled(call, *done))


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


def _settled(
    call: ToolInvocation, written: Written, data: bytes, warnings: list[JsonValue]
) -> JsonObject:
    call.workspace.settle(call.author, [written], [data])
    path = sendable(written.path.relative)
    call.emit("file.written", path=path, bytes=written.size, tool_name=call.tool_name)
    answer: JsonObject = {
        "path": path,
        "bytes_written": written.size,
        "created": written.created,
    }
    if warnings:
        answer["warnings"] = warnings
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
