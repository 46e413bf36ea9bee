"""`edit.text`: exact text in a file replaced by another, with as much help as an agent can use."""

from __future__ import annotations

from typing import Final, NoReturn, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.files.diff import first_line, unified_diff
from kaged.toolbox.files.matching import MAX_SPANS, Replacement, TextMatch, find, replace, split_bom
from kaged.toolbox.files.nearmiss import closest
from kaged.toolbox.files.sniff import SNIFFED_BYTES, mime_of_binary
from kaged.toolbox.files.suggest import did_you_mean
from kaged.toolbox.files.write import encoded
from kaged.tools import InvalidToolParams, Tool, ToolDefinition, ToolInvocation, one_path
from kaged.tools.errors import ToolError
from kaged.tools.fields import closed, flag, text
from kaged.workspace import Written
from kaged.workspace.errors import FileMissing, WrongKind
from kaged.workspace.text import sendable

MAX_MORE_EDITS: Final = 50
MAX_SHOWN_MATCHES: Final = 5
_SHOWN_CHARS: Final = 200

DESCRIPTION: Final = """\
Replace exact text in a file that you have read.

`old_string` must be in the file exactly as you give it, blanks and all, and only once; add lines \
around it until it is unique, or set replace_all. Do not include the line numbers of file.read. \
Line endings and encoding of the file are kept. `more_edits` applies further replacements to the \
same file after the first one, in order; all of them happen or none. If the text is not found, the \
error shows the closest place and why it differs."""

_TEXTS: Final[JsonObject] = {
    "old_string": text("The exact text to find, without line numbers.", minLength=1),
    "new_string": text("The text to put in its place; empty deletes it."),
    "replace_all": flag("Replace every occurrence instead of insisting on one.", default=False),
}

PARAMETERS: Final[JsonObject] = closed(
    {
        "path": text("Project-relative path of the file."),
        **_TEXTS,
        "more_edits": {
            "type": "array",
            "maxItems": MAX_MORE_EDITS,
            "description": "Further replacements in the same file, applied in order.",
            "items": closed(_TEXTS, ["old_string", "new_string"]),
        },
    },
    ["path", "old_string", "new_string"],
)

RETURNS: Final[JsonObject] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "replacements": {"type": "integer"},
        "diff": {"type": "string"},
        "first_line": {"type": "integer"},
        "match": {"enum": ["line_endings"]},
    },
    "required": ["path", "replacements"],
}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One replacement that was asked for. `index` is None when it is the only one."""

    old: bytes
    new: bytes
    every: bool
    index: int | None


@dataclass(frozen=True, slots=True)
class _Edited:
    written: Written
    data: bytes
    replacements: int
    first_line: int
    diff: str
    lenient: bool
    """Whether line endings were taken leniently."""


async def edit_text(call: ToolInvocation) -> JsonValue:
    """Answer one call of `edit.text`."""
    wanted = _wanted(call.args)
    workspace, path = call.workspace, call.paths[0]
    async with workspace.locks.mutating([path]):
        return await workspace.threads.finish(
            lambda: _edit(call, wanted), lambda edited: _settled(call, edited)
        )


def _wanted(args: JsonObject) -> list[_Wanted]:
    listed = [args, *cast("list[JsonObject]", args.get("more_edits") or [])]
    found: list[_Wanted] = []
    for number, one in enumerate(listed):
        index = number if len(listed) > 1 else None
        if one["old_string"] == one["new_string"]:
            raise ToolError(
                f"old_string and new_string are the same{_which(index)}",
                code="no_change",
                fix="say what is to become of the text",
                detail=None if index is None else {"edit": index},
            )
        old, new = encoded(one, "old_string"), encoded(one, "new_string")
        found.append(_Wanted(old, new, one.get("replace_all") is True, index))
    return found


def _edit(call: ToolInvocation, wanted: list[_Wanted]) -> _Edited:
    workspace, context, path = call.workspace, call.context, call.paths[0]
    shown = sendable(path.relative)
    try:
        content = workspace.read_bytes(path)
    except FileMissing:
        near = did_you_mean(workspace, path, call.readable)
        raise FileMissing(shown, requested=path.requested, did_you_mean=near) from None
    mime = mime_of_binary(content.data[:SNIFFED_BYTES], path.resolved)
    if mime is not None:
        raise WrongKind(shown, f"is a binary file ({mime})", fix="edit text files only")
    workspace.reads.require(context.session_id, context.caller, path, content.sha256)
    mark, body = split_bom(content.data)
    edits: list[Replacement] = []
    for one in wanted:
        found = find(body, one.old)
        if not found.spans:
            _not_found(body, one, shown)
        if found.count > 1 and not one.every:
            _not_unique(body, found, one, shown)
        if found.count > MAX_SPANS:
            raise InvalidToolParams.of_field(
                "old_string", f"is there {found.count} times; the most for one edit is {MAX_SPANS}"
            )
        edits.append(replace(body, found, one.new))
        body = edits[-1].after
    data = mark + body
    written = workspace.write_bytes(path, data, expect_sha=content.sha256)
    return _Edited(
        written,
        data,
        replacements=sum(len(edit.spans) for edit in edits),
        first_line=min(first_line(edit) for edit in edits),
        diff="\n".join(unified_diff(edit, shown) for edit in edits),
        lenient=any(edit.match == "line_endings" for edit in edits),
    )


def _settled(call: ToolInvocation, edited: _Edited) -> JsonObject:
    call.workspace.settle(call.author, [edited.written], [edited.data])
    path = sendable(edited.written.path.relative)
    call.emit("file.edited", path=path, replacements=edited.replacements, tool_name=call.tool_name)
    answer: JsonObject = {
        "path": path,
        "replacements": edited.replacements,
        "first_line": edited.first_line,
        "diff": edited.diff,
    }
    if edited.lenient:
        answer["match"] = "line_endings"
    return answer


def _not_found(body: bytes, one: _Wanted, path: str) -> NoReturn:
    near = closest(body, one.old.decode("utf-8"))
    detail: JsonObject = {"path": path}
    if one.index is not None:
        detail["edit"] = one.index
    if near is None:
        fix = "read the file again and copy the text exactly, without line numbers"
    else:
        detail["closest"] = near.as_json()
        fix = f"the closest place is line {near.start_line}: {near.explanation}"
    raise ToolError(
        f"old_string{_which(one.index)} is not in {path}",
        code="old_string_not_found",
        fix=fix,
        detail=detail,
    )


def _not_unique(body: bytes, found: TextMatch, one: _Wanted, path: str) -> NoReturn:
    matches: list[JsonValue] = []
    for start, _ in found.spans[:MAX_SHOWN_MATCHES]:
        line_start = body.rfind(b"\n", 0, start) + 1
        line = body[line_start : line_start + _SHOWN_CHARS * 4].split(b"\n", 1)[0]
        text = line.decode("utf-8", "replace").removesuffix("\r")[:_SHOWN_CHARS]
        matches.append({"line": body.count(b"\n", 0, start) + 1, "text": text})
    detail: JsonObject = {"count": found.count, "path": path, "matches": matches}
    if one.index is not None:
        detail["edit"] = one.index
    raise ToolError(
        f"old_string{_which(one.index)} is in {path} {found.count} times",
        code="multiple_matches",
        fix="add lines around it until it is unique, or set replace_all",
        detail=detail,
    )


def _which(index: int | None) -> str:
    return "" if index is None else f" of edit {index}"


def edit_tool() -> Tool:
    """Return `edit.text` for the registry."""
    return Tool(
        ToolDefinition(
            name="edit.text",
            namespace="edit",
            description=DESCRIPTION,
            parameters=PARAMETERS,
            returns=RETURNS,
            requires=(FsRequirement(FsMode.RW),),
        ),
        edit_text,
        paths=one_path(),
        changes=True,
    )
