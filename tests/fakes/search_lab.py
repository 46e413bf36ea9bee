"""The search and AST tools on a folder, with real engines behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.stocked_cache import stocked
from fakes.tool_lab import ToolLab, cage
from kaged.base import JsonValue
from kaged.cage import CageSettings, Spawner
from kaged.toolbox.ast import AstSettings, AstWorkers, WorkerEngine, ast_tools
from kaged.toolbox.search import EngineRunner, RipgrepEngine, SearchSettings, search_tools
from kaged.tools import ToolError


@dataclass
class SearchLab:
    """Makes calls as an agent without a cage, or with the mounts given as `fs`."""

    root: Path
    spawner: Spawner
    engine: RipgrepEngine
    ast: WorkerEngine
    settings: SearchSettings
    ast_settings: AstSettings

    def tool_lab(self, *fs: str) -> ToolLab:
        """Return a dispatcher; without mounts its caller has no cage."""
        tools = [
            *search_tools(self.engine, self.settings),
            *ast_tools(self.ast, self.engine, self.ast_settings),
        ]
        policy = cage(*fs, root=self.root) if fs else None
        return ToolLab(self.root, tools, policy)

    async def call(self, name: str, *fs: str, **params: JsonValue) -> Any:
        """Make one call."""
        return await self.tool_lab(*fs).call(name, **params)

    async def refusal(self, name: str, *fs: str, **params: JsonValue) -> ToolError:
        """Make one call that must fail."""
        return await self.tool_lab(*fs).refusal(name, **params)


@asynccontextmanager
async def opened_search_lab(
    root: Path,
    cache: Path,
    *,
    settings: SearchSettings | None = None,
    ast_settings: AstSettings | None = None,
    program: str | None = None,
    home: Path | None = None,
) -> AsyncGenerator[SearchLab]:
    """Yield a lab; `program` stands in for ripgrep."""
    spawner = Spawner(CageSettings(cache_dir=stocked(cache)))
    env = () if home is None else (("HOME", str(home)),)
    workers = AstWorkers(spawner, count=2)
    try:
        yield SearchLab(
            root.resolve(),
            spawner,
            RipgrepEngine(EngineRunner(spawner, env=env), program),
            WorkerEngine(workers),
            settings or SearchSettings(),
            ast_settings or AstSettings(),
        )
    finally:
        await workers.close()
        await spawner.close()


def write_tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder; a name that ends with a slash is a directory."""
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


__all__ = ["SearchLab", "opened_search_lab", "write_tree"]
