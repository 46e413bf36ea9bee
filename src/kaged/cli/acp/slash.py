"""Commands that are typed as a prompt: `/undo`, `/compact`, and those of the project's scripts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from kaged.cli.acp.conversation import Conversation
from kaged.cli.acp.link import DaemonLink
from kaged.cli.output import harmless

Work: TypeAlias = Callable[[DaemonLink, Conversation], Awaitable[str]]

BUILT_IN: Final[dict[str, tuple[str, str]]] = {
    "undo": ("Undo what the last run did to files.", ""),
    "compact": ("Compact the agent's context window now.", ""),
}
"""Name, description and hint of the commands that every session has."""


async def run_slash_command(link: DaemonLink, opened: Conversation, text: str) -> str | None:
    """Run a command; return what it says, or None when there is none of that name.

    A script's command takes the place of a built-in one of its name, as in `kaged chat`.
    """
    name, _, rest = text[1:].partition(" ")
    scripts = await link.get(f"{opened.base}/lua")
    if any(one["name"] == name for one in scripts["commands"]):
        body = {"name": name, "raw": rest.strip(), "interactive": False}
        return _told(await link.post(f"{opened.base}/lua/commands", body))
    work = _WORK.get(name)
    return None if work is None else await work(link, opened)


async def _undo(link: DaemonLink, opened: Conversation) -> str:
    done = await link.get(f"{opened.base}/undo", {"session_id": opened.session_id, "limit": 1})
    if not done["steps"]:
        return "Nothing that this session did to files is left to undo."
    found = await link.post(f"{opened.base}/undo", {"run_id": done["steps"][0]["run_id"]})
    lines = [f"- {one['change']} `{one['path']}`" for one in found["files"]]
    return "\n".join(["Undone:", *lines])


async def _compact(link: DaemonLink, opened: Conversation) -> str:
    path = f"{opened.base}/sessions/{opened.session_id}/compact"
    found = await link.post(path, {"agent": opened.agent, "dry_run": False})
    done = "was compacted" if found.get("compacted") else "needs no compaction"
    return f"The context window {done}."


_WORK: Final[dict[str, Work]] = {"undo": _undo, "compact": _compact}


def _told(found: dict[str, Any]) -> str:
    lines = [f"[{one['script']}] {one['message']}" for one in found["notices"]]
    if found["text"]:
        lines.append(str(found["text"]))
    return harmless("\n".join(lines)) or "Done."
