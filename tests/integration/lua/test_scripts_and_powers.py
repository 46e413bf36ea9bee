"""Grants and requests: who has which function, and what a refused one leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fakes.lua_lab import LuaLab
from kaged.kernel.net import parse_target
from kaged.lua.folder import read_folders
from requirements import requirement


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


@requirement("LC-AMB-16")
async def test_a_grant_taken_back_is_gone_after_the_reload(lab: LuaLab) -> None:
    lab.grants["probe"] = ["exec"]
    code = "kage.request_capabilities({'exec'}) return type(kage.exec)"
    assert await lab.eval(code) == "function"
    lab.grants["probe"] = []
    assert (await lab.run("eval")).structured == {"value": "function"}
    await lab.load()
    assert (await lab.run("eval")).structured == {"value": "nil"}
