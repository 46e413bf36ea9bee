"""`LoadedProject`: a project in force; `ProjectView`: as others see it; and the errors of both."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kaged.base import JsonObject, JsonValue, KagedError, iso_utc
from kaged.base.lazy_dataclass import dataclass
from kaged.config.agents import AgentTree
from kaged.config.describe import describe
from kaged.config.problems import Problem
from kaged.config.project import Project
from kaged.config.reading import Loaded
from kaged.kernel.ask import Ask
from kaged.kernel.identity import Actor
from kaged.projects.agreement import Standing
from kaged.projects.readiness import ReadinessView
from kaged.store import ProjectRecord


@dataclass(frozen=True, slots=True)
class ProjectView:
    """One loaded project as others see it. `tree` and `ask` are None when its files have errors.

    `root` is None, and so is `ask`, in what people see.
    `trusted`: what its files say is in force. Otherwise it is restricted to reading.
    """

    id: str
    slug: str
    name: str
    root: str | None
    trusted: bool
    state: Literal["loaded", "pending", "failed"]
    loaded_at: str
    agents: int
    problems: tuple[Problem, ...]
    tree: JsonObject | None
    ask: JsonObject | None
    readiness: ReadinessView

    def seen_by(self, who: Actor) -> ProjectView:
        """Return what somebody may see of it: people no folder of the machine, and no settings.

        Errors of its files name files and lines, what they ask for names all that agents may reach.
        """
        if not who.is_person:
            return self
        tree = self.tree
        if tree is not None:
            tree = {"name": self.name, "agents": _agents(tree.get("agents"))}
        return replace(self, root=None, problems=(), tree=tree, ask=None)


def _agents(value: JsonValue) -> list[JsonValue]:
    """Return who an agent tree names, without models, cages, prompts and where these stand."""
    listed = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    return [
        {
            "path": one.get("path"),
            "description": one.get("description"),
            "children": _agents(one.get("children")),
        }
        for one in listed
    ]


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """A project's files as they were read, and what they ask for."""

    project: Loaded[Project]
    ask: Ask


@dataclass(frozen=True, slots=True)
class LoadedProject:
    """One project in force. `tree` is None when its files had errors at the start.

    `files` are its files as they were read, `standing` what they ask for.
    """

    record: ProjectRecord
    tree: AgentTree | None
    problems: tuple[Problem, ...]
    files: ProjectFiles | None = None
    standing: Standing | None = None

    @property
    def trusted(self) -> bool:
        """Whether what its files say is in force."""
        return self.standing is not None and not self.standing.restricted

    def view(self, readiness: ReadinessView, *, pending: bool = False) -> ProjectView:
        """Return it as others see it."""
        return ProjectView(
            id=self.record.id,
            slug=self.record.slug,
            name=self.record.name,
            root=self.record.root,
            trusted=self.trusted,
            state="failed" if self.tree is None else "pending" if pending else "loaded",
            loaded_at=iso_utc(self.record.loaded_at_ms or 0),
            agents=0 if self.tree is None else len(self.tree.agents),
            problems=self.problems,
            tree=None if self.tree is None else describe(self.tree),
            ask=None if self.standing is None else self.standing.as_json(self.record),
            readiness=readiness,
        )


def real_root(root: str) -> str:
    """Return a project's folder with every link resolved. Blocks on the disk.

    Raises:
        KagedError: `project_root_invalid`; the path is not absolute, or no folder.
    """
    if not root.startswith("/") or "\0" in root:
        raise KagedError(
            f"{root[:200]!r} is not an absolute path.",
            code="project_root_invalid",
            fix="Name the project's folder in full.",
        )
    try:
        real = os.path.realpath(root, strict=True)
    except OSError as error:
        raise KagedError(
            f"{root[:200]} cannot be opened: {error.strerror}.",
            code="project_root_invalid",
            fix="Name the project's folder.",
        ) from error
    if not Path(real).is_dir():
        raise KagedError(
            f"{root[:200]} is not a folder.",
            code="project_root_invalid",
            fix="Name the project's folder.",
        )
    return real


def no_usable_project(where: str) -> KagedError:
    """Return the error for a project, by id or `in <folder>`, that is not loaded as it should."""
    return KagedError(
        f"No usable project {where} is loaded.",
        code="project_not_found",
        fix="`kaged project list` shows the loaded ones.",
    )


def project_not_found(project_id: str) -> KagedError:
    """Return the error for a project that is not loaded."""
    return KagedError(
        f"No project {project_id} is loaded.",
        code="project_not_found",
        fix="`kaged project list` shows the loaded ones; `kaged project load` loads one.",
    )
