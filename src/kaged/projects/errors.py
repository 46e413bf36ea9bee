"""What goes wrong with projects."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class ProjectNotFound(KagedError):
    """No project of that id is loaded."""

    code: ClassVar[str] = "project_not_found"


class ProjectRootRefused(KagedError):
    """The path cannot be a project's root."""

    code: ClassVar[str] = "project_root_invalid"


class TooManyProjects(KagedError):
    """The daemon holds as many projects as it can."""

    code: ClassVar[str] = "too_many_projects"
