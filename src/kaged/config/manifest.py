"""`Manifest`: a plugin's `kaged-plugin.yaml`, checked whole; `load_manifest`.

Errors refuse the plugin; warnings are shown and stop nothing. Unknown top-level keys are warnings,
so that manifests for a newer host load in an older one; inside tools and knobs they are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.config.cageblock import ENV_NAME, ENV_VALUE
from kaged.config.capabilitylist import CapabilityListShape
from kaged.config.containers import ListOf, MapOf, Mapped, OneOrList
from kaged.config.files import read_text
from kaged.config.jsonschemas import ObjectSchemaShape
from kaged.config.knobs import Knob
from kaged.config.knobshapes import KNOBS_SHAPE
from kaged.config.manifestrules import check_manifest
from kaged.config.nodes import Node
from kaged.config.pluginwords import (
    MANIFEST_NAME,
    MAX_PLUGIN_NAME_CHARS,
    PACKAGE_PATTERN,
    PLUGIN_NAME_PATTERN,
    RESERVED_NAMES,
    Hook,
    PluginRole,
)
from kaged.config.problems import Severity
from kaged.config.reading import DocumentPosition, Loaded, NoValue, Reading
from kaged.config.records import RecordShape, empty_map, key, optional, record, strict
from kaged.config.semver import SEMVER_PATTERN, Version, parse_version
from kaged.config.servers import ARGV
from kaged.config.shapes import Choice, Flag, Shape, TextShape, Whole
from kaged.config.yamldoc import parse_yaml
from kaged.kernel.capabilities import CapabilitySet

KAGED_API: Final = 1
"""The plugin API version that this host speaks."""

MAX_DESCRIPTION_CHARS: Final = 200
METHOD_PATTERN: Final = r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*){1,3}"
TOOL_PATTERN: Final = r"[a-z][a-z0-9_]*"

_METHOD: Final = TextShape(
    max_chars=200, pattern=METHOD_PATTERN, means="a method name (2 to 4 lower-case segments)"
)
_ROLES: Final = ListOf(Choice(PluginRole), unique=True)


class _LineShape(Shape[str]):
    """One line of text; line ends at its edges, as YAML blocks leave them, are taken off."""

    WORDS = f"one line, at most {MAX_DESCRIPTION_CHARS} characters"
    _TEXT: Final = TextShape(max_chars=MAX_DESCRIPTION_CHARS)

    def read(self, node: Node, place: DocumentPosition) -> str | NoValue:
        """Read the line."""
        if isinstance(node.value, str):
            node = Node(node.value.strip("\r\n"), node.mark)
        return self._TEXT.read(node, place)

    def schema(self, defs: JsonObject) -> JsonObject:
        """Return a string schema that allows for the edges."""
        return {
            "type": "string",
            "pattern": rf"^[\r\n]*[^\r\n]{{1,{MAX_DESCRIPTION_CHARS}}}[\r\n]*$",
        }


@record
class ToolDeclaration:
    """A tool that the plugin offers to agents as `<plugin>.<name>`."""

    name: str = key(
        TextShape(
            max_chars=64, pattern=TOOL_PATTERN, means="a tool name (lower case, digits and _)"
        ),
        "The name without the plugin's prefix.",
    )
    description: str = key(TextShape(max_chars=10_000, one_line=False), "What the tool does.")
    parameters_schema: Mapping[str, JsonValue] = key(
        ObjectSchemaShape(), "The JSON Schema of its parameters."
    )


@record
class MethodSchema:
    """What a method takes and gives."""

    params: Mapping[str, JsonValue] | None = optional(
        ObjectSchemaShape(),
        "The JSON Schema of its params; others are refused before the plugin sees them.",
        default=None,
    )
    result: Mapping[str, JsonValue] | None = optional(
        ObjectSchemaShape(objects=False),
        "The JSON Schema of its result; another one is passed on with a warning in the log.",
        default=None,
    )


@record
class Manifest:
    """A plugin's identity document: what it is, what it needs, what it offers."""

    name: str = key(
        TextShape(
            max_chars=MAX_PLUGIN_NAME_CHARS,
            pattern=PLUGIN_NAME_PATTERN,
            means="a plugin name (lower case, digits and -)",
        ),
        "The plugin's name; unique on a machine.",
    )
    version: Version = key(
        Mapped(
            TextShape(
                max_chars=128, pattern=SEMVER_PATTERN, means="a semantic version such as 1.4.2"
            ),
            parse_version,
        ),
        "The plugin's version.",
    )
    kaged_api: int = key(Whole(1), f"The plugin API version it is made for; currently {KAGED_API}.")
    description: str = key(_LineShape(), "What the plugin does, in one line.")
    command: tuple[str, ...] = key(
        ARGV, "The program to run, as a list; relative paths start in the plugin's directory."
    )
    capabilities: CapabilitySet = key(
        CapabilityListShape(), "What it needs of the host; may be an empty list."
    )
    package: str | None = optional(
        TextShape(
            max_chars=214, pattern=PACKAGE_PATTERN, means="a package name such as @scope/name"
        ),
        "Its package, if the last segment of that is not the plugin's name.",
        default=None,
    )
    author: str | None = optional(TextShape(max_chars=500), "Who made it.", default=None)
    license: str | None = optional(
        TextShape(max_chars=200), "Its licence, as an SPDX identifier.", default=None
    )
    homepage: str | None = optional(
        TextShape(max_chars=2000, pattern=r"https?://\S+", means="an http or https URL"),
        "Where to read more.",
        default=None,
    )
    env: Mapping[str, str] = key(
        MapOf(ENV_VALUE, ENV_NAME),
        "Environment variables of its process.",
        default_factory=empty_map,
    )
    declared_roles: tuple[PluginRole, ...] | None = optional(
        _ROLES,
        "What it may do with its hooks' answers; `[observer]` by default if it has hooks.",
        name="roles",
        default=None,
    )
    role_alias: tuple[PluginRole, ...] | None = optional(
        OneOrList(_ROLES, "role or list of roles"),
        "The older spelling of `roles`.",
        name="role",
        default=None,
    )
    hooks: tuple[Hook, ...] = key(
        ListOf(Choice(Hook), unique=True), "The hooks it handles.", default=()
    )
    tools: tuple[ToolDeclaration, ...] = key(
        ListOf(strict(ToolDeclaration), max_items=200),
        "The tools it offers to agents.",
        default=(),
    )
    methods: tuple[str, ...] = key(
        ListOf(_METHOD, unique=True), "Methods for the HTTP API, beside tools.", default=()
    )
    method_schemas: Mapping[str, MethodSchema] = key(
        MapOf(strict(MethodSchema), _METHOD),
        "What its methods take and give, by method.",
        default_factory=empty_map,
    )
    notifications: tuple[str, ...] = key(
        ListOf(_METHOD, unique=True), "Notifications it may send.", default=()
    )
    config_schema: Mapping[str, JsonValue] | None = optional(
        ObjectSchemaShape(),
        "The JSON Schema of the config that projects set and commit.",
        default=None,
    )
    system_config_schema: Mapping[str, JsonValue] | None = optional(
        ObjectSchemaShape(),
        "The JSON Schema of the config that the operator keeps in local.toml.",
        default=None,
    )
    knobs: Mapping[str, Knob] = key(
        KNOBS_SHAPE, "Settings that people may turn, by name.", default_factory=empty_map
    )
    per_call_config: bool = key(
        Flag(), "Whether each call carries the config as `_config`.", default=False
    )
    shared_files: bool = key(
        Flag(), "Whether large payloads and bytes pass as files, in two shared folders.",
        default=False,
    )  # fmt: skip
    shutdown_timeout_sec: int = key(Whole(0, 30), "Seconds it gets to end by itself.", default=5)
    health_interval_sec: int = key(Whole(5, 300), "Seconds between health checks.", default=30)
    hook_timeout_sec: int = key(Whole(1, 60), "Seconds a hook may take.", default=10)

    @property
    def roles(self) -> tuple[PluginRole, ...]:
        """The roles in force: as declared, else observer if there are hooks."""
        declared = self.role_alias if self.declared_roles is None else self.declared_roles
        if declared is not None:
            return declared
        return (PluginRole.OBSERVER,) if self.hooks else ()


def _schema_rules() -> Mapping[str, JsonValue]:
    """Return what fields ask of each other, as far as JSON Schema can say it."""
    compactor: JsonObject = {
        "anyOf": [
            {"properties": {"roles": {"contains": {"const": "compactor"}}}, "required": ["roles"]},
            {
                "properties": {
                    "role": {
                        "anyOf": [
                            {"const": "compactor"},
                            {"type": "array", "contains": {"const": "compactor"}},
                        ]
                    }
                },
                "required": ["role"],
            },
        ]
    }
    has_hook: JsonObject = {
        "properties": {"hooks": {"contains": {"const": "pre_compact"}}},
        "required": ["hooks"],
    }
    some: JsonObject = {"minItems": 1}
    no_roles: JsonObject = {
        "properties": {"roles": {"maxItems": 0}, "hooks": some},
        "required": ["roles", "hooks"],
    }
    short_with_tools: JsonObject = {
        "properties": {"name": {"maxLength": 1}, "tools": some},
        "required": ["name", "tools"],
    }
    reserved: list[JsonValue] = [*sorted(RESERVED_NAMES)]
    named: JsonObject = {"not": {"properties": {"name": {"enum": reserved}}, "required": ["name"]}}
    api: JsonObject = {"properties": {"kaged_api": {"maximum": KAGED_API}}}
    host_names: JsonObject = {"not": {"pattern": r"^(?:kaged|system)\.|^config\.update$"}}
    projects: JsonObject = {"not": {"enum": ["projects.activated", "projects.deactivated"]}}
    methods: JsonObject = {
        "properties": {
            "methods": {"items": {"allOf": [host_names, projects]}},
            "notifications": {"items": {"not": {"pattern": r"^(?:kaged|system)\."}}},
        }
    }
    rules: list[JsonValue] = [
        {"if": compactor, "then": has_hook},
        {"not": no_roles},
        {"not": short_with_tools},
        named,
        api,
        methods,
    ]
    return MappingProxyType({"allOf": rules})


MANIFEST_SHAPE: Final = RecordShape(
    Manifest, unknown=Severity.WARNING, check=check_manifest, schema_extra=_schema_rules()
)


def load_manifest(directory: Path) -> Loaded[Manifest]:
    """Read `kaged-plugin.yaml` of the plugin in `directory`. Executes nothing of it.

    Raises:
        ConfigInvalid: with every problem of the manifest, or because there is none.
    """
    path = directory / MANIFEST_NAME
    found = read_text(
        path, inside=directory, fix_missing=f"a plugin has a {MANIFEST_NAME} in its directory"
    )
    return parse_manifest(found.text, str(path))


def parse_manifest(text: str, file: str = MANIFEST_NAME) -> Loaded[Manifest]:
    """Read the text of a manifest. Raises ConfigInvalid as `load_manifest`."""
    return Reading(file).read(parse_yaml(text, file), MANIFEST_SHAPE.read)
