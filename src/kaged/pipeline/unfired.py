"""`unfired_problems`: hooks that plugins may have and no call of the daemon passes, and why.

A policy that would never run guards nothing, so a file that names one is not put in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kaged.config.problems import Problem, Severity, format_key_path

if TYPE_CHECKING:
    from kaged.pipeline.document import PipelineDocument, PluginEntry

_EDGE: Final = "requests are let in by [auth] alone, before any policy; guard the calls they make"
_WHO: Final = "who acts is found out by [auth] and [people], never by a policy"
_MESSAGES: Final = "only model calls pass as messages; use the hook without cmf."

UNFIRED: Final[Mapping[str, str]] = {
    "http_pre_request": _EDGE,
    "http_post_request": _EDGE,
    "http_auth_resolve_user": _WHO,
    "http_auth_check_permission": "what people may use is written in [people]; use tool_pre_invoke",
    "identity_resolve": _WHO,
    "evaluate": "nothing asks for an evaluation by itself; use tool_pre_invoke",
    **{
        f"cmf.{kind}_{when}": _MESSAGES
        for kind, moments in (
            ("tool", ("pre_invoke", "post_invoke")),
            ("prompt", ("pre_fetch", "post_fetch")),
            ("resource", ("pre_fetch", "post_fetch")),
        )
        for when in moments
    },
}
"""By hook, why the daemon does not fire it."""


def unfired_problems(document: PipelineDocument) -> list[Problem]:
    """Return what is wrong with the hooks of a file: warnings, or errors where no hook is left."""
    return [
        problem
        for entry in document.entries
        for problem in _problems(document.file, entry, set(entry.config.hooks) <= set(UNFIRED))
    ]


def _problems(file: str, entry: PluginEntry, never: bool) -> list[Problem]:
    by_reason: dict[str, list[str]] = {}
    for hook in entry.config.hooks:
        if hook in UNFIRED:
            by_reason.setdefault(UNFIRED[hook], []).append(hook)
    return [
        Problem(
            file,
            _line(entry, hooks[0]),
            1,
            format_key_path(("plugins", entry.index, "hooks")),
            f"plugin {entry.config.name!r}: nothing in the daemon fires {', '.join(hooks)}",
            reason,
            severity=Severity.ERROR if never else Severity.WARNING,
            code="pipeline_hook_not_fired",
        )
        for reason, hooks in by_reason.items()
    ]


def _line(entry: PluginEntry, hook: str) -> int:
    mark = entry.hook_marks.get(hook)
    return entry.line_of("hooks") if mark is None else mark.line
