"""`ProjectWork`: the services together; `project_tools`: the tools that use them."""

from __future__ import annotations

from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.project.interaction_tools import interaction_tools
from kaged.toolbox.project.interactions import InteractionService
from kaged.toolbox.project.issue_tool import issue_tool
from kaged.toolbox.project.issues import IssueService
from kaged.toolbox.project.person_uploads import PersonUploads
from kaged.toolbox.project.todo_tool import todo_tool
from kaged.toolbox.project.todos import TodoService
from kaged.toolbox.project.upload_tool import upload_tool
from kaged.toolbox.project.workflow_tools import workflow_tools
from kaged.toolbox.project.workflows import WorkflowService
from kaged.tools import Tool


@dataclass(frozen=True, slots=True)
class ProjectWork:
    """What is worked on in projects: used by the root agent's tools, HTTP and commands alike."""

    issues: IssueService
    todos: TodoService
    workflows: WorkflowService
    interactions: InteractionService
    uploads: PersonUploads


def project_tools(work: ProjectWork) -> tuple[Tool, ...]:
    """Make `kaged.issue`, `.todo`, `.workflow.*`, `.ask`, `.form`, `.checkpoint`, `.upload`."""
    return (
        issue_tool(work.issues),
        todo_tool(work.todos),
        *workflow_tools(work.workflows),
        *interaction_tools(work.interactions),
        upload_tool(work.uploads),
    )
