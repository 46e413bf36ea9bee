"""The states of issues, and who may use which tool of a project's work."""

from __future__ import annotations

from typing import Any, cast

from kaged.config.toolrules import ROOT_ONLY_TOOLS
from kaged.toolbox.project import ProjectWork, project_tools
from kaged.toolbox.project.issue_states import FINAL, MOVES, OPEN_STATUSES, IssueStatus
from requirements import requirement


@requirement("AT-SESS-12")
def test_issues_have_seven_states_of_which_two_are_the_end() -> None:
    assert [status.value for status in IssueStatus] == [
        "open", "triaged", "assigned", "in_progress", "resolved", "rejected", "reopened",
    ]  # fmt: skip
    assert frozenset({IssueStatus.RESOLVED, IssueStatus.REJECTED}) == FINAL
    assert set(IssueStatus) == OPEN_STATUSES | FINAL
    # Nothing leads back to the state that a new issue has.
    assert all(IssueStatus.OPEN not in targets for targets in MOVES.values())


@requirement("AT-SCOPE-01")
def test_all_of_them_but_checkpoints_and_uploads_are_for_the_root_agent() -> None:
    nothing = cast("Any", None)
    tools = project_tools(ProjectWork(nothing, nothing, nothing, nothing, nothing))
    scopes = {tool.definition.name: tool.definition.principal_scope for tool in tools}
    aliases = {alias for tool in tools for alias in tool.aliases}
    assert scopes.pop("kaged.checkpoint") is None
    assert scopes.pop("kaged.upload") is None
    assert set(scopes.values()) == {"root-only"}
    assert set(scopes) | aliases == set(ROOT_ONLY_TOOLS)
    assert set(scopes) == {
        "kaged.issue", "kaged.todo", "kaged.ask", "kaged.form", "kaged.workflow.list",
        "kaged.workflow.trigger", "kaged.workflow.status",
    }  # fmt: skip
    assert all(tool.definition.requires == () for tool in tools)
