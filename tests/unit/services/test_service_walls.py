"""Walls in the source: who may import the vault and the providers, and who makes tokens."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

from requirements import requirement

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "kaged"


@cache
def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    text = path.read_text(encoding="utf-8")
    if "services" not in text and "vault_rows" not in text and "mint_token" not in text:
        return found  # parsing a thousand files takes long
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found


def _importers(module: str) -> set[str]:
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if any(one == module or one.startswith(f"{module}.") for one in _imports(path))
    }


@requirement("SC-SEC-02")
def test_only_the_manager_reaches_credentials_and_providers() -> None:
    reached = {
        module: _importers(module)
        for module in (
            "kaged.services.vault",
            "kaged.store.vault_rows",
            "kaged.services.providers",
        )
    }
    for module, importers in reached.items():
        for importer in importers:
            allowed = importer.startswith("services/providers/") or importer in {
                "app/services.py",
                "services/bridge_check.py",
                "services/credential_vault.py",
                "services/manager.py",
                "services/authflow.py",
                "services/vault.py",
                "services/vault_opening.py",
            }
            assert allowed, (module, importer)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {one["id"]: one for one in settings["tool"]["importlinter"]["contracts"]}
    assert "kaged.services.vault" in contracts["vault"]["protected_modules"]
    assert "kaged.services.providers" in contracts["providers"]["protected_modules"]
    # Tools of agents know nothing of services at all, so none of them can be one.
    agents = ("tools", "toolbox", "toolset", "plugins", "sessions", "models", "mcp", "lua")
    for package in (*agents, "projects", "workspace", "events", "diagnostics"):
        for path in (SOURCE / package).rglob("*.py"):
            services = {one for one in _imports(path) if one.startswith("kaged.services")}
            assert services == set(), path


@requirement("SC-BRG-21")
def test_tokens_are_made_and_checked_in_one_module() -> None:
    assert _importers("kaged.wire.tokens.mint_token") <= {
        "services/caller.py",
        "wire/sidecar_identity.py",
        "services/providers/bridge.py",
        "cli/commands/bridge.py",
        "services/bridge_check.py",
    }
    # The host's side and the program's side of sidecars use the same one.
    assert _importers("kaged.wire.sidecar_identity.SidecarIdentity") == {
        "services/sidecar.py",
        "services/providers/sidecar.py",
        "services/providers/sidecar_processes.py",
    }
    program = (SOURCE / "sdk" / "sidecar.py").read_text(encoding="utf-8")
    assert "from kaged.wire.sidecar_identity import" in program
    assert "hmac" not in program
    makers = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if '"sidecar:' in path.read_text(encoding="utf-8")
        or 'f"sidecar:' in path.read_text(encoding="utf-8")
    }
    assert makers == {"wire/sidecar_identity.py"}
