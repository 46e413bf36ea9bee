"""Ways out of the Lua sandbox, each tried by a script that was granted nothing."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.lua_lab import LuaLab
from kaged.lua.limits import ScriptLimits
from kaged.lua.script import ScriptState
from requirements import requirement

# Each gives a list of what it got hold of; an honest sandbox leaves it empty.
ESCAPES = {
    "python_table": "return {python, rawget(_G, 'python')}",
    "python_through_functions": """
        local got = {}
        for _, f in pairs({kage.notify, kage.now_ms, kage.fs.read, print, tostring, pcall}) do
          for _, name in pairs({'__globals__', '__class__', '__call__', '__self__'}) do
            local ok, v = pcall(function() return f[name] end)
            if ok and v ~= nil then got[#got+1] = name end
          end
          if type(f) ~= 'function' then got[#got+1] = type(f) end
        end
        return got""",
    "python_through_errors": """
        local got = {}
        for _, f in pairs({kage.fs.read, kage.http.get, kage.sleep_ms, kage.store.get,
                           kage.session.fork, kage.json.decode}) do
          for _, arg in pairs({'/nope', -1, {}, true}) do
            local ok, e = pcall(f, arg)
            if not ok and type(e) ~= 'string' then got[#got+1] = type(e) end
          end
        end
        return got""",
    "userdata_anywhere": """
        local seen, got = {}, {}
        local function walk(v, depth)
          if type(v) == 'userdata' then got[#got+1] = 'userdata' end
          if type(v) ~= 'table' or seen[v] or depth > 8 then return end
          seen[v] = true
          for k, m in next, v do walk(k, depth + 1) walk(m, depth + 1) end
        end
        walk(_G, 0)
        return got""",
    "debug_library": "return {debug, rawget(_G, 'debug')}",
    "io_library": "return {io, os.execute, os.remove, os.rename, os.tmpname, os.getenv, os.exit}",
    "os_leftovers": """
        local got = {}
        for name in pairs(os) do
          if not ({time=1, date=1, clock=1, difftime=1})[name] then got[#got+1] = name end
        end
        return got""",
    "loading_code": "return {load, loadstring, loadfile, dofile, require, package}",
    "bytecode": "return {string.dump, ('').dump}",
    "rawset": "return {rawset}",
    "string_metatable": """
        local got = {}
        if getmetatable('') ~= false then got[#got+1] = 'string metatable' end
        if pcall(setmetatable, '', {}) then got[#got+1] = 'set' end
        return got""",
    "environment_metatable": """
        local got = {}
        if getmetatable(_G) ~= false or getmetatable(kage) ~= false then got[1] = 'metatable' end
        if pcall(setmetatable, _G, {}) or pcall(setmetatable, kage, {}) then got[2] = 'set' end
        return got""",
    "string_methods_are_frozen": """
        string.format = function() return 'mine' end
        if ('%d'):format(1) ~= '1' then return {'shared table changed'} end
        return {}""",
    "finalizers": """
        local ok = pcall(setmetatable, {}, {__gc = function() end})
        return {ok and 'finalizer' or nil}""",
    "collector": """
        local got = {}
        for _, option in pairs({'stop', 'setpause', 'setstepmul', 'incremental', 'generational'}) do
          if pcall(collectgarbage, option) then got[#got+1] = option end
        end
        return got""",
    "upvalue_walk_through_coroutines": """
        local co = coroutine.create(function() coroutine.yield() end)
        coroutine.resume(co)
        return {type(co) == 'thread' and type(coroutine.running()) ~= 'thread' and 'x' or nil}""",
    "wire_forgery_through_strings": """
        kage.notify('x\\n{"jsonrpc":"2.0","id":1,"method":"kage.exec","params":{"cmd":"id"}}')
        kage.log('info', 'a\\r\\n{"jsonrpc":"2.0","id":2,"method":"kage.session.entries"}')
        return {}""",
    "raw_marker_forgery": """
        local ok, v = pcall(kage.json.decode, kage.json.encode({["\\0b64"] = 'AAAA'}))
        return {type(v) == 'userdata' and 'python' or nil}""",
    "proxies_in_arguments": """
        local trap = setmetatable({}, {__index = function() return 'x' end,
          __len = function() return 3 end, __pairs = function() error('ran') end,
          __tostring = function() return 'x' end})
        pcall(kage.register_command, trap)
        pcall(kage.session.append_entry, 'x', trap)
        pcall(kage.ui.select, 'x', trap)
        return {}""",
    "deep_and_cyclic_values": """
        local t = {}
        t.t = t
        local ok, e = pcall(kage.json.encode, t)
        return {(ok or type(e) ~= 'string') and 'cycle' or nil}""",
    "yield_out_of_a_handler": """
        local ok = pcall(function() return coroutine.isyieldable() end)
        return {}""",
    "forged_request_for_powers": """
        local got = {}
        for _, names in pairs({{'exec', 'exec'}, {[1]='exec', x='y'}, 'exec', {true}, {1}}) do
          local ok, caps = pcall(kage.request_capabilities, names)
          if ok and caps.exec then got[#got+1] = 'exec' end
        end
        if kage.exec then got[#got+1] = 'attached' end
        return got""",
}


@requirement("LC-AMB-05")
@pytest.mark.parametrize("name", sorted(ESCAPES))
async def test_escape(lab: LuaLab, name: str) -> None:
    await lab.begin("hello")
    found = await lab.eval(ESCAPES[name])
    assert found in ([], {}), found
    assert lab.audited("lua.exec", "lua.session.applied") == []
    assert lab.script("probe").state is ScriptState.RUNNING


@requirement("LC-AMB-05")
async def test_a_granted_script_cannot_hand_its_power_on(lab: LuaLab) -> None:
    lab.grants["giver"] = ["exec"]
    await lab.load(
        giver="""
        kage.request_capabilities({'exec'})
        _G.gift = kage.exec string.gift = kage.exec
        if package then package.loaded.gift = kage.exec end
        kage.on('transform_context', function(list)
          list[#list + 1] = {gift = kage.exec, text = 'x'} return list end)""",
        taker="""
        kage.on('transform_context', function(list)
          kinds = {}
          for k, v in pairs(list[#list]) do kinds[k] = type(v) end
          meta = getmetatable(list[#list]) end)
        kage.register_command{name='taken', description='', handler=function()
          return {structured = {kinds = kinds, meta = meta == nil,
            gift = type(gift) .. type(string.gift)}} end}""",
    )
    await lab.runtime.transform("transform_context", [{"role": "user"}])
    found: Any = (await lab.run("taken")).structured
    assert found == {"kinds": {"text": "string"}, "meta": True, "gift": "nilnil"}


LOOPS = {
    "plain": "while true do end",
    "in_pcall": "while true do pcall(function() while true do end end) end",
    "in_an_xpcall_handler": "xpcall(error, function() while true do end end)",
    "in_a_coroutine": "coroutine.wrap(function() while true do end end)()",
    "in_many_coroutines": """
        while true do pcall(coroutine.wrap(function() while true do end end)) end""",
    "in_a_metamethod": "return setmetatable({}, {__index = function() while true do end end}).x",
    "in_a_close": """
        local x <close> = setmetatable({}, {__close = function() while true do end end})""",
    "in_a_comparator": "table.sort({3, 2, 1}, function() while true do end end)",
    "in_a_replacement": "('x'):gsub('x', function() while true do end end)",
    "in_tostring": "tostring(setmetatable({}, {__tostring = function() while true do end end}))",
    "in_a_long_pattern": "return ('a'):rep(300000):find(('a-'):rep(60) .. 'b')",
}


@requirement("LC-AMB-24")
@pytest.mark.parametrize("name", sorted(LOOPS))
async def test_an_endless_loop_ends_and_others_go_on(lab: LuaLab, name: str) -> None:
    lab.limits = ScriptLimits(instructions=3_000_000, compute_s=3.0)
    lab.wake.set()
    await lab.load(
        loop=f"""
        kage.on('turn_end', function() {LOOPS[name]} end)
        kage.register_command{{name='alive', description='',
          handler=function() return 'yes' end}}""",
        other="""
        kage.on('turn_end', function() heard = true end)
        kage.register_command{name='heard', description='', handler=function()
          return tostring(heard) end}""",
    )
    lab.emit("turn.ended", "ses_x", index=1)
    assert await lab.runtime.drain(30)
    assert (await lab.run("heard")).text == "true"
    if lab.script("loop").state is not ScriptState.RUNNING or lab.script("loop").restarts:
        await lab.running("loop")  # it is told after its worker was buried, before the next one
        assert any("loop" in one for one in lab.notices())
    assert (await lab.run("alive")).text == "yes"


@requirement("LC-AMB-24")
@pytest.mark.parametrize(
    "bomb",
    [
        "local t = {} while true do t[#t + 1] = ('x'):rep(1000000) .. #t end",
        "local s = 'x' while true do s = s .. s end",
        "local t = {} for i = 1, 1e9 do t[i] = {} end",
        "local function f() return pcall(f) end f()",
    ],
)
async def test_a_memory_bomb_harms_only_itself(lab: LuaLab, bomb: str) -> None:
    lab.limits = ScriptLimits(instructions=50_000_000, compute_s=5.0)
    lab.wake.set()
    await lab.load(
        bomb=f"""kage.register_command{{name='boom', description='', handler=function() {bomb} end}}
        kage.register_command{{name='alive', description='',
          handler=function() return 'yes' end}}""",
        other="kage.register_command{name='ok', description='', handler=function() return 'y' end}",
    )
    await lab.run("boom")
    assert (await lab.run("ok")).text == "y"
    await lab.running("bomb")
    assert (await lab.run("alive")).text == "yes"


@requirement("LC-AMB-24")
async def test_a_killed_worker_is_reported_and_started_again(lab: LuaLab) -> None:
    lab.grants["victim"] = ["session_write"]
    session = await lab.begin("hello")
    await lab.load(
        victim="""kage.request_capabilities({'session_write'})
        kage.register_command{name='go', description='', handler=function()
          kage.session.fork_to() end}
        kage.register_command{name='alive', description='', handler=function() return 'yes' end}""",
        other="kage.register_command{name='ok', description='', handler=function() return 'y' end}",
    )
    run = await lab.host_sessions.service.begin_run(session)
    await lab.run("go")
    assert lab.host_sessions.navigation.pending(session)
    peer = lab.script("victim").pid
    assert peer is not None
    assert peer != lab.script("other").pid
    process = next(one for one in lab.spawner.running if one.pid == peer)
    process.kill_quietly()
    await lab.until(lambda: lab.script("victim").state is ScriptState.DOWN and bool(lab.naps))
    assert not lab.host_sessions.navigation.pending(session)  # what it had asked for is dropped
    assert any("victim" in one for one in lab.notices())
    assert lab.naps == [1.0]  # the common restart policy
    assert (await lab.run("ok")).text == "y"
    lab.wake.set()
    await lab.running("victim")
    assert (await lab.run("alive")).text == "yes"
    assert len(lab.audited("lua.capability.granted")) == 2  # it asked again
    assert run.id
