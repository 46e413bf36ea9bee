"""`missing_toolchains`: what a project's agents ask for and this host does not have."""

from __future__ import annotations

from collections.abc import Mapping

from kaged.cage.toolchains.finding import ToolchainFinder
from kaged.config.cageblock import CageBlock
from kaged.config.locations import Locations
from kaged.config.problems import Problem, Severity
from kaged.config.project import Project, agent_specs


def missing_toolchains(project: Project, environ: Mapping[str, str]) -> list[Problem]:
    """Return a warning for each toolchain of an agent that nobody has installed here.

    The files are right all the same: another machine may have it.
    """
    places = Locations.from_env(environ)
    own = (places.home, places.config_dir, places.state_dir, places.runtime_dir, places.cache_dir)
    finder = ToolchainFinder(environ, tuple(map(str, own)))
    found: list[Problem] = []
    for path, spec in agent_specs(project.primary):
        names = spec.cage.toolchains if isinstance(spec.cage, CageBlock) else ()
        found += [
            Problem(
                str(project.file),
                None,
                None,
                ".".join((*map(str, path), "cage", "toolchains")),
                f"this host has no toolchain {name}",
                "install it, or take it out of the list",
                Severity.WARNING,
                "toolchain_missing",
            )
            for name in names
            if not finder.find(name).present
        ]
    return found
