"""The ports: what the routes ask of each part of the daemon, as protocols that `app` fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kaged.base import JsonObject, JsonValue
from kaged.kernel.identity import Actor
from kaged.projects.service import ProjectView


class ProjectPort(Protocol):
    """The projects that the daemon holds. Each change is recorded on behalf of `who`."""

    async def load(self, root: str, who: Actor) -> ProjectView:
        """Read a project and keep it."""
        ...

    async def reload(self, project_id: str, who: Actor) -> ProjectView:
        """Read a project's files again."""
        ...

    async def get(self, project_id: str) -> ProjectView:
        """Return one project."""
        ...

    async def page(
        self, cursor: str | None, limit: int
    ) -> tuple[Sequence[ProjectView], str | None]:
        """Return a page of projects and the cursor of the next."""
        ...

    async def set_trusted(self, project_id: str, trusted: bool, who: Actor) -> ProjectView:
        """Trust a project, or stop."""
        ...

    async def unload(self, project_id: str, who: Actor) -> None:
        """Let go of a project."""
        ...


class PluginPort(Protocol):
    """The plugins of this daemon. Each change is recorded on behalf of `who`."""

    async def ready(self) -> None:
        """Wait until it is known what is installed; nothing else is asked before."""
        ...

    def list(self) -> Sequence[JsonObject]:
        """Describe every installed plugin, also those that are disabled for this run."""
        ...

    def get(self, name: str) -> JsonObject:
        """Describe one plugin. Raises PluginNotFound."""
        ...

    def logs(self, name: str) -> Sequence[str]:
        """Return the last lines of its standard error."""
        ...

    def knobs(self, name: str) -> JsonObject:
        """Return its knobs as the manifest declares them."""
        ...

    def knob_values(self, name: str, project_id: str, agent_path: str) -> JsonObject:
        """Return its knobs with the values in force for one agent of a loaded project."""
        ...

    def compaction_knobs(self, project_id: str, agent_path: str) -> list[JsonObject]:
        """Return the knobs of an agent's observers and compactors, each with its plugin."""
        ...

    async def write_knob(
        self,
        name: str,
        project_id: str,
        agent_path: str,
        knob: str,
        value: JsonValue,
        who: Actor,
    ) -> JsonObject:
        """Write a knob into the project file and hand the new config to the plugin."""
        ...

    async def consents(self, project_id: str | None) -> Sequence[JsonObject]:
        """Return the questions that wait for the operator, and those answered with no."""
        ...

    async def answer_consent(
        self,
        consent_id: str,
        *,
        allowed: bool,
        digest: str | None,
        path: str | None,
        who: Actor,
    ) -> JsonObject:
        """Take the operator's answer; return the next question, if there is one."""
        ...

    async def preview(self, path: str) -> JsonObject:
        """Return what the operator is shown before an install or upgrade."""
        ...

    async def install(self, path: str, digest: str, who: Actor) -> JsonObject:
        """Install or upgrade exactly the files whose digest the operator agreed to."""
        ...

    async def preview_changed_files(self, name: str) -> JsonObject:
        """Return what the operator is shown before agreeing to changed files of a plugin."""
        ...

    async def renew(self, name: str, digest: str, who: Actor) -> JsonObject:
        """Approve an installed plugin's files as they are now."""
        ...

    async def export(self, name: str, path: str, who: Actor) -> JsonObject:
        """Write a plugin's tables into a new file of SQL."""
        ...

    async def uninstall(self, name: str, *, force: bool, who: Actor) -> JsonObject:
        """Remove a plugin with its files, tables and entries."""
        ...

    async def enable(self, name: str, who: Actor) -> JsonObject:
        """Enable and start a plugin."""
        ...

    async def disable(self, name: str, who: Actor) -> JsonObject:
        """Stop and disable a plugin."""
        ...

    async def restart(self, name: str, who: Actor) -> JsonObject:
        """Stop and start a plugin."""
        ...

    async def reload(self, name: str, who: Actor) -> JsonObject:
        """Read a running plugin's files again and switch to them without a gap."""
        ...

    async def call(
        self,
        name: str,
        method: str,
        params: JsonObject,
        who: Actor,
        *,
        session_id: str | None = None,
    ) -> JsonValue:
        """Call a method of a plugin as the daemon itself, or out of a session."""
        ...


class ToolPort(Protocol):
    """The dispatcher: tools of agents of loaded projects, and calls as these agents."""

    def list(self, project_id: str, agent: str) -> JsonObject:
        """Describe the tools of an agent, with the rule that gives it each."""
        ...

    async def call(
        self, project_id: str, agent: str, name: str, params: JsonObject, who: Actor
    ) -> JsonObject:
        """Make a call as an agent, on behalf of the operator."""
        ...

    def explain(
        self, project_id: str, agent: str, name: str, params: JsonObject, who: Actor
    ) -> JsonObject:
        """Return whether a call would be allowed, by which rules, and what would change that."""
        ...

    def stats(self, project_id: str | None, agent: str | None, tool: str | None) -> JsonObject:
        """Return how often tools were called, how that ended and how long it took."""
        ...


class CodePort(Protocol):
    """The language servers of loaded projects."""

    def servers(self, project_id: str) -> JsonObject:
        """Describe a project's language servers; starts none."""
        ...


class UndoPort(Protocol):
    """What tools did to the files of loaded projects, and taking it back."""

    def steps(
        self, project_id: str, *, session_id: str | None, run_id: str | None, limit: int
    ) -> JsonObject:
        """List the steps that can be undone, newest first."""
        ...

    async def undo(
        self,
        project_id: str,
        *,
        session_id: str | None,
        run_id: str | None,
        count: int | None,
        who: Actor,
    ) -> JsonObject:
        """Take back the last steps of a session, a run or everybody."""
        ...


class ModelPort(Protocol):
    """The models behind the operator's aliases."""

    def rows(self) -> list[JsonObject]:
        """Describe every alias, without keys."""
        ...

    async def check(self, alias: str) -> JsonObject:
        """Ask a model one small question and return how it went."""
        ...


class AccountsPort(Protocol):
    """People's accounts and the providers behind them. No credential is ever given."""

    def providers(self) -> Sequence[JsonObject]:
        """Describe the providers and what they offer."""
        ...

    async def refresh(self, namespace: str, who: Actor) -> JsonObject:
        """Ask a provider again what it offers."""
        ...

    async def accounts(
        self, user_id: str | None, limit: int, offset: int, who: Actor
    ) -> Sequence[JsonObject]:
        """Return a page of linked accounts."""
        ...

    async def revoke(
        self, user_id: str, capability: str, account_ref: str, who: Actor
    ) -> JsonObject:
        """Take somebody's account back."""
        ...

    async def approvals(self, who: Actor) -> Sequence[JsonObject]:
        """Return what waits for consent, and what was decided lately."""
        ...

    async def decide(self, plan_id: str, *, allowed: bool, who: Actor) -> JsonObject:
        """Consent to an operation, or refuse it."""
        ...

    async def rotate_vault(self, who: Actor) -> JsonObject:
        """Encrypt every credential anew, with a fresh key."""
        ...


class ScriptPort(Protocol):
    """The Lua scripts of loaded projects."""

    async def describe(self, project_id: str) -> JsonObject:
        """Return a project's scripts and commands."""
        ...

    async def reload(self, project_id: str, who: Actor) -> JsonObject:
        """Load the scripts anew."""
        ...

    async def command(
        self, project_id: str, name: str, raw: str, *, interactive: bool
    ) -> JsonObject:
        """Run a command of a script."""
        ...

    async def dialogs(self, project_id: str, wait_s: float) -> list[JsonObject]:
        """Return what scripts ask people, waiting for something if need be."""
        ...

    async def answer(self, project_id: str, dialog_id: str, value: JsonValue) -> None:
        """Answer a dialog."""
        ...

    async def front(
        self, project_id: str, script: str, entry: str, params: JsonObject
    ) -> JsonObject:
        """Let a script draw, complete or handle a key for a front end."""
        ...

    async def check(self, name: str, source: str) -> JsonObject:
        """Load a script without letting it do anything."""
        ...
