"""`widening`: which things of a project's ask go beyond an ask that somebody agreed to.

Sound rather than complete: what is not seen to be narrower counts as wider and is asked for again.
Values are compared thing by thing; they were agreed to together, so any part of them is less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from kaged.base import JsonValue
from kaged.config.project_ask import RULES
from kaged.config.toolrules import ToolRule
from kaged.kernel.ask import Ask, AskedThing
from kaged.kernel.mounts import Mount, MountTable, has_magic
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.policy import CageLimits, CageState, FsMode, SeccompProfile

_RANK: Final = {None: 0, FsMode.RO: 1, FsMode.RW: 2}
_UNLIMITED_AT_ZERO: Final = "walltime_sec"


def widening(agreed: Ask, asked: Ask) -> tuple[AskedThing, ...]:
    """Return what is asked for and not agreed to; nothing when the new ask is no wider. Pure."""
    known = agreed.by_key
    return tuple(one for one in asked.things if not _agreed(known, one))


def _agreed(known: Mapping[str, AskedThing], asked: AskedThing) -> bool:
    about, _, what = asked.key.partition(": ")
    kind = what.partition(" ")[0]
    if kind in ("net", "grant", "toolchain"):
        cage = known.get(f"{about}: cage")
        if cage is not None and cage.value is None:
            return True  # no cage at all was agreed to
    if kind == "net":
        return any(
            _target(one.value).covers(_target(asked.value))
            for key, one in known.items()
            if key.startswith(f"{about}: net ")
        )
    before = known.get(asked.key)
    if before is None:
        return False
    within = _WITHIN.get(kind)
    if before.value == asked.value or within is None:
        return before.value == asked.value
    return within(before.value, asked.value)


def _target(value: JsonValue) -> NetTarget:
    return parse_target(str(value))


# -- cages -----------------------------------------------------------------------------------------


def _cage_within(old: Any, new: Any) -> bool:
    if old is None:
        return True
    if new is None:
        return False
    return (
        _fs_within(old["fs"], new["fs"])
        and not (new["state"] == CageState.PERSISTENT and old["state"] != CageState.PERSISTENT)
        and not (new["seccomp"] == SeccompProfile.RELAXED and old["seccomp"] != new["seccomp"])
        and _fields_within(old["env"], new["env"])
        and _limits_within(old["limits"], new["limits"])
    )


def _fs_within(old: Sequence[Sequence[str]], new: Sequence[Sequence[str]]) -> bool:
    had, have = _modes(old), _modes(new)
    if any(has_magic(path) for path in (*had, *have)):
        # A pattern can match anything that appears later: only entries that are the same tell. A
        # read-only entry may hold back a wider one around it, so none of those may be missing.
        kept = all(path in have for path, mode in had.items() if mode is FsMode.RO)
        return kept and all(_RANK[mode] <= _RANK[had.get(path)] for path, mode in have.items())
    before, after = _table(had), _table(have)
    # Modes only change at the entries of either list, so looking there looks everywhere.
    return all(
        _RANK[after.mode_at(_place(path))] <= _RANK[before.mode_at(_place(path))]
        for path in (*had, *have)
    )


def _modes(entries: Sequence[Sequence[str]]) -> dict[str, FsMode]:
    return {path: FsMode(mode) for mode, path in entries}


def _table(modes: Mapping[str, FsMode]) -> MountTable:
    return MountTable(Mount(_place(path), mode) for path, mode in modes.items())


def _place(path: str) -> str:
    return "/" if path == "." else f"/{path}"


def _limits_within(old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    # What a file leaves out is the operator's default, whatever that is: it compares with itself
    # only by kaged's own, which is what a project file can know.
    base = CageLimits()
    for name in (item.name for item in fields(base)):
        usual = getattr(base, name)
        before, after = old.get(name, usual), new.get(name, usual)
        if name == _UNLIMITED_AT_ZERO:
            before, after = before or float("inf"), after or float("inf")
        if after > before:
            return False
    return True


# -- tools -----------------------------------------------------------------------------------------


def _tools_within(old: Any, new: Any) -> bool:
    """Return whether the new tools are no more: none that was off, and dry runs stay dry."""
    was_dry, is_dry = isinstance(old, Mapping), isinstance(new, Mapping)
    if was_dry and not is_dry:
        return False
    return _rules_within(old[RULES] if was_dry else old, new[RULES] if is_dry else new)


def _rules_within(old: Sequence[tuple[str, bool]], new: Sequence[tuple[str, bool]]) -> bool:
    """Return whether every tool that the new rules leave on was on by the old ones."""
    before = [ToolRule(pattern, enabled, 0) for pattern, enabled in old]
    after = [ToolRule(pattern, enabled, 0) for pattern, enabled in new]
    was = {rule.pattern: rule.enabled for rule in before}
    now = {rule.pattern: rule.enabled for rule in after}
    # Of equally specific rules the last decides, so those in both lists must keep their order.
    if [one for one in was if one in now] != [one for one in now if one in was]:
        return False
    if any(not was[pattern] and now.get(pattern, True) for pattern in was):
        return False  # something that was switched off no longer is
    return all(_had(before, rule) for rule in after if rule.enabled)


def _had(before: Sequence[ToolRule], rule: ToolRule) -> bool:
    if any(one.enabled and one.pattern == rule.pattern for one in before):
        return True
    # With anything switched off before, a new name could be another name of just that.
    return all(one.enabled for one in before) and any(
        one.matches(rule.pattern) if rule.exact else _covers(one.pattern, rule.pattern)
        for one in before
    )


def _covers(wide: str, narrow: str) -> bool:
    """Return whether a glob whose only star is its last character matches all that another does."""
    head, star, rest = wide.partition("*")
    return bool(star) and not rest and narrow.partition("*")[0].startswith(head)


# -- plugins and jobs --------------------------------------------------------------------------


def _plugin_within(old: Any, new: Any) -> bool:
    had, have = old["hooks"], new["hooks"]
    if {**old, "hooks": None} != {**new, "hooks": None}:
        return False
    return had is None or (have is not None and set(have) <= set(had))


def _fields_within(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    return all(old.get(name) == value for name, value in new.items())


def _workflow_within(old: Any, new: Any) -> bool:
    return (
        old["digest"] == new["digest"]
        and set(new["by"]) <= set(old["by"])
        and new["seconds"] <= old["seconds"]
    )


def _steps_within(old: Any, new: Any) -> bool:
    return bool(new <= old)


_WITHIN: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "cage": _cage_within,
    "tools": _tools_within,
    "steps": _steps_within,
    "plugin": _plugin_within,
    "workflow": _workflow_within,
}
"""How values of a kind compare; of every other kind only the same value is no wider."""
