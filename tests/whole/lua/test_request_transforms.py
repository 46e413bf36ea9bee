"""Scripts change what goes to the model, in the shapes that scripts of other hosts expect.

The payloads are those of the agent loop; what counts is what the model server was asked.
"""

from __future__ import annotations

import json
from typing import Any

from requirements.marker import whole
from whole.harness.conversation import begin, say_to
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts

# Walks blocks as foreign scripts do: a content that is text would pass it by in silence.
SCRUB = """
local function scrub(text) return (text:gsub('sk%-%w+', '[key]')) end
kage.on('transform_context', function(messages)
  for _, message in ipairs(messages) do
    for _, block in ipairs(message.content) do
      if block.type == 'text' then block.text = scrub(block.text) end
      if block.type == 'tool_result_block' then block.output = scrub(block.output) end
    end
  end
  return messages
end)
"""
# The later vintage asks for the power first, and changes the request as a whole.
BRIEF = """
kage.request_capabilities({'context'})
kage.on('before_provider_request', function(request)
  kage.notify(request.model .. ' ' .. #request.messages .. ' ' .. request.messages[1].role
    .. ' ' .. request.tools[1].name .. ' ' .. type(request.tools[1].input_schema))
  request.system = (request.system or '') .. '\\nAnswer in one word.'
  local kept = {}
  for _, tool in ipairs(request.tools) do
    if not tool.name:find('shell') then kept[#kept + 1] = tool end
  end
  request.tools = kept
  return request
end)
"""


def system_of(asked: dict[str, Any]) -> list[str]:
    return [one["content"] for one in asked["messages"] if one["role"] == "system"]


def tools_of(asked: dict[str, Any]) -> list[str]:
    return [one["function"]["name"] for one in asked.get("tools", [])]


@whole("LC-AMB-23")
def test_a_script_that_walks_blocks_scrubs_what_people_and_tools_say(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    project.write("notes.txt", "the other key is sk-fromafile99\n")
    scripts.load(scrub=SCRUB)
    model.play("dugong", call("file.read", path="notes.txt"), say("Seen."))
    session = begin(project)
    assert say_to(project, session, "dugong: my key is sk-typed1234")["status"] == "completed"
    first, second = model.asked("dugong")
    assert "sk-" not in json.dumps([first["messages"], second["messages"]])
    assert "my key is [key]" in json.dumps(first["messages"])
    assert "the other key is [key]" in json.dumps(second["messages"])
    assert "sk-" in json.dumps(project.get(f"/sessions/{session}/entries")), "stored as it was said"


@whole("LC-AMB-23")
def test_a_script_changes_the_system_prompt_and_leaves_out_tools_of_one_request(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(brief=["context"])
    scripts.load(brief=BRIEF, scrub=SCRUB)
    model.play("manatee one", say("Yes."))
    model.play("manatee two", say("Yes."))
    session = begin(project)
    assert say_to(project, session, "manatee one")["status"] == "completed"
    (asked,) = model.asked("manatee one")
    (system,) = system_of(asked)
    assert system.endswith("\nAnswer in one word.")
    assert len(system) > len("\nAnswer in one word."), "what it was is still there"
    names = tools_of(asked)
    assert names
    assert not [one for one in names if "shell" in one]
    (said,) = scripts.notices()
    alias, count, role, tool, kind = said.split()
    assert (alias, count, role, kind) == ("default", "1", "user", "table")
    assert tool
    # The next request is made anew, from what is stored.
    scripts.load(scrub=SCRUB)
    assert say_to(project, session, "manatee two")["status"] == "completed"
    (again,) = model.asked("manatee two")
    assert system_of(again) == [system.removesuffix("\nAnswer in one word.")]
    assert [one for one in tools_of(again) if "shell" in one]


@whole("LC-AMB-23")
def test_what_a_script_may_not_choose_is_reported_and_the_request_goes_out(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    wrong = """kage.on('before_provider_request', function(request)
      request.model = 'another'
      request.system = { 'no text' }
      request.tools[#request.tools + 1] = { name = 'made_up', description = '' }
      return request
    end)"""
    scripts.load(wrong=wrong)
    model.play("narwhal", say("Yes."))
    session = begin(project)
    assert say_to(project, session, "narwhal")["status"] == "completed"
    asked = model.asked("narwhal")[-1]
    assert system_of(asked) != []
    assert "made_up" not in tools_of(asked)
    told = " ".join(scripts.notices())
    for part in ("cannot choose the model", "is no text", "cannot add tools: made_up"):
        assert part in told


@whole("LC-AMB-24")
def test_a_busy_script_is_passed_over_and_named_and_the_others_have_their_say(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    """Waiting for a program uses up no budget of the script, so nothing else ends it."""
    scripts.grant(busy=["exec"])
    scripts.load(
        busy="kage.request_capabilities({'exec'})\n"
        "kage.on('transform_context', function(messages)\n"
        "  kage.exec{cmd='sleep', args={'60'}, timeout=60}\n"
        "  messages[1].content[1].text = 'never' return messages\nend)",
        scrub=SCRUB,
    )
    session = begin(project)
    for word in ("manatee-one", "manatee-two"):  # the second finds it busy from before
        model.play(word, say("Seen."))
        assert say_to(project, session, f"{word}: my key is sk-typed1234")["status"] == "completed"
        (asked,) = model.asked(word)
        said = json.dumps(asked["messages"])
        assert "my key is [key]" in said
        assert "sk-" not in said
        assert "never" not in said
    told = [one for one in scripts.notices() if "passed over" in one]
    assert len(told) == 2, told
    assert all("busy was passed over at 'transform_context'" in one for one in told), told
