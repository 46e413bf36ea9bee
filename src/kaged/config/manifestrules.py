"""What the fields of a manifest ask of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kaged.base import JsonValue
from kaged.config.jsonschemas import property_names
from kaged.config.knobs import EnumKnob, Knob
from kaged.config.nodes import Node
from kaged.config.pluginwords import HOST_KEYS, RESERVED_NAMES, Hook, PluginRole
from kaged.config.reading import DocumentPosition

PROTECTED_ENV: Final = ("KAGED_PLUGIN_NAME", "KAGED_PLUGIN_DIR", "KAGED_API_VERSION")
"""Variables that the host sets and a manifest cannot change."""

SYSTEM_METHODS: Final = frozenset({"config.update", "projects.activated", "projects.deactivated"})
RESERVED_PREFIXES: Final = ("kaged.", "system.")

_BINDING: Final = "config."
_SYSTEM_BINDING: Final = "system_config"

_SCHEMA_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "range": ("number",),
    "int_range": ("integer", "number"),
    "enum": ("string",),
    "boolean": ("boolean",),
    "text": ("string",),
    "multiline": ("string",),
    "model_alias": ("string",),
    "path": ("string",),
}


def check_manifest(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    """Note everything in a manifest that does not fit together."""
    _check_name(given, node, place)
    _check_api(given, node, place)
    _check_roles(given, node, place)
    _check_names_offered(given, node, place)
    _check_method_schemas(given, node, place)
    _check_env(given, node, place)
    _check_schemas(given, node, place)
    _check_knobs(given, node, place)


def _check_name(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    name = given.get("name")
    at = node.child("name") or node
    below = place.at("name")
    if name in RESERVED_NAMES:
        below.warn(
            at, f"{name!r} is the name of a built-in tool namespace", code="reserved_plugin_name"
        )
        below.error(
            at,
            f"{name!r} cannot be the name of a plugin",
            "choose another name",
            "reserved_plugin_name",
        )
    if name is not None and len(name) == 1 and given.get("tools"):
        below.error(
            at,
            "a plugin with tools needs a name of two or more characters",
            "choose a longer name",
            "tool_name_invalid",
        )


def _check_api(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    api = given.get("kaged_api")
    if api is not None and api > 1:
        place.at("kaged_api").error(
            node.child("kaged_api") or node,
            f"the plugin needs plugin API {api}; this kaged supports 1",
            "use a newer kaged, or an older version of the plugin",
            "api_too_new",
        )


def _check_roles(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    roles: tuple[PluginRole, ...] | None = given.get("declared_roles")
    alias: tuple[PluginRole, ...] | None = given.get("role_alias")
    at = node.child("roles") or node.child("role") or node
    below = place.at("roles")
    if roles is not None and alias is not None and set(roles) != set(alias):
        below.error(
            at, "roles and role say different things", "keep roles only", "conflicting_keys"
        )
        return
    declared = alias if roles is None else roles
    hooks_known = "hooks" in given or node.entry("hooks") is None
    hooks: tuple[Hook, ...] = given.get("hooks", ())
    if declared is None or not hooks_known:
        return
    if PluginRole.COMPACTOR in declared and Hook.PRE_COMPACT not in hooks:
        below.error(at, "a compactor must subscribe to pre_compact", "add pre_compact to hooks")
    if not declared and hooks:
        below.error(
            at, "is empty although the plugin has hooks", "write [observer], or remove roles"
        )


def _check_names_offered(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    methods: tuple[str, ...] = given.get("methods", ())
    for field in ("methods", "notifications"):
        for index, name in enumerate(given.get(field, ())):
            listed = node.child(field)
            item = listed.value[index] if listed and isinstance(listed.value, tuple) else node
            below = place.at(field, index)
            if name.startswith(RESERVED_PREFIXES):
                prefix = name.partition(".")[0]
                below.error(item, f"{name} begins with {prefix}., which is reserved", "rename it")
            elif field == "methods" and name in SYSTEM_METHODS:
                below.error(item, f"{name} is a method of the host", "rename it")
    plugin = given.get("name")
    seen: set[str] = set()
    for index, name, at in _tool_names(node):
        below = place.at("tools", index, "name")
        full = f"{plugin}.{name}"
        if name in seen:
            below.error(at, f"the tool {name} is declared twice", "rename one of the two")
        elif full in methods or full in SYSTEM_METHODS:
            below.error(at, f"the tool {full} has the same name as a method", "rename one")
        seen.add(name)


def _tool_names(node: Node) -> Iterator[tuple[int, str, Node]]:
    tools = node.child("tools")
    listed = tools.value if tools is not None and isinstance(tools.value, tuple) else ()
    for index, tool in enumerate(listed):
        name = tool.child("name")
        if name is not None and isinstance(name.value, str):
            yield index, name.value, name


def _check_method_schemas(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    methods: tuple[str, ...] = given.get("methods", ())
    listed = node.child("method_schemas") or node
    for name in given.get("method_schemas", ()):
        if name not in methods:
            place.at("method_schemas", name).error(
                listed.child(name) or listed,
                f"{name} is no method of this plugin",
                f"add {name} to methods, or remove its schemas",
                "unknown_method",
            )


def _check_env(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    env = node.child("env") or node
    for name in given.get("env", {}):
        if name in PROTECTED_ENV:
            entry = env.entry(name)
            place.at("env", name).warn(
                env if entry is None else entry.mark,
                "is set by the host and keeps the host's value",
                "remove it",
                "protected_env",
            )


def _check_schemas(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    project = property_names(given.get("config_schema"))
    system = property_names(given.get("system_config_schema"))
    below = place.at("system_config_schema", "properties")
    at = node.child("system_config_schema") or node
    for name in system:
        if name in project:
            below.error(
                at,
                f"{name} is in config_schema, too; a field is either committed or secret",
                "keep it in one of the two",
                "schemas_overlap",
            )
        if name in HOST_KEYS:
            below.error(at, f"{name} is a key of the host in local.toml", "rename it", "host_key")


def _check_knobs(given: Mapping[str, Any], node: Node, place: DocumentPosition) -> None:
    schema: Mapping[str, JsonValue] | None = given.get("config_schema")
    # A schema that is broken is reported; whether it has a field cannot be said then.
    unsure = schema is None and node.entry("config_schema") is not None
    project = None if unsure else property_names(schema)
    system = property_names(given.get("system_config_schema"))
    listed = node.child("knobs")
    pairs = listed.value if listed is not None and isinstance(listed.value, Mapping) else {}
    read: Mapping[str, Knob] = given.get("knobs", {})
    for name, entry in pairs.items():
        bound = entry.node.child("binds_to")
        if bound is None or not isinstance(bound.value, str):
            continue
        below = place.at("knobs", name)
        field = _bound_field(bound, project, system, below)
        if field is not None and name in read and schema is not None:
            _compare_with_schema(read[name], field, schema, bound, below)


def _bound_field(
    bound: Node, project: tuple[str, ...] | None, system: tuple[str, ...], place: DocumentPosition
) -> str | None:
    target = str(bound.value)
    below = place.at("binds_to")
    field = target.removeprefix(_BINDING)
    if target.partition(".")[0] == _SYSTEM_BINDING or (
        field in system and field not in (project or ())
    ):
        below.error(
            bound,
            "a knob cannot write system config, which holds secrets",
            "bind it to a field of config_schema",
            "knob_binds_to_system_config",
        )
    elif not target.startswith(_BINDING) or not field or "." in field:
        below.error(
            bound, f"{place.show(target)} is not of the form config.<field>", "write config.<field>"
        )
    elif project is not None and field not in project:
        below.error(
            bound,
            f"config_schema has no property {field!r}",
            "add the property, or bind the knob to another",
            "knob_binds_to_unknown_field",
        )
    else:
        return field
    return None


def _compare_with_schema(
    knob: Knob, field: str, schema: Mapping[str, JsonValue], at: Node, place: DocumentPosition
) -> None:
    properties = schema.get("properties")
    drawn = properties.get(field) if isinstance(properties, Mapping) else None
    if not isinstance(drawn, Mapping):
        return
    kind = drawn.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    fitting = _SCHEMA_TYPES[knob.type]
    if kind is not None and not any(item in fitting for item in kinds):
        place.warn(
            at,
            f"a {knob.type} knob writes {' or '.join(fitting)}, but {field} is {kind}",
            "make the two agree",
            "knob_type_mismatch",
        )
    elif isinstance(knob, EnumKnob):
        allowed = drawn.get("enum")
        same = isinstance(allowed, list) and {str(item) for item in allowed} == set(knob.values)
        if not same:
            place.warn(
                at,
                f"the knob's values differ from the enum of {field}",
                "list the same values in both",
                "knob_type_mismatch",
            )
