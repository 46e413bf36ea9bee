"""Grants and requests: who has which function, and what a refused one leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fakes.lua_lab import LuaLab
from kaged.kernel.net import parse_target
from kaged.lua.folder import read_folders
from kaged.lua.script import ScriptState
from requirements import requirement

DUMP = """
local names = {}
for k, v in pairs(kage) do
  if type(v) == 'table' then
    for j in pairs(v) do names[#names + 1] = k .. '.' .. j end
  else
    names[#names + 1] = k
  end
end
table.sort(names)
return names
"""
BASE = {
    "add_autocomplete_provider", "api_version", "clear_status", "config", "context_usage",
    "fs.read", "fs.write", "host_version", "http.delete", "http.get", "http.post",
    "json.decode", "json.encode", "log", "notify", "now_ms", "on", "on_terminal_input",
    "override_command", "plugin_config", "register_block_renderer", "register_command",
    "register_keybinding", "register_widget", "request_capabilities", "requires",
    "session.append_entry", "session.fork", "session.list", "session.set_label", "set_status",
    "sleep_ms", "store.delete", "store.get", "store.keys", "store.set", "ui.confirm",
    "ui.editor", "ui.input", "ui.notify", "ui.select", "ui.set_footer", "ui.set_header",
}  # fmt: skip
ASK = "local caps = kage.request_capabilities({'session_write', 'exec'})\n"


async def _names(lab: LuaLab, before: str = "", stem: str = "probe") -> set[str]:
    return set(await lab.eval(before + DUMP, stem))


@requirement("LC-GRANT-01", "LC-SESS-10", "LC-EXEC-08")
async def test_a_script_without_grants_finds_no_power_and_no_way_out(lab: LuaLab) -> None:
    (lab.root / "outside.txt").write_text("secret", encoding="utf-8")
    await lab.begin("hello")
    found = await lab.eval(
        """
        local function tries(...) local ok, e = pcall(...) return {ok, tostring(e)} end
        kage.session.fork()
        return {
          exec = type(kage.exec), call = tries(function() return kage.exec({cmd='id'}) end),
          entries = type(kage.session.entries), switch = type(kage.session.switch),
          fork_to = type(kage.session.fork_to), list = #kage.session.list(),
          up = tries(kage.fs.read, '../outside.txt'), abs = tries(kage.fs.read, '/etc/passwd'),
          io = type(io), execute = type(os.execute), require = type(require),
          load = type(load), package = type(package), dump = type(string.dump),
        }"""
    )
    for name in ("exec", "entries", "switch", "fork_to", "io", "execute", "require", "load"):
        assert found[name] == "nil", name
    assert (found["package"], found["dump"]) == ("nil", "nil")
    assert found["list"] == 1
    assert found["call"][0] is False
    assert "nil value" in found["call"][1]
    for name in ("up", "abs"):
        assert found[name][0] is False
        assert "secret" not in found[name][1]
    # The fork was made when the command had returned, and nobody went there.
    assert len(await lab.sessions.list()) == 2


@requirement("LC-GRANT-02", "LC-SAFE-02", "LC-REQ-04")
async def test_a_grant_reaches_one_script_and_no_other(lab: LuaLab) -> None:
    plain = await _names(lab, ASK, "bee")
    lab.grants["ant"] = ["session_write", "exec"]
    await lab.load(ant=ASK + "_G.stolen = kage.exec string.stolen = kage.exec")
    hunt = (
        ASK
        + """
        if caps.exec or kage.exec then return {'had it'} end
        local seen, found = {}, {}
        local function walk(value, path, depth)
          if depth > 6 or seen[value] then return end
          seen[value] = true
          if type(value) ~= 'table' then return end
          for k, v in pairs(value) do
            local name = tostring(k)
            if name:find('stolen') or name == 'exec' then found[#found+1] = path .. name end
            walk(v, path .. tostring(k) .. '.', depth + 1)
          end
        end
        walk(_G, '', 0)
        walk({getmetatable('')}, '', 0)
        if package or debug then found[#found+1] = 'package or debug' end
        return found"""
    )
    assert await lab.eval(hunt, "bee") in ([], {})
    assert await _names(lab, ASK, "bee") == plain
    assert set(lab.script("ant").active) == {"session_write", "exec"}
    assert not lab.script("bee").active


@requirement("LC-GRANT-03", "LC-GRANT-06", "LC-REQ-03")
@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("asked", [True, False])
async def test_a_power_needs_both_sides(lab: LuaLab, granted: bool, asked: bool) -> None:
    lab.grants["probe"] = ["exec"] if granted else []
    code = "local before = type(kage.exec)\n"
    code += "kage.request_capabilities({'exec'})\n" if asked else ""
    found = await lab.eval(code + "return {before, type(kage.exec)}")
    assert found == ["nil", "function" if granted and asked else "nil"]


@requirement("LC-GRANT-05")
async def test_the_name_of_the_file_is_the_name_of_the_grant(lab: LuaLab) -> None:
    lab.grants["rewind"] = ["exec"]
    code = "return kage.request_capabilities({'exec'}).exec"
    assert await lab.eval(code, "undo") is False
    (lab.scripts_dir / "undo.lua").unlink()
    assert await lab.eval(code, "rewind") is True


@requirement("LC-GRANT-07", "LC-SAFE-01")
async def test_the_two_powers_add_exactly_their_functions(lab: LuaLab) -> None:
    assert await _names(lab) == BASE
    lab.grants["other"] = ["session_write", "exec"]
    assert await _names(lab) == BASE
    lab.grants["probe"] = ["session_write", "exec"]
    assert await _names(lab) == BASE
    added = {"exec", "session.entries", "session.switch", "session.fork_to"}
    assert await _names(lab, ASK) == BASE | added


@requirement("LC-GRANT-08", "LC-REQ-01", "LC-REQ-02", "LC-REQ-07")
@pytest.mark.parametrize("one", ["session_write", "exec"])
async def test_a_grant_covers_its_name_only_and_the_answer_is_true(lab: LuaLab, one: str) -> None:
    lab.grants["probe"] = [one]
    lab.grants["other"] = ["session_write", "exec"]
    (lab.work / "x.txt").write_text("still", encoding="utf-8")
    found = await lab.eval(
        ASK
        + "return {caps, type(kage.exec), type(kage.session.entries), kage.fs.read('x.txt'),"
        + " type(kage.session.list)}"
    )
    assert found[0] == {"session_write": one == "session_write", "exec": one == "exec"}
    assert found[1] == ("function" if one == "exec" else "nil")
    assert found[2] == ("function" if one == "session_write" else "nil")
    assert found[3:] == ["still", "function"]


@asynccontextmanager
async def _web_server(answer: bytes) -> AsyncGenerator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(answer)}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@requirement("LC-GRANT-09")
async def test_an_ungranted_script_has_every_base_function(lab: LuaLab) -> None:
    await lab.begin("hello")
    async with _web_server(b"from the net") as port:
        lab.net = (parse_target(f"localhost:{port}"), parse_target(f"127.0.0.1:{port}"))
        lab.build()
        await lab.load(
            base=f"""
            turns, switches = 0, 0
            kage.request_capabilities({{}})
            kage.notify('loaded')
            kage.on('turn_end', function() turns = turns + 1 end)
            kage.on('session_before_switch', function() switches = switches + 1 end)
            kage.register_command{{name='all', description='', handler=function()
              kage.fs.write('made/by.txt', 'me')
              local web = kage.http.get('http://127.0.0.1:{port}/x')
              kage.session.fork()
              return {{structured = {{turns = turns, switches = switches,
                text = kage.fs.read('made/by.txt'), list = #kage.session.list(),
                body = web.body, status = web.status, kind = web.content_type}}}}
            end}}"""
        )
        session = await lab.current()
        lab.emit("turn.ended", session, index=1, had_tool_calls=False)
        await lab.runtime.drain()
        other = await lab.host_sessions.session("other")
        lab.host_sessions.navigation.request_switch(session, other)
        await lab.host_sessions.navigation.apply(session)
        found = await lab.run("all")
        values: Any = found.structured
        assert values["turns"] == values["switches"] == 1
        assert values["text"] == "me"
        assert (values["status"], values["body"]) == (200, "from the net")
        assert values["list"] == 2
        assert lab.notices() == ["loaded"]


async def test_http_to_a_place_that_no_rule_names_is_refused(lab: LuaLab) -> None:
    async with _web_server(b"secret") as port:
        found = await lab.eval(
            f"local ok, e = pcall(kage.http.get, 'http://127.0.0.1:{port}/') return {{ok, e}}"
        )
        assert found[0] is False
        assert "secret" not in found[1]
        other = await lab.eval("local ok, e = pcall(kage.http.get, 'file:///etc/passwd') return e")
        assert "only http" in other


@requirement("LC-REQ-05", "LC-SAFE-05")
async def test_a_misspelt_power_is_loud_and_others_load(lab: LuaLab) -> None:
    await lab.load(
        bad="kage.request_capabilities({'sesion_write'})",
        good="kage.register_command{name='ok', description='', handler=function() return 'y' end}",
    )
    assert lab.script("bad").state is ScriptState.FAILED
    assert any("bad" in one and "sesion_write" in one for one in lab.notices())
    assert (await lab.run("ok")).text == "y"
    found = await lab.eval(
        "local ok, e = pcall(kage.request_capabilities, {'sesion_write'}) return {ok, e}"
    )
    assert found[0] is False
    assert "sesion_write" in found[1]
    assert "session_write" in found[1]


@requirement("LC-AMB-03")
async def test_a_second_file_of_the_same_name_is_refused(lab: LuaLab, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rewind.lua").write_text(f"kage.notify('{folder}')", encoding="utf-8")
    found = read_folders([tmp_path / "one", tmp_path / "two"])
    assert len(found.scripts) == 1
    assert len(found.failed) == 1
    path, why = found.failed[0]
    assert {path, found.scripts[0].path} == {
        str(tmp_path / "one" / "rewind.lua"),
        str(tmp_path / "two" / "rewind.lua"),
    }
    assert found.scripts[0].path in why
    await lab.runtime.load(found, lab.parts(), lambda _: frozenset(), lambda _: {})
    assert [one.stem for one in lab.runtime.scripts] == ["rewind"]
    assert sum("came first" in one for one in lab.notices()) == 1


@requirement("LC-AMB-04")
async def test_asking_later_gives_the_same_answer_and_adds_up(lab: LuaLab) -> None:
    lab.grants["late"] = ["exec", "session_write"]
    lab.grants["mute"] = []
    await lab.load(
        late="""
        first = kage.request_capabilities({'exec'})
        kage.on('turn_end', function()
          again = kage.request_capabilities({'exec', 'session_write'})
        end)
        kage.register_command{name='late', description='', handler=function()
          return {structured = {first, again, type(kage.exec), type(kage.session.entries)}}
        end}""",
        mute="""kage.register_command{name='mute', description='', handler=function()
          return {structured = {type(kage.exec), type(kage.session.entries)}} end}""",
    )
    lab.emit("turn.ended", "ses_x", index=1)
    await lab.runtime.drain()
    found: Any = (await lab.run("late")).structured
    assert found == [
        {"exec": True}, {"exec": True, "session_write": True}, "function", "function",
    ]  # fmt: skip
    assert (await lab.run("mute")).structured == ["nil", "nil"]


@requirement("LC-AMB-16")
async def test_a_grant_taken_back_is_gone_after_the_reload(lab: LuaLab) -> None:
    lab.grants["probe"] = ["exec"]
    code = "kage.request_capabilities({'exec'}) return type(kage.exec)"
    assert await lab.eval(code) == "function"
    lab.grants["probe"] = []
    assert (await lab.run("eval")).structured == {"value": "function"}
    await lab.load()
    assert (await lab.run("eval")).structured == {"value": "nil"}


@requirement("LC-AMB-19")
async def test_every_newer_name_is_known_and_never_promised_in_vain(lab: LuaLab) -> None:
    names = ["context", "env", "net", "fs_write", "provider", "crypto"]
    listed = ", ".join(f"'{one}'" for one in names)
    code = f"return kage.request_capabilities({{{listed}}})"
    assert await lab.eval(code) == dict.fromkeys(names, False)
    lab.grants["probe"] = names
    lab.environ["COLOUR"] = "green"
    found = await lab.eval(
        f"local caps = kage.request_capabilities({{{listed}}})\n"
        "kage.fs.write('w.txt', 'w')\n"
        "return {caps, kage.env('COLOUR'), kage.env('NONE') == nil, kage.config().system_prompt}"
    )
    assert found[0] == {
        "context": True, "env": True, "net": True, "fs_write": True,
        "provider": False, "crypto": False,
    }  # fmt: skip
    assert found[1:] == ["green", True, "You help."]


@requirement("LC-AMB-17")
async def test_every_use_of_a_power_is_on_record(lab: LuaLab) -> None:
    lab.grants["probe"] = ["exec", "session_write"]
    session = await lab.begin("hello")
    other = await lab.host_sessions.session("other")
    await lab.eval(
        "kage.request_capabilities({'exec', 'session_write', 'crypto'})\n"
        "kage.exec{cmd='sh', args={'-c', 'echo output-text; exit 3'}}\n"
        f"kage.session.switch('{other}') return 1"
    )
    assert await lab.current() == other
    granted = lab.audited("lua.capability.granted")
    assert [(one["plugin"], one["capability"]) for one in granted] == [
        ("probe", "exec"),
        ("probe", "session_write"),
    ]
    assert [one["capability"] for one in lab.audited("lua.capability.refused")] == ["crypto"]
    (ran,) = lab.audited("lua.exec")
    assert (ran["plugin"], ran["cmd"], ran["args_count"], ran["exit_code"]) == ("probe", "sh", 2, 3)
    assert ran["duration_ms"] > 0
    assert "output-text" not in str(lab.events)
    (asked,) = lab.audited("lua.session.asked")
    (applied,) = lab.audited("lua.session.applied")
    assert asked["plugin"] == applied["plugin"] == "probe"
    assert asked["move"] == applied["move"] == "switch"
    await lab.load(guard="kage.on('session_before_switch', function() return {cancel='no'} end)")
    lab.host_sessions.navigation.request_switch(other, session, asked_by="lua:probe")
    await lab.host_sessions.navigation.apply(other)
    (vetoed,) = lab.audited("lua.session.vetoed")
    assert (vetoed["plugin"], vetoed["vetoed_by"]) == ("probe", "guard")
