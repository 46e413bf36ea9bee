"""Where the program begins, and what other people's code calls of it, each with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from reachability.callers import Reached
from reachability.definitions import Module, read_module, read_tree

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGES = (
    *("services", "pipeline", "lua", "plugins", "tools", "sessions", "models", "mcp"),
    *("inbox", "projects", "toolset", "events"),
)
BEGINNINGS = ("app", "cli", "serve")
_PROGRAM = re.compile(r"^if __name__ == .__main__.", re.MULTILINE)

# Called by code that is not ours. A name ends at a dot or colon: `a.b` stands for all below it.
FOR_PEOPLE: Mapping[str, str] = {
    "kaged.sdk": "plugins and bridges that people write",
    "kaged.pipeline.cpex_api": "the names of cpex.framework, for published policy plugins",
    "kaged.pipeline.policies": "policies of ours, named by `kind` in an operator's pipeline file",
    "kaged.pipeline.constraints:validate_tier_constraints": "tests of policy authors (EX-IMMU)",
    "kaged.pipeline.contexts:PluginContext": "what a policy plugin's hook is handed",
    "kaged.pipeline.merge:merge_extensions": "a name of cpex.framework.extensions.tiers",
    "kaged.pipeline.errors:convert_exception_to_error": "a name of cpex.framework.errors",
    "kaged.pipeline.payloads.registry:HookRegistry": "a name of cpex.framework.hooks.registry",
    "kaged.pipeline.plugin:Plugin": "the base class of policy plugins",
    "kaged.pipeline.plugin:has_hook_metadata": "a name of cpex.framework.decorator",
    "kaged.pipeline.results:PluginResult": "what whoever invokes hooks gets, as in cpex.framework",
    "kaged.pipeline.shapes:PlainRecord.model_construct": "plugins, as of pydantic's models",
    "kaged.pipeline.slots:DelegationExtension.with_new_hop": "policies that add a hop",
    "kaged.pipeline.view:filter_extensions": "a name of cpex.framework.extensions.tiers",
    "kaged.pipeline.cpex_compat.finder:remove_cpex_compat": "programs that use the original later",
}

# Written, proven in parts, and used by nothing in a running daemon. May only become fewer.
NOT_WIRED: Mapping[str, str] = {
    "kaged.services.providers.bridge:BridgeProvider.most_running": (
        "the benchmark of bridges reads how many processes ran at once; the daemon does not"
    ),
    "kaged.toolset.language_services:LanguageServices.get_bridges_for_project": (
        "AT-LSP-10 gives it its name and its root; calls of the daemon come by project id"
    ),
}


def source_tree() -> dict[str, Module]:
    """Return the product's modules."""
    return read_tree(SOURCE, "kaged")


def beginnings(tree: Mapping[str, Module]) -> Iterator[str]:
    """Yield the modules that are reached whatever happens: programs, commands, routes, wiring."""
    for name in tree:
        path = SOURCE.joinpath(*name.split("."))
        file = (
            path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
        )
        parts = name.split(".")
        if (len(parts) > 1 and parts[1] in BEGINNINGS) or _PROGRAM.search(
            file.read_text(encoding="utf-8")
        ):
            yield name
    yield "kaged.sandbox.main"  # `ash-sb`


def scripts_names() -> set[str]:
    """Return what the scripts of this repository mention: they make the reference pages."""
    found: set[str] = set()
    for path in sorted((ROOT / "scripts").glob("*.py")):
        for one in read_module(path.stem, path).definitions:
            found |= one.used
    return found


def reached_of(tree: Mapping[str, Module]) -> Reached:
    """Return what the program reaches, and what people's code may call."""
    given = [
        one
        for module in tree.values()
        for one in module.definitions
        if any(_is_below(one.key, name) for name in FOR_PEOPLE)
    ]
    return Reached(tree, beginnings(tree), scripts_names(), given)


def _is_below(key: str, name: str) -> bool:
    return key == name or key.startswith((f"{name}.", f"{name}:"))
