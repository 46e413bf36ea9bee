"""memory-markdown: long-term memory for agents, as files that people can read and edit."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from memory import MarkdownStore, Memory

from kaged.sdk import CallContext, ConfigInvalid, InvalidParams, Plugin, PluginError

DEFAULTS: dict[str, Any] = {
    "isolation": "agent",
    "store": "config:/memory",
    "max_results": 8,
    "min_score": 0.1,
    "order": "relevance",
    "inject_on_start": True,
    "default_tag": "",
    "preamble": "What you retained in earlier sessions:",
    "written_by": None,
    "embeddings_url": "",
    "embeddings_model": "",
    "embeddings_token": "",
}
ROOTS = {"config:": "KAGED_CONFIG_ROOT", "project:": "KAGED_PROJECT_ROOT"}
# "Remember that we deploy on Fridays." in a user's message is worth keeping without being asked.
REMEMBER = re.compile(
    r"^\s*(?:please\s+)?remember(?:\s+that|:)\s+(.{3,500})$", re.IGNORECASE | re.MULTILINE
)

plugin = Plugin("memory-markdown", "0.1.0")
config: dict[str, Any] = dict(DEFAULTS)


def base_folder() -> Path:
    """Turn the `store` setting into a folder of this cage."""
    store = str(config["store"])
    prefix, _, rest = store.partition(":")
    variable = ROOTS.get(f"{prefix}:")
    if variable is None or not rest.startswith("/") or ".." in Path(rest).parts:
        raise ConfigInvalid(f"store must be config:/… or project:/…, not {store!r}")
    root = os.environ.get(variable)
    if root is None:
        raise PluginError(
            f"{store} is not reachable here: {variable} is not set, so this plugin has no grant "
            f"for {prefix}: (add write:fs:{store} to its grants)"
        )
    return Path(root) / rest.lstrip("/")


def store_for(context: CallContext) -> MarkdownStore:
    """Choose the memory that this caller sees."""
    project = context.project_id or "no-project"
    readable = re.sub(r"[^a-z0-9]+", "-", project.lower()).strip("-")[-40:] or "project"
    from hashlib import sha256  # noqa: PLC0415 - takes more memory than the plugin while it waits

    digest = sha256(project.encode()).hexdigest()[:8]
    scope = "shared" if config["isolation"] == "project" else context.agent_path or "no-agent"
    return MarkdownStore(base_folder() / f"{readable}-{digest}" / re.sub(r"[^\w.-]", "_", scope))


def brief(memory: Memory) -> dict[str, Any]:
    """Return what an agent needs of a memory."""
    found: dict[str, Any] = {
        "id": memory.id,
        "content": memory.content,
        "created": memory.created,
        "tags": list(memory.tags),
    }
    if memory.context:
        found["context"] = memory.context
    return found


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration."""
    merged = {**DEFAULTS, **new}
    if str(merged["store"]).partition(":")[0] + ":" not in ROOTS:
        raise ConfigInvalid("store must begin with config: or project:")
    config.clear()
    config.update(merged)


@plugin.tool("retain")
def retain(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Store one thing worth remembering."""
    content = str(params.get("content", "")).strip()
    if not content:
        raise InvalidParams("content is empty")
    tags = tuple(dict.fromkeys(params.get("tags") or []))
    if not tags and config["default_tag"]:
        tags = (str(config["default_tag"]),)
    extra = {"written_by": str(config["written_by"])} if config["written_by"] else {}
    memory = store_for(context).add(content, tags, str(params.get("context", "")), extra)
    return {"id": memory.id, "tags": list(memory.tags)}


@plugin.tool("recall")
def recall(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Search what was retained."""
    limit = int(params.get("limit") or config["max_results"])
    tags = tuple(params.get("tags") or ())
    store, query = store_for(context), str(params["query"])
    found = store.find(query, tags, float(config["min_score"]))
    problem = ""
    if config["embeddings_url"]:
        found, problem = by_meaning(store, query, tags, found)
    if config["order"] == "newest":
        found.sort(key=lambda pair: (pair[1].created, pair[1].id), reverse=True)
    results = [{**brief(memory), "score": round(score, 2)} for score, memory in found[:limit]]
    answer: dict[str, Any] = {"memories": results, "total": len(found)}
    if problem:
        answer["by_words_only"] = problem
    return answer


def by_meaning(
    store: MarkdownStore, query: str, tags: tuple[str, ...], found: list[tuple[float, Memory]]
) -> tuple[list[tuple[float, Memory]], str]:
    """Add what means the same in other words; returns also why that was not possible."""
    from vectors import Embeddings, HttpUnreachable  # noqa: PLC0415 - most have no such service

    url, model = str(config["embeddings_url"]), str(config["embeddings_model"])
    all_of_them = [one for one in store.all() if set(tags) <= set(one.tags)]
    try:
        service = Embeddings(store.folder, url, model, str(config["embeddings_token"]))
        alike = service.alike(query, all_of_them)
    except HttpUnreachable as error:
        return found, str(error)
    words = {memory.id: score for score, memory in found}
    scored = [
        (max(words.get(one.id, 0.0), alike.get(one.id, 0.0)), one)
        for one in all_of_them
        if one.id in words or one.id in alike
    ]
    return sorted(scored, key=lambda pair: pair[0], reverse=True), ""


@plugin.tool("forget")
def forget(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Take one memory out of use."""
    if not store_for(context).forget(str(params["id"])):
        raise PluginError(f"no memory with id {params['id']}; use recall to see the ids")
    return {"forgotten": params["id"]}


@plugin.tool("list_tags")
def list_tags(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """List the tags in use."""
    return {"tags": store_for(context).tags()}


def reminder(context: CallContext) -> dict[str, Any] | None:
    """Write the text that goes into the prompt, newest memories first."""
    newest = store_for(context).all()[: int(config["max_results"])]
    if not newest:
        return None
    lines = "\n".join(f"- {memory.content.splitlines()[0]} ({memory.id})" for memory in newest)
    return {"inject": f"{config['preamble']}\n{lines}"}


def keep_requests(messages: list[Any], context: CallContext) -> list[str]:
    """Retain what the user asked to remember in these messages, each once."""
    store = store_for(context)
    known = {memory.content for memory in store.all()}
    kept: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") != "user":
            continue
        for match in REMEMBER.finditer(str(message.get("content", ""))):
            content = match[1].strip()
            if content not in known:
                known.add(content)
                kept.append(content)
                store.add(content, ("asked",), "the user asked to remember it", {})
    return kept


@plugin.hook("on_session_start")
def on_session_start(params: dict[str, Any], context: CallContext) -> dict[str, Any] | None:
    """Remind the agent of what it knows."""
    return reminder(context) if config["inject_on_start"] else None


@plugin.hook("on_session_idle")
def on_session_idle(params: dict[str, Any], context: CallContext) -> None:
    """Keep what the user asked to remember, when nobody waits."""
    keep_requests(params.get("transcript") or [], context)


@plugin.hook("pre_compact")
def pre_compact(params: dict[str, Any], context: CallContext) -> dict[str, Any] | None:
    """Keep what is about to leave the window and hand it back to the harness."""
    kept = keep_requests(params.get("messages_being_compacted") or [], context)
    return {"retain": kept} if kept else None


@plugin.hook("post_compact")
def post_compact(params: dict[str, Any], context: CallContext) -> dict[str, Any] | None:
    """Remind the agent again, now that the old messages are gone."""
    return reminder(context)


if __name__ == "__main__":
    plugin.start()
