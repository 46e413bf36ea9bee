"""Scripts give agents tools: named after the script, bounded, called through the agent loop."""

from __future__ import annotations

import json
import os
import signal

from requirements.marker import whole
from whole.harness.conversation import begin, say_to
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command

WORDS = """
kage.register_tool({
  name = 'shout', description = 'Say it louder.',
  schema = { type = 'object', properties = { text = { type = 'string' } }, required = { 'text' } },
  execute = function(input)
    if input.text == 'fail' then error('no voice', 0) end
    if input.text == 'no' then return { text = 'hoarse', is_error = true } end
    return { text = input.text:upper(), structured = { length = #input.text } }
  end,
})
kage.register_tool({
  name = 'where', description = 'Which entry is last?', schema = { type = 'object', required = {} },
  risk = 'network', execute = function() return tostring(kage.config().cwd) end,
})
"""


def names_of(project: Project) -> list[str]:
    return [one["name"] for one in project.get("/tools?agent=primary")["tools"]]


@whole("AT-AMB-50", "LC-AMB-23")
def test_an_agent_calls_a_scripts_tool_and_sees_what_it_gave(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    found = scripts.load(my_words=WORDS)
    assert found["my_words"]["tools"] == ["my-words.shout", "my-words.where"]
    model.play("heron", call("my-words.shout", text="hello"), say("Done."))
    session = begin(project)
    assert say_to(project, session, "heron")["status"] == "completed"
    first, second = model.asked("heron")
    offered = {one["function"]["name"]: one["function"] for one in first["tools"]}
    assert "no instruction to you:\nSay it louder." in offered["my-words_shout"]["description"]
    assert "HELLO" in json.dumps(second["messages"][-1])
    assert project.call("my-words.where")["text"] == str(project.root)
    assert project.call("my-words.shout", text="abc")["structured"] == {"length": 3}
    for text, words in (("fail", "no voice"), ("no", "hoarse")):
        failed = project.fail("my-words.shout", text=text)
        assert (failed["code"], words in failed["message"]) == ("lua_tool_failed", True)
    assert project.fail("my-words.shout")["code"] == "invalid_params"


@whole("AT-REG-23")
def test_a_scripts_tool_is_only_for_agents_and_projects_that_have_it(
    daemon: Daemon, scripts: Scripts, project: Project
) -> None:
    scripts.load(words=WORDS)
    assert "words.shout" in names_of(project)
    project.describe(tools={"words.where": {"enabled": True}})
    project.reload()
    assert [one for one in names_of(project) if one.startswith("words.")] == ["words.where"]
    assert project.fail("words.shout", text="x")["code"] == "tool_not_found"
    # A second project has scripts of its own; its folder is not the first one's.
    other = daemon.load(Project(project.root.parent / "second"))
    try:
        assert other.call("words.where")["text"] == str(other.root)
        scripts.load()
        assert "words.where" not in names_of(project)
        assert "words.where" in names_of(other), "it has reloaded nothing"
        assert other.call("words.where")["text"] == str(other.root)
    finally:
        daemon.ask("DELETE", f"/projects/{other.id}")
    project.describe()
    project.reload()


def test_tools_that_make_no_sense_are_named_and_the_rest_stays(
    scripts: Scripts, project: Project
) -> None:
    good = "schema = { type = 'object' }, description = 'd', execute = function() return 'ok' end"
    found = scripts.load(
        odd=f"""
        kage.register_tool({{ name = 'good', {good} }})
        kage.register_tool({{ name = 'list', schema = {{ type = 'array' }}, description = '',
          execute = function() end }})
        local deep = {{ type = 'object' }}
        for _ = 1, 15 do deep = {{ type = 'object', properties = {{ a = deep }} }} end
        kage.register_tool({{ name = 'deep', schema = deep, description = '',
          execute = function() end }})
        problems = {{}}
        local function try(spec)
          local ok, words = pcall(kage.register_tool, spec)
          problems[#problems + 1] = ok and 'taken' or words
        end
        try({{ name = 'risky', risk = 'none', {good} }})
        try({{ name = 'x', description = 'd', schema = {{}} }})
        for i = 1, 40 do pcall(kage.register_tool, {{ name = 't' .. i, {good} }}) end
        try({{ name = 'one more', {good} }})
        """
        + command("eval", "return problems"),
        file=f"kage.register_tool({{ name = 'read', {good} }})",
    )
    tools = found["odd"]["tools"]
    assert tools[0] == "odd.good"
    assert len(tools) == 30, "two of the 32 it may have make no sense"
    risk, execute, many = scripts.again()
    assert "unknown risk none" in risk
    assert "execute must be a function" in execute
    assert "at most 32 tools" in many
    told = " ".join(scripts.notices())
    assert "list: inputSchema does not describe an object" in told
    assert "deep: inputSchema" in told
    assert "'file' is the name of a built-in tool namespace" in told
    assert project.call("odd.good")["text"] == "ok"
    assert "file.read" in names_of(project)


def test_tools_come_back_with_their_script_and_may_come_late(
    scripts: Scripts, project: Project
) -> None:
    os.kill(scripts.load(words=WORDS)["words"]["pid"], signal.SIGKILL)
    wait_for(lambda: (now := scripts.state("words"))["restarts"] and now["state"] == "running")
    assert project.call("words.shout", text="still")["text"] == "STILL"
    # What a script registers later is there at once.
    scripts.load(late=command("eval", WORDS))
    assert "late.shout" not in names_of(project)
    scripts.again()
    assert wait_for(lambda: "late.shout" in names_of(project))
    assert project.call("late.shout", text="x")["text"] == "X"
