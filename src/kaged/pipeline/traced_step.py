"""`TracedStep`: what one plugin saw, changed and decided, as names and words without values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from kaged.base import Clock
from kaged.base.foreign import type_name
from kaged.pipeline.chain import Accepted, Chain, TraceEnd
from kaged.pipeline.errors import PluginViolationError
from kaged.pipeline.isolation import model_dict
from kaged.pipeline.payloads.base import PluginPayload
from kaged.pipeline.plan import Step
from kaged.pipeline.records import ControlExecutionRecord, shorten
from kaged.pipeline.shapes import plain
from kaged.pipeline.slots import Extensions
from kaged.pipeline.tiers import visible_slots

PATH_DEPTH = 2
"""How far the names of changed parts go: `payload.args.path`, `http.headers.x-team`."""


class TracedStep(NamedTuple):
    """One plugin's run. Names of slots and fields, never their values."""

    hook: str
    plugin: str
    mode: str
    saw: tuple[str, ...]
    """What the plugin could see of the slots that were filled."""
    read: tuple[str, ...]
    """Which slots it looked at."""
    changed: tuple[str, ...]
    """Which slots and payload fields came out changed."""
    refused: tuple[str, ...]
    """Changes that did not come through, each with the reason."""
    outcome: str
    """`allowed`, `denied`, `denied (suppressed)`, `canceled` or the class of the error."""
    duration_ns: int
    code: str = ""
    """The code of a denial or of a failure."""
    reason: str = ""
    """Why it denied or failed, in the plugin's words."""
    description: str = ""
    """What else a denial says."""


def watch_step(
    clock: Clock,
    step: Step,
    chain: Chain,
    view: Extensions | None,
    keep: Callable[[TracedStep], None],
    *,
    refusals_only: bool = False,
) -> TraceEnd:
    """Return what to call when a step ends: it gives `keep` what the plugin did.

    With `refusals_only` it does so where a call or a change was refused, or a plugin failed.
    """
    before = chain.extensions
    payload = chain.payload
    started = clock.monotonic_s()

    def end(accepted: Accepted | None, error: BaseException | None) -> None:
        refused = error is not None or (accepted and (accepted.denied or accepted.discarded))
        if refusals_only and not refused:
            return
        ended = clock.monotonic_s()
        code, reason, description = _words(chain, accepted, error)
        keep(
            TracedStep(
                hook=step.hook,
                plugin=step.name,
                mode=step.mode.value,
                saw=_filled(step, before),
                read=() if view is None else tuple(sorted(model_dict(view))),
                changed=_changed(before, payload, accepted),
                refused=()
                if accepted is None
                else tuple([f"{change.slot}: {change.reason}" for change in accepted.discarded]),
                outcome=_outcome(step, accepted, error),
                duration_ns=max(0, int((ended - started) * 1_000_000_000)),
                code=code,
                reason=reason,
                description=description,
            )
        )

    return end


def _filled(step: Step, extensions: Extensions | None) -> tuple[str, ...]:
    if extensions is None:
        return ()
    # `dict` of the host's own subclass, or of a view that a plugin hands in.
    filled = model_dict(extensions) if type(extensions) is Extensions else dict(extensions)
    return tuple([slot for slot, top in visible_slots(step.rights) if filled[top] is not None])


def _changed(before: Extensions | None, payload: Any, accepted: Accepted | None) -> tuple[str, ...]:
    if accepted is None:
        return ()
    names: list[str] = []
    if accepted.extensions is not None and before is not None:
        after = model_dict(accepted.extensions)
        for name, value in model_dict(before).items():
            if after[name] is not value:
                names += _paths(name, value, after[name]) or [name]
    if isinstance(accepted.payload, PluginPayload) and type(accepted.payload) is type(payload):
        old = model_dict(payload)
        for name, value in model_dict(accepted.payload).items():
            names += _paths(f"payload.{name}", old[name], value)
    elif accepted.payload is not None:
        names.append("payload")
    return tuple(names)


def _paths(name: str, before: Any, after: Any, depth: int = PATH_DEPTH) -> list[str]:
    """Return which parts of a value differ, as paths of names; none where it is the same."""
    if before is after:
        return []
    old, new = _members(before), _members(after)
    if not depth or old is None or new is None:
        return [] if plain(before) == plain(after) else [name]
    found: list[str] = []
    differing = [key for key in {**old, **new} if old.get(key) is not new.get(key)]
    for key in sorted(differing, key=str):
        found += _paths(f"{name}.{key}", old.get(key), new.get(key), depth - 1)
    return found


def _members(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, BaseModel):
        return model_dict(value)
    return value if isinstance(value, Mapping) else None


def _words(
    chain: Chain, accepted: Accepted | None, error: BaseException | None
) -> tuple[str, str, str]:
    """Return code, reason and description of a denial or a failure, in types of the host's own."""
    violation = None if accepted is None or not accepted.denied else accepted.violation
    if issubclass(type(error), PluginViolationError):
        assert isinstance(error, PluginViolationError)  # the host's own
        violation = error.violation
    if violation is not None:
        return (
            shorten(violation.code),
            shorten(violation.reason),
            shorten(violation.description),
        )
    last = chain.completed[-1] if chain.completed else None
    canceled = issubclass(type(error), asyncio.CancelledError)  # which leaves no record
    if error is None or canceled or not isinstance(last, ControlExecutionRecord):
        return "", "", ""
    return last.error_code or "", last.reason or "", ""


def _outcome(step: Step, accepted: Accepted | None, error: BaseException | None) -> str:
    # By its class: what an object says of its class may be code of the plugin.
    if issubclass(type(error), asyncio.CancelledError):
        return "canceled"
    if issubclass(type(error), PluginViolationError):
        return "denied"
    if error is not None:
        return type_name(error)
    if accepted is None or not accepted.denied:
        return "allowed"
    return "denied" if step.may_deny else "denied (suppressed)"
