"""`kaged plugin secret`: give a plugin what it must know and nobody else may read."""

from __future__ import annotations

import getpass
import json
import sys
from typing import Annotated, Any

import typer

from kaged.base import JsonValue, KagedError
from kaged.cli.commands.plugin_consent import Name
from kaged.cli.context import locations, require_own_daemon
from kaged.cli.output import Output
from kaged.cli.runner import command, group

app = group("Set what a plugin must know, such as an API key, in local.toml.")

Key = Annotated[str, typer.Argument(help="The name of the setting, as the manifest has it.")]
LIMIT_CHARS = 64 * 1024


@command(app, "set")
def set_secret(output: Output, name: Name, key: Key) -> Any:
    """Set a secret of an installed plugin. It is typed without an echo, or read from a pipe."""
    from kaged.config.editing import edit_toml
    from kaged.config.files import Privacy

    rule = _rule_of(name, key)
    value = _value(_typed(f"{key} of {name}"), rule)
    path = locations().local_toml
    edit_toml(path, lambda edit: edit.set(("plugins", name, key), value), privacy=Privacy.PRIVATE)
    output.line(f"Set {key} in the section [plugins.{name}] of {path}.")
    output.note(f"`kaged plugin restart {name}` uses it.")
    return {"name": name, "key": key, "file": str(path)}


def _rule_of(name: str, key: str) -> dict[str, Any]:
    """Return the schema of a setting of the operator's half; raises when there is none."""
    from kaged.config.manifest import load_manifest
    from kaged.plugins.settings import thaw

    require_own_daemon("Run it where the daemon runs.")
    directory = locations().plugins_dir / name
    if "/" in name or not directory.is_dir():
        raise KagedError(
            f"No plugin {name} is installed.",
            code="plugin_not_found",
            fix="`kaged plugin list` shows the installed ones.",
        )
    schema: Any = thaw(load_manifest(directory).value.system_config_schema or {})
    known: dict[str, Any] = schema.get("properties") or {}
    if key not in known:
        shown = ", ".join(sorted(known)) or "none"
        raise KagedError(
            f"{name} has no setting {key} for its operator.",
            code="invalid_params",
            fix=f"It has: {shown}.",
        )
    found = known[key]
    return found if isinstance(found, dict) else {}


def _value(text: str, rule: dict[str, Any]) -> JsonValue:
    """Read what was typed as the schema has it: text, or a number or yes/no as JSON."""
    if not text or len(text) > LIMIT_CHARS:
        raise KagedError(
            "The secret is empty or too long.", code="invalid_params", fix="Type it again."
        )
    if rule.get("type", "string") == "string":
        return text.replace("${", "$${")  # as local.toml writes what is no variable
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        raise KagedError(
            f"The setting is of type {rule.get('type')}, and this is not.",
            code="invalid_params",
            fix="Type it as JSON.",
        ) from None
    return value


def _typed(label: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"{label}: ", stream=sys.stderr)
    return sys.stdin.read(LIMIT_CHARS + 2).removesuffix("\n")
