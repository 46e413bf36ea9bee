"""`ToolCallContext`: who calls, in which session and project, under which cage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.gate_port import AskHost
from kaged.inbox import InboxRequest
from kaged.kernel.identity import Actor
from kaged.kernel.policy import CagePolicy
from kaged.tools.errors import ToolError

ReachPerson: TypeAlias = Callable[[InboxRequest], None]
"""Called with a question that waits in the inbox, to show it where the caller is."""

ROOT_CALLER: Final = "primary"  # AT-CTX-03: this exact text and no other is the root agent


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """The circumstances of one call, built by the host only and fixed while the call runs.

    `caller` is the agent's place in the tree (`primary.subagents.coder`). `project_root` is
    absolute with symlinks resolved. `cage_policy` None means: no cage. `identity` None means that
    nobody is known to act for, so that no account of anybody can be used. `model` is the alias of
    the model that made the call, `turn` the number of its turn in the run, `asked` what its agent
    was asked, shortened; None when none did. `reach_person` is how the caller's surface hears of a
    question about a refused call, beside the inbox; without one nobody is asked. `ask_host` asks
    for a destination while the call runs, `granted_tools` are those that a person gave the agent.
    """

    session_id: str
    run_id: str
    caller: str
    project_id: str
    project_root: str
    cage_policy: CagePolicy | None
    request_id: str
    operator_id: str = "operator"
    identity: Actor | None = None
    model: str | None = None
    turn: int | None = None
    asked: str | None = None
    reach_person: ReachPerson | None = None
    ask_host: AskHost | None = None
    granted_tools: frozenset[str] = frozenset()


_NO_TEXTS: Final = frozenset(
    {
        *("cage_policy", "operator_id", "identity", "model", "turn", "asked"),
        *("reach_person", "ask_host", "granted_tools"),
    }
)
_TEXTS: Final = tuple(one.name for one in fields(ToolCallContext) if one.name not in _NO_TEXTS)
_PARTS: Final = (
    ("cage_policy", (CagePolicy, type(None))),
    ("identity", (Actor, type(None))),
)


def by_inbox(request: InboxRequest) -> None:
    """Show a question nowhere else: whoever follows the session sees it in the inbox."""
    del request


def require_complete(context: ToolCallContext) -> None:
    """Refuse a context in which something is missing.

    Raises:
        ToolError: `tool_context_invalid`; a field is empty, or of another type.
    """
    for name in _TEXTS:
        value = getattr(context, name)
        if type(value) is not str or not value:
            raise ToolError(
                f"the call context lacks {name}", code="tool_context_invalid", field=name
            )
    for name, kinds in _PARTS:
        if type(getattr(context, name)) not in kinds:
            raise ToolError(
                f"the call context has no valid {name}", code="tool_context_invalid", field=name
            )
