"""Work on a project: services for issues, todos, workflows and interactions, and their tools."""

from kaged.toolbox.project.interactions import InteractionService
from kaged.toolbox.project.issues import IssueService
from kaged.toolbox.project.person_uploads import PersonUploads
from kaged.toolbox.project.todos import TodoService
from kaged.toolbox.project.toolset import ProjectWork, project_tools
from kaged.toolbox.project.workflows import WorkflowRunner, WorkflowService, WorkflowSource

__all__ = [
    "InteractionService",
    "IssueService",
    "PersonUploads",
    "ProjectWork",
    "TodoService",
    "WorkflowRunner",
    "WorkflowService",
    "WorkflowSource",
    "project_tools",
]
