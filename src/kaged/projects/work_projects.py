"""`WorkProjects`: what the work in projects needs to know of them."""

from __future__ import annotations

from collections.abc import Mapping

from kaged.base import KagedError
from kaged.config.agents import AgentTree
from kaged.config.workflows import Workflow


class WorkProjects:
    """The loaded projects, as far as their work needs them."""

    def __init__(self) -> None:
        self._trees: dict[str, AgentTree] = {}

    def project_loaded(self, project_id: str, tree: AgentTree) -> None:
        """Take note of a project, or of its files read anew."""
        self._trees[project_id] = tree

    def project_unloaded(self, project_id: str) -> None:
        """Forget a project."""
        self._trees.pop(project_id, None)

    def workflows(self, project_id: str) -> Mapping[str, Workflow]:
        """Return the workflows that a project declares; none while its files cannot be used."""
        tree = self._trees.get(project_id)
        return {} if tree is None else tree.project.workflows

    def root(self, project_id: str) -> str:
        """Return the folder of a project. Raises `project_not_found`."""
        tree = self._trees.get(project_id)
        if tree is None:
            raise KagedError(
                f"The files of project {project_id} cannot be used.",
                code="project_not_found",
                fix="`kaged project check` shows what is wrong with them",
            )
        return str(tree.project.root)
