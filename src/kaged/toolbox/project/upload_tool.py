"""`kaged.upload`: the text of a file that the person gave along for whom the agent works."""

from __future__ import annotations

import asyncio
from typing import Final, cast

from kaged.base import JsonValue
from kaged.toolbox.project.person_uploads import INSIDE, PersonUploads
from kaged.toolbox.project.texts import definition
from kaged.tools import Tool, ToolInvocation
from kaged.tools.fields import closed, integer, text

PIECE_CHARS: Final = 50_000
PATH_CHARS: Final = 1000
_BIG: Final = 2**53 - 1

PARAMETERS: Final = closed(
    {
        "path": text(f"The path from the answer, e.g. {INSIDE}/…/notes.txt.", maxLength=PATH_CHARS),
        "offset": integer("The first character.", minimum=0, maximum=_BIG, default=0),
    },
    ["path"],
)


def upload_tool(uploads: PersonUploads) -> Tool:
    """Make the tool."""

    async def handle(call: ToolInvocation) -> JsonValue:
        path = str(call.args["path"])
        data = await asyncio.to_thread(uploads.read, call.context.identity, path)
        try:
            whole = data.decode("utf-8")
        except UnicodeDecodeError:
            return {"path": path, "type": "binary", "size": len(data)}
        offset = cast("int", call.args.get("offset", 0))
        end = offset + PIECE_CHARS
        return {
            "path": path,
            "type": "file",
            "size": len(data),
            "content": whole[offset:end],
            "next_offset": end if end < len(whole) else None,
        }

    return Tool(
        definition=definition(
            "kaged.upload",
            "Read a text file that the person you work for gave you with an answer or an input: "
            f"paths that begin with {INSIDE}. Up to {PIECE_CHARS} characters come at a time; go on "
            "at next_offset. Caged commands find the same files at the same paths, read-only.",
            PARAMETERS,
            {
                "type": "object",
                "description": "{path, type: file, size, content, next_offset}, or {path, type: "
                "binary, size}.",
            },
            None,
        ),
        handler=handle,
    )
