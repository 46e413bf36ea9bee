"""`CageView`: one agent's, plugin's or file's cage, to be explained or tried out. No daemon needed.

What is read is what the daemon reads: the project's files, the plugin store, the operator's two
files. A project whose files nobody agreed to is restricted here as its agents are. A plugin's
`project:` entries are resolved for the project that one looks from.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageKind, CageRequest
from kaged.cage.configured import cage_settings, plugin_limits
from kaged.cage.protected.digest import digest_path
from kaged.cage.toolchains.finding import ToolchainFinder
from kaged.cage.toolchains.kit import ToolchainKits
from kaged.config import AgentTree
from kaged.config.agent_limits import agent_defaults
from kaged.config.cageblock import CageBlock, CageShape
from kaged.config.files import read_text
from kaged.config.project import PROJECT_FILE
from kaged.config.projectpaths import KAGED_DIR
from kaged.config.reading import INVALID, Reading
from kaged.config.settings import Settings
from kaged.config.toolsettings import ReviewWord
from kaged.config.yamldoc import parse_yaml
from kaged.credentials.cage_kit import decide_for_cage
from kaged.kernel.credential_grants import AgentCage
from kaged.kernel.describe import (
    UNCAGED,
    AskedCapability,
    Sentence,
    ask_lines,
    describe_ask,
    describe_credential,
    describe_found_toolchain,
    describe_missing_credential,
    describe_policy,
    describe_protected,
)
from kaged.kernel.policy import CageLimits, CagePolicy, FsMode
from kaged.plugins.declarations import declarations_of
from kaged.plugins.environment import cage_request, plugin_policy
from kaged.plugins.errors import PluginNotFound
from kaged.plugins.installed import InstalledPlugin
from kaged.plugins.storereader import StoreReader
from kaged.plugins.storesteps import StoreSteps
from kaged.projects.in_force import agents_in_folder
from kaged.store import ProjectRecord

SHELL = ("/bin/sh",)
HERE = "here"
TRUST = "`kaged project trust`"


class CagedAgentNotFound(KagedError):
    """The project has no agent at that path."""

    code = "agent_not_found"


class CageOwner(StrEnum):
    """Whose cage it is."""

    AGENT = "agent"
    PLUGIN = "plugin"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class CageView:
    """One cage to look at. `policy` is None for an agent without a cage.

    `restricted`: it is not the one of the project's files, because nobody agreed to what they ask.
    """

    owner: CageOwner
    name: str
    policy: CagePolicy | None
    plugin: InstalledPlugin | None = None
    version: str = ""
    project: str | None = None
    used_here: bool = True
    capabilities: tuple[AskedCapability, ...] = ()
    protected: tuple[Sentence, ...] = ()
    restricted: bool = False
    credentials: tuple[Sentence, ...] = ()

    @property
    def allows(self) -> tuple[Sentence, ...]:
        """What it may do and what not, in sentences."""
        if self.policy is None:
            return (UNCAGED,)
        said = describe_policy(self.policy, plugin=self.owner is CageOwner.PLUGIN)
        return (*said, *self.protected, *self.credentials)

    def as_json(self) -> JsonObject:
        """Return it for programs."""
        found: JsonObject = {
            "kind": self.owner.value,
            "name": self.name,
            "caged": self.policy is not None,
            "project": self.project,
            "allows": [one.as_json() for one in self.allows],
        }
        if self.owner is CageOwner.AGENT:
            found["restricted"] = self.restricted
        if self.owner is CageOwner.PLUGIN:
            found["version"] = self.version
            found["used_by_project"] = self.used_here
            found["capabilities"] = [one.as_json() for one in self.capabilities]
        return found

    def lines(self) -> Iterator[str]:
        """Yield it for people."""
        yield f"● {self.owner} {self.name} {self.version}".rstrip()
        if self.restricted:
            yield f"  restricted until you agree to what {self.project} asks for: {TRUST}"
        if self.owner is CageOwner.PLUGIN:
            yield from ask_lines(self.capabilities)
            yield f"  its cage{'' if self.project is None else f', seen from {self.project}'}:"
            if not self.used_here:
                yield "    (this project does not use it, and so shows it nothing)"
        for one in self.allows:
            yield from one.lines(" " * 4, " " * 8)


class CageViews:
    """Finds cages by name: the agents of the project at `root`, and the installed plugins.

    `record` is what is on record of that project; without one nobody agreed to what it asks for.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        root: Path,
        record: ProjectRecord | None,
    ) -> None:
        self._settings = settings
        self._root = Path(os.path.realpath(root))
        self._record = record
        caging = cage_settings(settings)
        finder = ToolchainFinder(environ, (*caging.protected, str(caging.cache_dir)))
        self._kits = ToolchainKits(finder, caging.cache_dir)
        places, daemon = settings.places, settings.daemon.value
        directory = daemon.plugins.dir or places.plugins_dir
        self._store = StoreReader(
            StoreSteps(directory, places.plugin_data_dir, places.local_toml, places.config_toml),
            local_toml=places.local_toml,
            environ=environ,
            limits=lambda name: plugin_limits(settings, name),
        )

    def agents(self) -> list[CageView]:
        """Return every agent of the project. Raises ConfigInvalid."""
        tree = self._tree()
        return [self._agent(tree, str(one.path)) for one in tree]

    def find(self, name: str, owner: CageOwner | None = None) -> CageView:
        """Return the one cage of that name.

        Raises:
            KagedError: `cage_ambiguous`; an agent and a plugin are called so, and `owner` does not
                say which.
            KagedError: `cage_not_found`; nobody is called so; CagedAgentNotFound or PluginNotFound
                when `owner` is
            said. `plugin_store_failed`: it is a plugin that cannot be used as it lies there.
            ConfigInvalid: the project's or the operator's files have errors.
        """
        if owner is CageOwner.AGENT:
            return self._agent(self._tree(), name)
        if owner is CageOwner.PLUGIN:
            return self._plugin(name)
        found = [view for view in (self._maybe_agent(name), self._maybe_plugin(name)) if view]
        if len(found) > 1:
            raise KagedError(
                f"{name} is an agent of {self._root} and an installed plugin.",
                code="cage_ambiguous",
                fix="Say which one: --kind agent or --kind plugin.",
            )
        if not found:
            raise KagedError(
                f"Neither an agent of {self._root} nor an installed plugin is called {name!r}.",
                code="cage_not_found",
                fix="`kaged project show` lists the agents, `kaged plugin list` the plugins.",
            )
        return found[0]

    def file(self, path: Path) -> CageView:
        """Return the cage that a file describes, as a project's `cage:` does. Raises ConfigInvalid.

        Its paths are relative to the project's root.
        """
        text = read_text(path).text
        reading = Reading(str(path), root=self._root)
        parsed = parse_yaml(text, str(path))
        reading.add(parsed.problems)
        block = INVALID if parsed.node is None else CageShape().read(parsed.node, reading.top)
        loaded = reading.finish(block).value
        policy = loaded.policy(self._root, self.limits()) if isinstance(loaded, CageBlock) else None
        return self._view(CageOwner.POLICY, str(path), policy)

    def of(self, policy: CagePolicy) -> CageView:
        """Return the cage of a policy that was made of a command's options."""
        return self._view(CageOwner.POLICY, "these options", policy)

    def shell(self, view: CageView, program: tuple[str, ...] = SHELL) -> CageRequest:
        """Return the request for a shell, or another program, in a cage of this view.

        Raises:
            KagedError: `agent_uncaged`; there is no cage to go into.
        """
        if view.policy is None:
            raise KagedError(
                f"{view.name} {UNCAGED.words}.",
                code="agent_uncaged",
                fix="Give it a `cage:` block in .kaged/project.yaml, or name a caged agent.",
            )
        if view.plugin is None:
            root = str(self._root)
            agent = CageRequest("cage-shell", view.policy, program, kind=CageKind.AGENT, cwd=root)
            return self._kits.added_to(agent)
        sandbox = self._settings.daemon.value.sandbox
        asked = cage_request(
            view.plugin,
            projects=self._projects(view.plugin),
            log_level=self._settings.daemon.value.logging.level.value,
            runtimes=sandbox.runtimes,
        )
        return replace(asked, name="cage-shell", command=program)

    # -- agents --------------------------------------------------------------------------------

    def _tree(self) -> AgentTree:
        return agents_in_folder(str(self._root), self._settings, self._record)

    def _has_project(self) -> bool:
        return (self._root / KAGED_DIR / PROJECT_FILE).exists()

    def _agent(self, tree: AgentTree, path: str) -> CageView:
        try:
            agent = tree[path]
        except KeyError:
            known = ", ".join(str(one.path) for one in tree)
            raise CagedAgentNotFound(
                f"The project has no agent {path!r}.", fix=f"Take one of {known}."
            ) from None
        view = self._view(CageOwner.AGENT, path, agent.cage.value)
        said = (
            *self._toolchains(agent.cage.value),
            *self._credentials(path, agent.cage.value),
        )
        return replace(view, restricted=tree.restricted, credentials=said)

    def _toolchains(self, policy: CagePolicy | None) -> tuple[Sentence, ...]:
        """Return what of its toolchains an agent's commands see, and which are not there."""
        found = () if policy is None else self._kits.found(policy)
        return tuple(
            describe_found_toolchain(
                one.name, (posixpath.dirname(path) for path in one.bins), present=one.present
            )
            for one in found
        )

    def _credentials(self, path: str, policy: CagePolicy | None) -> tuple[Sentence, ...]:
        """Return which credentials an agent's commands have, and why others are not there."""
        if policy is None:
            return ()
        names = {str(self._root)}
        if self._record is not None:
            names |= {self._record.id, self._record.slug}
        found: list[Sentence] = []
        for name in policy.credentials:
            user = AgentCage(frozenset(names), path)
            decision, section = decide_for_cage(self._settings, name, user, for_whom=False)
            if section is None:
                found.append(describe_missing_credential(name, decision))
                continue
            shown, grant = section.shown, section.granted.grant()
            said = (section.binding(name), shown.env, map(str, shown.files))
            found += describe_credential(*said, people=grant.people, skills=grant.skills)
        return tuple(found)

    def _maybe_agent(self, name: str) -> CageView | None:
        if not self._has_project():
            return None
        try:
            return self._agent(self._tree(), name)
        except CagedAgentNotFound:
            return None

    def _view(self, owner: CageOwner, name: str, policy: CagePolicy | None) -> CageView:
        protected = self._protected(policy)
        return CageView(owner, name, policy, project=str(self._root), protected=protected)

    def _protected(self, policy: CagePolicy | None) -> tuple[Sentence, ...]:
        """Return what a cage that can write is kept from all the same, and where it is not."""
        if policy is None or not any(one.mode is FsMode.RW for one in policy.fs):
            return ()
        tools = self._settings.daemon.value.tools
        allowed = [
            (one.path, digest_path(Path(one.project, one.path)))
            for one in tools.allow_protected
            if one.project.rstrip("/") == str(self._root)
        ]
        return describe_protected(
            allowed, refuse_reviewed=tools.reviewed_files is ReviewWord.REFUSE
        )

    def limits(self) -> CageLimits:
        """Return the limits of an agent's cage that says nothing of them."""
        return self._settings.daemon.value.sandbox.agent_limits.over(agent_defaults().limits)

    # -- plugins -------------------------------------------------------------------------------

    def _plugin(self, name: str) -> CageView:
        plugin = self._store.get(name)
        here = self._has_project()
        projects = self._projects(plugin)
        return CageView(
            CageOwner.PLUGIN,
            name,
            plugin_policy(plugin, projects),
            plugin,
            version=plugin.version,
            project=str(self._root) if here else None,
            used_here=bool(projects) or not here,
            capabilities=describe_ask(plugin.manifest.capabilities, plugin.grants),
            protected=self._protected(plugin_policy(plugin, projects)),
        )

    def _maybe_plugin(self, name: str) -> CageView | None:
        try:
            return self._plugin(name)
        except PluginNotFound:
            return None

    def _projects(self, plugin: InstalledPlugin) -> dict[str, Path]:
        """Return the project that one looks from, if it uses the plugin."""
        if not self._has_project():
            return {}
        declared = declarations_of(HERE, self._tree())
        used = any(one.plugin_name == plugin.name for _, one in declared)
        return {HERE: self._root} if used else {}
