"""Work on a project: `IssueDesk`, `TodoDesk`, `WorkflowDesk`, `InteractionDesk` and their tools."""

from kaged.toolbox.project.interactions import InteractionDesk
from kaged.toolbox.project.issues import IssueDesk
from kaged.toolbox.project.todos import TodoDesk
from kaged.toolbox.project.toolset import ProjectWork, project_tools
from kaged.toolbox.project.workflows import WorkflowDesk, WorkflowRunner, WorkflowSource

__all__ = [
    "InteractionDesk",
    "IssueDesk",
    "ProjectWork",
    "TodoDesk",
    "WorkflowDesk",
    "WorkflowRunner",
    "WorkflowSource",
    "project_tools",
]
