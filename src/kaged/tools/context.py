"""`ToolCallContext`: who calls, in which session and project, under which cage."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.kernel.policy import CagePolicy
from kaged.tools.errors import ToolError

ROOT_CALLER: Final = "primary"  # AT-CTX-03: this exact text and no other is the root agent


@dataclass(frozen=True, slots=True)
class ToolCallContext:
    """The circumstances of one call, built by the host only and fixed while the call runs.

    `caller` is the agent's place in the tree (`primary.subagents.coder`). `project_root` is
    absolute with symlinks resolved. `cage_policy` None means: no cage. `identity` None means that
    nobody is known to act for, so that no account of anybody can be used. `model` is the alias of
    the model that made the call, `turn` the number of its turn in the run, `asked` what its agent
    was asked, shortened; None when none did.
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


_NO_TEXTS: Final = frozenset({"cage_policy", "operator_id", "identity", "model", "turn", "asked"})
_TEXTS: Final = tuple(one.name for one in fields(ToolCallContext) if one.name not in _NO_TEXTS)
_PARTS: Final = (
    ("cage_policy", (CagePolicy, type(None))),
    ("identity", (Actor, type(None))),
)


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
