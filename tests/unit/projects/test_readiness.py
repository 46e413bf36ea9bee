"""A project is opening until everything that guards it stands; what could be guarded waits."""

from __future__ import annotations

import asyncio

import pytest

from kaged.base import KagedError
from kaged.projects.readiness import Guard, ProjectOpening, ProjectReadiness, ReadinessView

A, B = "prj_a", "prj_b"


def _readiness(wait_s: float = 5.0) -> tuple[ProjectReadiness, Guard, Guard]:
    readiness = ProjectReadiness(lambda: wait_s)
    policies = readiness.guard("policies")
    scripts = readiness.guard("scripts", each_project=True)
    readiness.project_loaded(A)
    readiness.project_loaded(B)
    return readiness, policies, scripts


async def test_a_request_waits_until_every_guard_stands() -> None:
    readiness, policies, scripts = _readiness()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(readiness.ready(A))
        await asyncio.sleep(0)
        assert readiness.view(A) == ReadinessView("opening", ("policies", "scripts"))
        policies.stand()
        await asyncio.sleep(0)
        assert not waiting.done()
        assert readiness.view(A) == ReadinessView("opening", ("scripts",))
        scripts.stand(A)
    assert readiness.view(A) == ReadinessView("open")
    await readiness.ready(A)


async def test_each_project_is_guarded_by_itself() -> None:
    readiness, policies, scripts = _readiness(0.01)
    policies.stand()
    scripts.stand(A)
    await readiness.ready(A)
    with pytest.raises(ProjectOpening):
        await readiness.ready(B)


async def test_what_belongs_to_no_project_waits_for_what_guards_all_of_them() -> None:
    readiness, policies, _ = _readiness(0.01)
    with pytest.raises(ProjectOpening) as refused:
        await readiness.ready(None)
    assert refused.value.data["missing"] == ["policies"]
    policies.stand()
    await readiness.ready(None)


async def test_who_waits_too_long_is_refused_and_told_what_is_missing() -> None:
    readiness, _, scripts = _readiness(0.01)
    scripts.stand(A)
    with pytest.raises(ProjectOpening) as refused:
        await readiness.ready(A)
    assert refused.value.code == "project_opening"
    assert refused.value.data["missing"] == ["policies"]
    assert "policies" in refused.value.message
    assert refused.value.fix


async def test_a_guard_that_failed_refuses_at_once_and_can_be_mended() -> None:
    readiness, policies, scripts = _readiness(60.0)
    policies.stand()
    with pytest.raises(OSError, match="disk"), scripts.rising(A):
        raise OSError("disk")
    assert readiness.view(A) == ReadinessView("failed", ("scripts",))
    async with asyncio.timeout(10):
        with pytest.raises(ProjectOpening, match="disk"):
            await readiness.ready(A)
    with scripts.rising(A):
        pass
    await readiness.ready(A)


async def test_a_failed_exchange_leaves_what_is_in_force() -> None:
    readiness, policies, scripts = _readiness()
    policies.stand()
    scripts.stand(A)
    with pytest.raises(OSError, match="disk"), scripts.rising(A):
        raise OSError("disk")
    await readiness.ready(A)


async def test_a_cancelled_load_neither_stands_nor_fails() -> None:
    readiness, policies, scripts = _readiness(0.01)
    policies.stand()
    with pytest.raises(asyncio.CancelledError), scripts.rising(A):
        raise asyncio.CancelledError
    assert readiness.view(A) == ReadinessView("opening", ("scripts",))


async def test_when_the_loading_breaks_everybody_is_refused_who_still_waits() -> None:
    readiness, policies, scripts = _readiness(60.0)
    scripts.stand(A)
    async with asyncio.timeout(10):
        loop = asyncio.get_running_loop()
        loop.call_soon(readiness.fail, "guests", RuntimeError("broke"))
        with pytest.raises(ProjectOpening, match="broke"):
            await readiness.ready(A)
    policies.stand()
    await readiness.ready(A)


async def test_nothing_guards_a_project_that_is_not_loaded() -> None:
    readiness, policies, scripts = _readiness()
    policies.stand()
    scripts.stand("prj_c")
    with pytest.raises(KagedError) as refused:
        await readiness.ready("prj_c")
    assert refused.value.code == "project_not_found"
    assert readiness.view("prj_c").state == "failed"


async def test_a_project_that_is_loaded_again_has_to_be_guarded_again() -> None:
    readiness, policies, scripts = _readiness(0.01)
    policies.stand()
    scripts.stand(A)
    readiness.project_loaded(A)
    await readiness.ready(A)
    readiness.project_unloaded(A)
    readiness.project_loaded(A)
    with pytest.raises(ProjectOpening):
        await readiness.ready(A)


async def test_a_project_that_is_unloaded_is_waited_for_no_longer() -> None:
    readiness, _, _ = _readiness(60.0)
    asyncio.get_running_loop().call_soon(readiness.project_unloaded, A)
    async with asyncio.timeout(10):
        with pytest.raises(KagedError) as gone:
            await readiness.ready(A)
    assert gone.value.code == "project_not_found"
