"""Events, transforms, commands and dialogs, as scripts of both vintages use them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fakes.lua_lab import PATIENCE_S, LuaLab
from kaged.base import JsonObject
from kaged.inbox import AnsweredBy
from kaged.lua.script import ScriptState
from kaged.sessions.transforms import ContextDraft
from raising import raises_code


async def test_a_transform_gets_real_tables_and_an_empty_list_stays_one(lab: LuaLab) -> None:
    await lab.load(
        shape="""
        kage.on('transform_context', function(list)
          assert(type(list) == 'table' and #list == 2 and math.type(list[1].n) == 'integer')
          assert(list[1].gone == nil)
          list[2].content = {}
          return list
        end)""",
        void="kage.on('before_provider_request', function(r) r.messages = {} return r end)",
    )
    found: Any = await lab.runtime.transform(
        "transform_context", [{"n": 3, "gone": None}, {"content": ["x"]}]
    )
    assert found == [{"n": 3}, {"content": []}]
    request: Any = await lab.runtime.transform("before_provider_request", {"messages": [{"a": 1}]})
    assert request == {"messages": []}


async def test_changing_without_returning_changes_nothing_and_an_error_is_skipped(
    lab: LuaLab,
) -> None:
    await lab.load(
        a="kage.on('transform_context', function(l) l[1].x = 'changed' end)",
        b="kage.on('transform_context', function() error('broken') end)",
        c="kage.on('transform_context', function(l) l[1].y = 1 return l end)",
    )
    assert await lab.runtime.transform("transform_context", [{"x": "old"}]) == [
        {"x": "old", "y": 1}
    ]
    assert any("broken" in one for one in lab.notices())


async def test_a_run_reaches_scripts_as_events_in_order(lab: LuaLab) -> None:
    await lab.begin()
    await lab.load(
        watch="""
        seen = {}
        for _, name in ipairs({'agent_start', 'turn_end', 'message_end', 'agent_end'}) do
          kage.on(name, function(e)
            seen[#seen+1] = name .. (e.ok ~= nil and tostring(e.ok) or '')
              .. (e.index and tostring(e.index) or '')
          end)
        end
        local off = kage.on('turn_end', function() seen[#seen+1] = 'never' end)
        off() off()
        kage.on('no_such_event', function() end)
        kage.register_command{name='seen', description='', handler=function()
          return table.concat(seen, ' ') end}"""
    )
    await lab.exchange("go", "done")
    assert (await lab.run("seen")).text == "agent_start message_end turn_end1 agent_endtrue"


async def test_scripts_see_and_change_what_goes_to_the_model(lab: LuaLab) -> None:
    session = await lab.begin("hello")
    await lab.host_sessions.service.begin_run(session)
    await lab.load(
        add="""kage.on('transform_context', function(l)
          l[#l+1] = {role = 'user', content = {{type = 'text', text = 'added'}}} return l end)"""
    )
    draft = ContextDraft([{"role": "user", "content": []}])
    found = await lab.transforms.context(session, draft)
    assert [one["content"] for one in found.messages] == [[], [{"type": "text", "text": "added"}]]
    await lab.load(add="kage.on('transform_context', function() return 'nonsense' end)")
    assert (await lab.transforms.context(session, draft)).messages == draft.messages


@pytest.mark.parametrize("strict", [False, True])
async def test_conversation_text_can_be_kept_for_granted_scripts(lab: LuaLab, strict: bool) -> None:
    lab.strict_context = strict
    lab.grants["granted"] = ["context"]
    code = "kage.request_capabilities({'context'})\nkage.on('transform_context', function() end)"
    await lab.load(granted=code, plain=code)
    assert "transform_context" in lab.script("granted").registered.events
    assert ("transform_context" in lab.script("plain").registered.events) is not strict
    assert lab.script("plain").state is ScriptState.RUNNING


COMMANDS = """
kage.register_command{name='echo-args', description='d', aliases={'ea'},
  args={{name='how', kind='choice', choices={'a', 'b'}}, {name='on', kind='flag', optional=true},
        {name='rest', kind='text', optional=true}},
  handler=function(raw, ctx, parsed)
    return {text = raw, structured = {parsed = parsed, ctx = ctx == nil}} end}
kage.register_command{name='nothing', description='', handler=function() end}
kage.register_command{name='number', description='', handler=function() return 42 end}
kage.register_command{name='fails', description='', handler=function() error('oh no') end}
kage.register_command{name='yields', description='', handler=function() coroutine.yield(1) end}
kage.register_command{name='raw', description='', handler=function()
  return {text = '\\255\\254', is_error = true} end}
kage.override_command{name='help', description='', handler=function() return 'mine' end}
"""


async def test_commands_parse_their_arguments_and_their_answers_are_read(lab: LuaLab) -> None:
    await lab.load(cmd=COMMANDS)
    found = await lab.run("ea", " b on some more ")
    assert found.structured == {
        "parsed": {"how": "b", "on": True, "rest": "some more"},
        "ctx": True,
    }
    assert (await lab.run("echo-args", "a")).structured == {"parsed": {"how": "a"}, "ctx": True}
    missing = await lab.run("echo-args", "")
    assert missing.is_error
    assert missing.text == "echo-args: missing required arg how"
    assert "must be one of a, b" in str((await lab.run("echo-args", "z")).text)
    assert (await lab.run("nothing")).text is None
    assert (await lab.run("number")).text == "42"
    failed = await lab.run("fails")
    assert failed.is_error
    assert "plugin command fails: cmd:" in str(failed.text)
    assert "oh no" in str(failed.text)
    assert (await lab.run("yields")).is_error
    raw = await lab.run("raw")
    assert (raw.text, raw.is_error) == ("��", True)
    assert (await lab.run("help")).text == "mine"
    with raises_code("lua_command_not_found"):
        await lab.run("unknown")


DIALOGS = """
kage.register_command{name='ask', description='', handler=function()
  local picked = kage.ui.select('Pick', {'a', {label = 'B', value = 7, detail = 'd'}})
  local sure = kage.ui.confirm('Sure?', 'm')
  local text = kage.ui.input('Text', 'hint')
  local long = kage.ui.editor('Edit', 'seed')
  return {structured = {tostring(picked), tostring(sure), tostring(text), tostring(long)}}
end}"""


async def test_dialogs_in_sequence_and_without_anybody_in_front(lab: LuaLab) -> None:
    await lab.load(ask=DIALOGS)
    assert (await lab.run("ask")).structured == ["nil", "false", "nil", "nil"]
    dialogs = lab.runtime.dialogs
    shown: list[dict[str, Any]] = []

    async def person() -> None:
        for answer in (2, True, "typed", "edited"):
            (dialog,) = await dialogs.wait(PATIENCE_S)
            shown.append(dict(dialog))
            await dialogs.answer(str(dialog["id"]), answer, AnsweredBy("operator"))

    async with asyncio.timeout(PATIENCE_S):
        found, _ = await asyncio.gather(lab.run("ask", interactive=True), person())
    assert found.structured == ["7", "true", "typed", "edited"]
    assert [one["kind"] for one in shown] == ["select", "confirm", "input", "editor"]
    assert shown[0]["items"] == [{"label": "a"}, {"label": "B", "detail": "d"}]


async def test_drawing_completion_and_keys(lab: LuaLab) -> None:
    await lab.load(
        ui="""
        kage.ui.set_header(function(width) return {'one', {text = 'two', bold = true, fg = 'red'},
          {{text = 'a'}, {text = 'b', dim = 1}}} end)
        kage.register_block_renderer('note', function(block) return block.text or block.title end)
        kage.register_block_renderer('bad', function() error('x') end)
        kage.add_autocomplete_provider{name = 'p', complete = function(prefix)
          return {{value = prefix .. '1'}, {label = 'dropped'}} end}
        local off = kage.on_terminal_input(function(key) return key.char == 'x' end)
        kage.register_keybinding({key = 'ctrl+k', description = 'd'},
          function() return 'pressed' end)
        """
    )
    ask = lab.runtime.ask_ui
    header = await ask("ui", "render", {"what": "header", "width": 80})
    assert header["lines"] == [
        [{"text": "one"}],
        [{"text": "two", "bold": True, "fg": "red"}],
        [{"text": "a"}, {"text": "b"}],
    ]
    assert (await ask("ui", "render", {"what": "footer", "width": 80}))["lines"] == []
    block: JsonObject = {"what": "block", "kind": "note", "block": {"title": "t"}}
    assert (await ask("ui", "render", block))["lines"] == [[{"text": "t"}]]
    assert "error" in await ask("ui", "render", {"what": "block", "kind": "bad", "block": {}})
    done = await ask("ui", "complete", {"prefix": "a", "text": "a", "cursor": 1})
    assert done["items"] == [{"value": "a1", "label": "a1"}]
    assert (await ask("ui", "input", {"key": {"code": "char", "char": "x"}}))["consumed"] is True
    assert (await ask("ui", "input", {"key": {"code": "char", "char": "y"}}))["consumed"] is False
    assert (await ask("ui", "key", {"key": "ctrl+k"}))["text"] == "pressed"


async def test_what_a_script_keeps_is_private_and_outlives_it(lab: LuaLab) -> None:
    keep = "kage.store.set('k', {1, 2, {x = 'y'}}) return kage.store.keys()"
    assert await lab.eval(keep, "one") == ["k"]
    assert await lab.eval("return kage.store.keys()", "two") == []
    lab.build()
    assert await lab.eval("return kage.store.get('k')", "one") == [1, 2, {"x": "y"}]
    assert await lab.eval("kage.store.delete('k') return kage.store.keys()", "one") == []


async def test_small_things(lab: LuaLab) -> None:
    lab.config["probe"] = {"colour": "red", "list": []}
    found = await lab.eval(
        """
        kage.requires({api = 2})
        return {kage.plugin_config(), math.type(kage.now_ms()), kage.api_version(),
          kage.json.decode('{"a":[1,2.5,"\\\\u00e9",null,true]}'), kage.json.encode({a = {1}}),
          pcall(kage.requires, {api = 99}), os.date('%Y') ~= nil, kage.nothing == nil,
          select('#', kage.sleep_ms(1)), pcall(kage.sleep_ms, 501)}"""
    )
    assert found[0] == {"colour": "red", "list": []}
    assert found[1:3] == ["integer", 2]
    assert found[3] == {"a": [1, 2.5, "é"]} or found[3]["a"][:3] == [1, 2.5, "é"]
    assert found[4] == '{"a":[1]}'
    assert found[5] is False


async def test_a_script_that_fails_leaves_no_registration_and_others_load(lab: LuaLab) -> None:
    await lab.load(
        bad="kage.register_command{name='half', description='', handler=print}\nerror('late')",
        syntax="return 1 +",
        early="kage.notify('off') return",
    )
    states = {one.stem: one.state.value for one in lab.runtime.scripts}
    assert states == {"bad": "failed", "syntax": "failed", "early": "running"}
    assert lab.runtime.commands() == []
    assert any("bad:2: late" in one for one in lab.notices())
