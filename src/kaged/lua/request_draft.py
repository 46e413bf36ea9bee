"""`read_draft`: what scripts made of a request to a model, checked part by part.

A part that cannot be used is reported to people and stays as it was: a broken script must not break
the request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kaged.base import JsonObject, JsonValue
from kaged.sessions.transforms import ContextDraft

Report = Callable[[str], None]


def read_draft(said: JsonObject, draft: ContextDraft, report: Report) -> ContextDraft:
    """Return the request as scripts want it; `report` is told what of that is not done.

    Another system prompt, even an empty one, counts. Tools can be left out, not added or changed.
    The model stays the one that the project file or the person chose.
    """
    return replace(
        draft,
        messages=_messages(said.get("messages"), draft, report),
        system=_system(said.get("system"), draft, report),
        tools=_tools(said.get("tools"), draft, report),
        model=_model(said.get("model"), draft, report),
    )


def _messages(said: JsonValue, draft: ContextDraft, report: Report) -> Sequence[JsonObject]:
    found = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    if not found:
        report("a transform gave no list of messages; it is not used")
        return draft.messages
    return found


def _system(said: JsonValue, draft: ContextDraft, report: Report) -> str:
    if said is None:
        return draft.system
    if not isinstance(said, str):
        report("before_provider_request gave a system prompt that is no text; it is not used")
        return draft.system
    return said


def _tools(said: JsonValue, draft: ContextDraft, report: Report) -> Sequence[JsonObject]:
    if said is None:
        return draft.tools
    if not isinstance(said, list):
        report("before_provider_request gave no list of tools; it is not used")
        return draft.tools
    names = {str(one.get("name")) for one in said if isinstance(one, dict)}
    added = sorted(names - {one["name"] for one in draft.tools if isinstance(one["name"], str)})
    if added:
        report(f"before_provider_request cannot add tools: {', '.join(added)[:200]}")
    return [one for one in draft.tools if one["name"] in names]


def _model(said: JsonValue, draft: ContextDraft, report: Report) -> str:
    if said is not None and said != draft.model:
        report(f"before_provider_request cannot choose the model; it stays {draft.model}")
    return draft.model
