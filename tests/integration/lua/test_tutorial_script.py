"""The scripts of the tutorial do what the tutorial says, and the reference tells the truth."""

from __future__ import annotations

import re
from pathlib import Path

from fakes.lua_lab import LuaLab
from kaged.kernel.lua_powers import parse_powers
from kaged.lua.check import check_script
from kaged.lua.folder import ScriptFile
from kaged.lua.script import ScriptHost, ScriptParts
from kaged.lua.surface import SURFACE

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial" / "first-script.md"
BLOCKS = re.findall(r"<<'LUA'\n(.*?)^LUA$", TUTORIAL.read_text("utf-8"), re.DOTALL | re.MULTILINE)
NAMES = """
local names = {}
for k, v in pairs(kage) do
  if type(v) == 'table' then for j in pairs(v) do names[#names+1] = k .. '.' .. j end
  else names[#names+1] = k end
end
return names
"""


async def test_the_counter_of_the_tutorial_counts(lab: LuaLab) -> None:
    counter, _ = BLOCKS
    await lab.begin()
    await lab.load(counter=counter)
    assert lab.notices() == ["counter: ready"]
    assert (await lab.run("turns")).text == "0 turns"
    await lab.exchange("go", "done")
    assert (await lab.run("turns")).text == "1 turn"
    await lab.load()
    assert (await lab.run("turns")).text == "1 turn"


async def test_the_check_of_the_tutorial_says_what_is_printed_there(lab: LuaLab) -> None:
    def parts(host: ScriptHost) -> ScriptParts:
        made = lab.parts()
        return ScriptParts(made.spawner, made.clock, made.limits, host, made.host_version)

    counter = await check_script(
        ScriptFile("counter", "counter.lua", BLOCKS[0]), frozenset(), parts
    )
    assert (counter["ok"], counter["events"]) == (True, ["turn_end"])
    assert counter["notices"] == ["counter: ready"]
    file = ScriptFile("peek", "peek.lua", BLOCKS[1])
    report = await check_script(file, frozenset(), parts)
    assert report["ok"] is True
    assert report["capabilities"] == {"exec": False}
    commands = report["commands"]
    assert isinstance(commands, list)
    assert [one["name"] for one in commands if isinstance(one, dict)] == ["peek"]


async def test_the_fence_of_the_tutorial_stands_until_the_grant(lab: LuaLab) -> None:
    lab.repository()
    await lab.load(peek=BLOCKS[1])
    refused = await lab.run("peek")
    assert refused.is_error
    assert "grant exec" in str(refused.text)
    lab.grants["peek"] = ["exec"]
    await lab.load()
    assert "## main" in str((await lab.run("peek")).text)


async def test_the_reference_lists_exactly_what_a_script_finds(lab: LuaLab) -> None:
    powers = ["session_write", "exec", "env", "net", "crypto", "provider"]
    assert parse_powers(powers)
    lab.grants["probe"] = powers
    asked = ", ".join(f"'{one}'" for one in powers)
    found = await lab.eval(f"kage.request_capabilities({{{asked}}})\n{NAMES}")
    assert sorted(found) == sorted(one.name for one in SURFACE)
    plain = await lab.eval(NAMES)
    assert sorted(plain) == sorted(one.name for one in SURFACE if one.power is None)
