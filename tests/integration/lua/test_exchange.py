"""Scripts are exchanged in one step: at every moment the old ones or the new ones guard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fakes.lua_lab import PATIENCE_S, LuaLab

ASK = "kage.request_capabilities({'exec', 'session_write'})\n"
GUARD = """
kage.on('session_before_switch', function() return {cancel = 'NAME'} end)
kage.on('transform_context', function() return {{content = 'NAME'}} end)
kage.on('should_stop_after_turn', function() return true end)
"""
SLOW = ASK + "kage.exec{cmd='sleep', args={'0.3'}}\n"


async def _while_loading(lab: LuaLab, check: Callable[[], Awaitable[None]], **sources: str) -> int:
    """Load scripts and make a check over and over meanwhile; returns how often it was made."""
    checks = 0
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(lab.load(**sources))
        while not loading.done():
            await check()
            await asyncio.sleep(0)
            checks += 1
    return checks


async def test_nothing_slips_by_while_scripts_are_loaded_anew(lab: LuaLab) -> None:
    lab.grants["guard"] = ["exec"]
    await lab.load(guard=GUARD.replace("NAME", "old"))

    async def check() -> None:
        decided = await lab.runtime.decide("session_before_switch", "anywhere")
        assert decided.cancel in {"old", "new"}
        shown = await lab.runtime.transform("transform_context", [{"content": "key"}])
        assert shown in ([{"content": "old"}], [{"content": "new"}])
        assert await lab.runtime.predicate("should_stop_after_turn", {})

    assert await _while_loading(lab, check, guard=SLOW + GUARD.replace("NAME", "new")) > 1
    assert (await lab.runtime.decide("session_before_switch", "anywhere")).cancel == "new"


async def test_what_an_old_script_had_begun_is_put_to_the_new_one(lab: LuaLab) -> None:
    lab.grants["guard"] = ["exec"]
    waits = """
kage.on('transform_context', function()
  kage.exec{cmd='sleep', args={'20'}}
  return {{content = 'old'}}
end)
"""
    await lab.load(guard=ASK + waits)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        passing = group.create_task(lab.runtime.transform("transform_context", [{"content": "k"}]))
        await asyncio.sleep(0)
        await lab.load(guard=GUARD.replace("NAME", "new"))
    assert passing.result() == [{"content": "new"}]


async def test_a_script_that_cannot_be_loaded_anew_leaves_no_gap_before_it_is_shown(
    lab: LuaLab,
) -> None:
    await lab.load(guard=GUARD.replace("NAME", "old"))

    async def check() -> None:
        decided = await lab.runtime.decide("session_before_switch", "anywhere")
        assert decided.cancel == "old" or lab.script("guard").state == "failed"

    await _while_loading(lab, check, guard="nonsense(")
    assert any("guard" in one for one in lab.notices())


async def test_a_move_that_a_script_asks_for_at_load_is_made_when_it_is_in_force(
    lab: LuaLab,
) -> None:
    lab.grants["mover"] = ["session_write"]
    first = await lab.begin("one")
    made = await lab.host_sessions.transcript.fork(first)
    moved = asyncio.Event()
    lab.host_sessions.lifecycle.subscribe(
        lambda event: moved.set() if event.name == "session.switched" else None
    )
    await lab.load(
        mover="kage.request_capabilities({'session_write'})\n"
        f"assert(#kage.session.list() == 2)\nkage.session.switch('{made.id}')\n"
    )
    async with asyncio.timeout(PATIENCE_S):
        await moved.wait()
    assert await lab.current() == made.id
