"""A build before a debugger starts: it ends in time, with all that it started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.stocked_cache import stocked
from kaged.cage import CageProcess, CageSettings, Spawner
from kaged.toolbox.dap.adapters import AdapterPlan
from kaged.toolbox.dap.backend import launch_uncaged
from kaged.toolbox.dap.building import OUTPUT_CHARS, build_program
from kaged.toolbox.dap.errors import DapRequestFailed

ENVIRON = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
async def spawner(tmp_path: Path) -> AsyncIterator[Spawner]:
    """Yield what starts processes."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o755)
    made = Spawner(CageSettings(cache_dir=stocked(cache)))
    yield made
    await made.close()


async def build(spawner: Spawner, folder: Path, script: str, limit_s: float = 60.0) -> None:
    """Build with a shell script in a folder."""

    async def start(plan: AdapterPlan, mark: str) -> CageProcess:
        return await launch_uncaged(spawner, plan, str(folder), ENVIRON, mark)

    await build_program(start, ["/bin/sh", "-c", script], {"WORD": "given"}, limit_s)


async def test_a_build_that_takes_too_long_is_ended_with_what_it_left_behind(
    spawner: Spawner, tmp_path: Path
) -> None:
    script = "setsid sleep 600 & echo $! > child; sleep 600"
    with pytest.raises(DapRequestFailed, match=r"within 1 seconds"):
        await build(spawner, tmp_path, script, limit_s=1.0)
    child = int((tmp_path / "child").read_text(encoding="ascii"))
    assert not Path(f"/proc/{child}/exe").exists()


async def test_the_end_of_a_long_output_is_what_is_told(spawner: Spawner, tmp_path: Path) -> None:
    script = "yes noise | head -c 100000; echo $WORD; echo the reason >&2; exit 7"
    with pytest.raises(DapRequestFailed) as failed:
        await build(spawner, tmp_path, script)
    detail = failed.value.detail
    assert isinstance(detail, dict)
    output = str(detail["output"])
    assert (detail["exit_code"], len(output)) == (7, OUTPUT_CHARS)
    assert output.endswith("given\nthe reason")


async def test_a_build_that_works_says_nothing(spawner: Spawner, tmp_path: Path) -> None:
    await build(spawner, tmp_path, "echo built > made")
    assert (tmp_path / "made").read_text(encoding="ascii") == "built\n"
