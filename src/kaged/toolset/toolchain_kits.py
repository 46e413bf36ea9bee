"""`with_toolchains`: the toolchains that an agent's cage names, in its commands' cages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kaged.cage import CageSettings
from kaged.cage.toolchains.finding import ToolchainFinder
from kaged.cage.toolchains.kit import ToolchainKits
from kaged.kernel.policy import CagePolicy
from kaged.toolbox.shell.launch import Attach, Attachment, ShellCommand


def with_toolchains(settings: CageSettings, environ: Mapping[str, str], attach: Attach) -> Attach:
    """Return what gives a caged command its toolchains, beside what it gets.

    They are looked for in the home that `environ` names, each time.
    """
    finder = ToolchainFinder(environ, (*settings.protected, str(settings.cache_dir)))
    kits = ToolchainKits(finder, settings.cache_dir)

    def both(policy: CagePolicy, command: ShellCommand) -> Attachment:
        added = attach(policy, command)
        if not policy.toolchains:
            return added
        kit = kits.kit(policy, command.project_id)
        return replace(
            added,
            mounts=(*added.mounts, *kit.mounts),
            first_dirs=(*kit.bins, *added.first_dirs),
            usual_env=(*added.usual_env, *kit.env),
        )

    return both
