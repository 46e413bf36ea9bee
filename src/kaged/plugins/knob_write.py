"""`KnobService`: show a plugin's knobs, and write one into the project file.

A value must please the knob and the config schema. It is written where the declaring agent keeps
its config, comments and order stay, the project is read again, and the plugin gets `config.update`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import cast

from kaged.audit import AuditEvent, AuditLog
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.config.editing import edit_yaml
from kaged.config.files import read_text
from kaged.config.knobs import Knob, KnobFacts
from kaged.config.localconfig import ModelTrait
from kaged.config.manifest import Manifest
from kaged.config.pluginwords import PluginRole
from kaged.config.problems import DEFAULT
from kaged.config.project import PROJECT_FILE, parse_project
from kaged.config.projectpaths import KAGED_DIR
from kaged.config.yamledit import YamlEdit
from kaged.plugins.declarations import Declaration
from kaged.plugins.plugin import HostedPlugin
from kaged.plugins.settings import thaw
from kaged.plugins.supervisor import PluginSupervisor
from kaged.projects.agreement import SettingEdit

Models = Callable[[], Mapping[str, frozenset[ModelTrait]]]
Reload = Callable[[str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class KnobChange:
    """What a write did; `delivered` is false when the plugin does not run or refused the value.

    `code` then says which of the two (`config_invalid`: it refused), and `note` why.
    """

    plugin: str
    knob: str
    agent_path: str
    old: JsonValue
    new: JsonValue
    delivered: bool
    code: str = ""
    note: str = ""

    def as_json(self) -> JsonObject:
        """Return the fields as JSON."""
        return cast("JsonObject", dataclasses.asdict(self))


def knob_schema(manifest: Manifest) -> JsonObject:
    """Return a manifest's knobs as JSON: everything that a user interface needs to draw them."""
    return {name: _drawn(knob) for name, knob in manifest.knobs.items()}


class KnobService:
    """Reads and writes knobs of plugins in loaded projects.

    `models` returns the operator's model aliases.
    """

    def __init__(self, supervisor: PluginSupervisor, audit: AuditLog, *, models: Models) -> None:
        self._supervisor = supervisor
        self._audit = audit
        self._models = models
        self._turn = asyncio.Lock()

    def schema(self, plugin: str) -> JsonObject:
        """Return a plugin's knobs. Raises PluginNotFound."""
        return knob_schema(self._supervisor.get(plugin).installed.manifest)

    def values(self, project_id: str, agent_path: str, plugin: str) -> JsonObject:
        """Return a plugin's knobs with the values in force for one agent.

        Raises:
            PluginNotFound: there is no such plugin.
            KagedError: `knob_not_found`; the agent does not declare it.
        """
        found, declaration = self._declared(project_id, agent_path, plugin)
        return self._values(found, declaration)

    def compaction_view(self, project_id: str, agent_path: str) -> list[JsonObject]:
        """Return the knobs of an agent's observers and compactors, for its compaction settings."""
        view: list[JsonObject] = []
        for part in self._supervisor.participants(project_id, agent_path):
            roles = part.plugin.installed.manifest.roles
            if PluginRole.OBSERVER in roles or PluginRole.COMPACTOR in roles:
                view.append(
                    {
                        "plugin": part.plugin.name,
                        "roles": [role.value for role in roles],
                        "knobs": self._values(part.plugin, part.declaration),
                    }
                )
        return view

    def edit_of(self, project_id: str, agent_path: str, plugin: str, knob: str) -> SettingEdit:
        """Return what `write` would change in the project file.

        Raises PluginNotFound, KagedError: `knob_not_found`; there is no such knob here.
        """
        found, declaration = self._declared(project_id, agent_path, plugin)
        field = _knob(found, knob).bound_field
        return SettingEdit(agent_path, declaration.resolved.key, field)

    async def write(
        self,
        project_id: str,
        agent_path: str,
        plugin: str,
        knob: str,
        value: JsonValue,
        *,
        request_id: str,
        reload: Reload,
    ) -> KnobChange:
        """Set a knob for one agent.

        `reload` makes the daemon read a project's files again on behalf of whoever asks, which
        hands the new declarations to the supervisor.

        Raises:
            PluginNotFound, KagedError: `knob_not_found`; there is no such knob here.
            KagedError: `knob_value_refused`; the value is out of bounds or does not fit the
                schema; nothing changed.
            EditRefused, ConfigInvalid, KagedError: `config_busy`; the file cannot be changed;
                nothing was.
        """
        async with self._turn:
            found, declaration = self._declared(project_id, agent_path, plugin)
            chosen = _knob(found, knob)
            field = chosen.bound_field
            await asyncio.to_thread(self._require_fit, found, declaration, chosen, value)
            old = declaration.project_half.get(field, _default(chosen))
            data: JsonObject = {
                "name": plugin,
                "knob": knob,
                "agent_path": agent_path,
                "request_id": request_id,
            }
            await asyncio.to_thread(_write, declaration, field, value, rehearsal=True)
            # The log gates the change: what cannot be remembered is not done.
            event = AuditEvent("plugin.knob_write", data, request_id=request_id)
            await self._audit.record(event)
            await asyncio.to_thread(_write, declaration, field, value)
            await reload(project_id)
            code, note = await self._deliver(found, project_id, agent_path)
            return KnobChange(plugin, knob, agent_path, old, value, not code, code, note)

    def _declared(
        self, project_id: str, agent_path: str, plugin: str
    ) -> tuple[HostedPlugin, Declaration]:
        found = self._supervisor.get(plugin)
        declaration = self._supervisor.declaration(project_id, agent_path, plugin)
        if declaration is None:
            raise KagedError(
                f"the agent {agent_path} does not declare {plugin}",
                code="knob_not_found",
                fix=f"declare it under {agent_path}.plugins in the project file",
            )
        return found, declaration

    def _values(self, plugin: HostedPlugin, declaration: Declaration) -> JsonObject:
        half = declaration.project_half
        effective = declaration.effective(plugin.schemas, {})
        view: JsonObject = {}
        for name, knob in plugin.installed.manifest.knobs.items():
            field = knob.bound_field
            drawn = _drawn(knob)
            drawn["value"] = effective.get(field, _default(knob))
            drawn["is_set"] = field in half
            view[name] = drawn
        return view

    def _require_fit(
        self, plugin: HostedPlugin, declaration: Declaration, knob: Knob, value: JsonValue
    ) -> None:
        facts = KnobFacts(models=self._models(), exists=_looker(plugin, declaration))
        decision = knob.decide(value, facts)
        if not decision.allowed:
            raise _refused(f"{knob.label} {decision.detail}")
        if knob.bound_field == "isolation" and not _may_turn_isolation(declaration):
            raise _refused(
                f"{knob.label}: the declaration itself says isolation",
                "change `isolation` beside `package` in the project file",
            )
        half = {**declaration.project_half, knob.bound_field: value}
        invalid = plugin.schemas.check_project(half)
        if invalid is not None:
            raise _refused(
                f"{knob.label} does not fit the plugin's config: {invalid.errors[0]}",
                errors=[*invalid.errors],
            )

    async def _deliver(
        self, plugin: HostedPlugin, project_id: str, agent_path: str
    ) -> tuple[str, str]:
        """Deliver the agent's new config, unless reading the project again did.

        Returns code and words of why not, both empty when it was.
        """
        if plugin.ready_or_none() is None:
            waits = f"{plugin.name} is not running; it gets the value when it starts"
            return "plugin_unavailable", waits
        declaration = self._supervisor.declaration(project_id, agent_path, plugin.name)
        if declaration is None:
            return "knob_not_found", f"{agent_path} no longer declares {plugin.name}"
        try:
            await plugin.update_config(declaration.effective(plugin.schemas, plugin.system_config))
        except KagedError as error:
            return error.code, error.message
        return "", ""


def _write(
    declaration: Declaration, field: str, value: JsonValue, *, rehearsal: bool = False
) -> None:
    """Write a field of a declaration's config; a rehearsal only finds out whether that can be."""
    root = declaration.project_root
    agent = declaration.agent_path.split(".")
    path = (*agent, "plugins", declaration.resolved.key, "config", field)

    def change(edit: YamlEdit) -> None:
        edit.set(path, value)
        parse_project(edit.text, root)  # a file that would not load any more is not written

    file = root / KAGED_DIR / PROJECT_FILE
    if rehearsal:
        change(YamlEdit(read_text(file, inside=root).text, str(file)))
    else:
        edit_yaml(file, change, inside=root)


def _refused(message: str, fix: str = "choose another value", **data: JsonValue) -> KagedError:
    return KagedError(message, code="knob_value_refused", fix=fix, **data)


def _knob(plugin: HostedPlugin, name: str) -> Knob:
    knobs = plugin.installed.manifest.knobs
    if name not in knobs:
        raise KagedError(
            f"{plugin.name} has no knob {name!r}",
            code="knob_not_found",
            fix=f"its knobs are: {', '.join(knobs) or 'none'}",
        )
    return knobs[name]


def _may_turn_isolation(declaration: Declaration) -> bool:
    """Return whether `config.isolation` decides: nothing beside `package` does, nor the primary."""
    resolved = declaration.resolved
    return not resolved.inherits and (
        resolved.isolation_by_config or resolved.isolation.origin == DEFAULT
    )


def _looker(plugin: HostedPlugin, declaration: Declaration) -> Callable[[str], bool]:
    bases = {"project": declaration.project_root, "config": plugin.installed.data_dir}

    def exists(location: str) -> bool:
        prefix, _, rest = location.partition(":")
        base = bases.get(prefix, Path("/nonexistent")).resolve()
        found = (base / rest.lstrip("/")).resolve()
        return found.is_relative_to(base) and found.exists()

    return exists


def _default(knob: Knob) -> JsonValue:
    return cast("JsonValue", knob.default)


def _drawn(knob: Knob) -> JsonObject:
    fields = {item.name: getattr(knob, item.name) for item in dataclasses.fields(knob)}
    return {
        name: thaw(value)
        for name, value in fields.items()
        if value is not None or name == "default"
    }
