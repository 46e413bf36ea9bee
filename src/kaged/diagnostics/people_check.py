"""`people_row`: doctor's row about `[people]`: who is named, and which of their projects exist."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kaged.base.checks import CheckRow, CheckStatus
from kaged.config.daemonconfig import DaemonConfig
from kaged.config.problems import format_key_path
from kaged.config.reading import Loaded
from kaged.kernel.identity import EVERYBODY_ELSE

WHAT: Final = "The people and teams of [people] and [teams], and the projects they may use."
_NAMED: Final = 5


def people_row(config: Loaded[DaemonConfig], known: Collection[str]) -> CheckRow:
    """Return the row; `known` holds the ids and slugs of all projects."""
    people, teams = config.value.people, config.value.teams
    listed = [(("people", name), one.projects or ()) for name, one in people.items()]
    listed += [(("teams", name), one.projects) for name, one in teams.items()]
    unknown = [
        f"{_place(config, where)}: {project!r} is no project"
        for where, projects in listed
        for project in projects
        if project not in known
    ]
    if unknown:
        left_out = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        return CheckRow(
            "people",
            CheckStatus.WARN,
            WHAT,
            "; ".join(unknown[:_NAMED]) + left_out,
            "Write ids or slugs of `kaged project list`; what is not there opens nothing.",
        )
    if not people:
        return CheckRow("people", CheckStatus.OK, WHAT, "nobody is named, so nobody is limited")
    others = "held to *" if EVERYBODY_ELSE in people else "refused"
    count = len(people) - (EVERYBODY_ELSE in people)
    return CheckRow("people", CheckStatus.OK, WHAT, f"{count} named, everybody else {others}")


def _place(config: Loaded[DaemonConfig], where: tuple[str, str]) -> str:
    """Return where the list of projects of a person or team stands."""
    path = format_key_path((*where, "projects"))
    origin = config.provenance.get(path)
    return path if origin is None else f"{origin}: {path}"
