"""Scripts provide models: behind a power, named by the operator, asked through the agent loop."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from whole.harness.conversation import begin, current, ended, entries, say_to, send
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command

MODELS = """
[models.parrot]
model = "lua:parrot/small"
retries = 2
[models.other]
model = "lua:parrot/huge"
[models.roomy]
model = "lua:parrot/small"
context_window = 60000
"""
ASK = "kage.request_capabilities({'provider'})\n"
# The words of the last user message, then whatever the test wants to see.
PARROT = (
    ASK
    + """
local asked, failures = {}, 0
local function last_text(request)
  for i = #request.messages, 1, -1 do
    for _, block in ipairs(request.messages[i].content) do
      if block.type == 'text' and request.messages[i].role == 'user' then return block.text end
    end
  end
end
kage.register_provider({
  id = 'parrot', display_name = 'Parrot', models = { { id = 'small', context = 9000 } },
  stream = function(request, emit)
    asked[#asked + 1] = request
    local text = last_text(request)
    local answered = request.messages[#request.messages].role == 'tool_result'
    emit({ type = 'message_start' })
    if text == 'raise' then error('no feathers') end
    if text == 'auth' then kage.provider_error('auth', 'no perch') end
    if text == 'again' and failures < 2 then
      failures = failures + 1
      kage.provider_error('http', 'asleep', 503)
    end
    if text == 'silent' then return end
    if text == 'listed' then
      return { { type = 'text_delta', delta = 'From a list.' }, { type = 'message_end' } }
    end
    while text == 'endless' do emit({ type = 'text_delta', delta = ('x'):rep(50000) }) end
    if text == 'slow' then
      emit({ type = 'text_delta', delta = 'a while' })
      kage.notify('began')
      local ok = true
      while ok do
        kage.sleep_ms(20)
        ok = pcall(emit, { type = 'text_delta', delta = '.' })
      end
      kage.notify('stopped in the middle')
      error('over', 0)
    end
    if text == 'read' and not answered then
      emit({ type = 'tool_call_start', id = 'c1', name = 'file_read' })
      emit({ type = 'tool_call_end', id = 'c1', input = { path = 'seed.txt' } })
      emit({ type = 'message_end', stop_reason = 'tool_use', usage = { input = 7, output = 3 } })
      return
    end
    for word in ('You said: ' .. text):gmatch('%S+%s*') do
      emit({ type = 'text_delta', delta = word })
    end
    emit({ type = 'message_end', stop_reason = 'end_turn', usage = { input = 11, output = 5 } })
  end,
})
kage.register_command{name='asked', description='', handler=function()
  return { structured = { value = asked } }
end}
"""
)


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose operator has named a script's models."""
    made = Daemon(module_path / "h", local=model.local_toml() + MODELS)
    made.start()
    yield made
    made.close()


@pytest.fixture
def session(scripts: Scripts, project: Project) -> str:
    """Return a session of a project whose primary agent uses the script's model."""
    project.describe(model="parrot", tools={"file.read": {"enabled": True}})
    project.write("seed.txt", "sunflower\n")
    project.reload()
    scripts.grant(parrot=["provider"])
    assert scripts.load(parrot=PARROT)["parrot"]["providers"] == ["parrot/small"]
    return begin(project)


def texts(project: Project, session: str) -> str:
    return json.dumps(entries(project, session))


def test_an_agent_uses_a_model_that_a_script_provides(
    scripts: Scripts, project: Project, session: str
) -> None:
    run = say_to(project, session, "hello there")
    assert run["status"] == "completed", run
    assert "You said: hello there" in texts(project, session)
    # A tool that this model calls runs as any model's, and it is asked again with the result.
    assert say_to(project, session, "read")["status"] == "completed"
    asked = scripts.value("asked")["value"]
    assert asked[0]["model"] == "small"
    assert "You" in asked[0]["system"]
    assert "file_read" in [one["name"] for one in asked[0]["tools"]]
    (result,) = asked[-1]["messages"][-1]["content"]
    assert (result["type"], result["name"]) == ("tool_result_block", "file_read")
    assert "sunflower" in result["output"]
    assert say_to(project, session, "listed")["status"] == "completed"
    assert "From a list." in texts(project, session)


def test_what_a_provider_raises_is_told_and_only_what_passes_is_tried_again(
    scripts: Scripts, project: Project, session: str
) -> None:
    assert say_to(project, session, "again")["status"] == "completed"
    assert "You said: again" in texts(project, session)
    for text, code, words in (
        ("raise", "model_refused", "no feathers"),
        ("auth", "model_refused", "no perch"),
        ("silent", "model_bad_answer", "message_end"),
        ("endless", "model_bad_answer", "characters of text"),
    ):
        before = len(scripts.value("asked")["value"])
        run = say_to(project, begin(project), text)
        assert run["status"] == "failed", (text, run)
        assert code in json.dumps(run), (text, run)
        assert words in json.dumps(run), (text, run)
        tries = len(scripts.value("asked")["value"]) - before
        assert tries == (1 if code == "model_refused" else 3), text
    assert scripts.state("parrot")["restarts"] == 0


def test_a_run_that_is_stopped_stops_the_script_too(
    scripts: Scripts, project: Project, session: str
) -> None:
    run = send(project, session, "slow")
    wait_for(lambda: any("began" in one for one in scripts.notices()), "its first words")
    project.post(f"/sessions/{session}/cancel")
    assert ended(project, session, run)["status"] == "cancelled"
    wait_for(lambda: "stopped in the middle" in scripts.notices())
    assert say_to(project, session, "hello again")["status"] == "completed"


def test_only_a_granted_script_that_guards_nothing_provides_models(
    scripts: Scripts, project: Project, session: str
) -> None:
    def refusal() -> str:
        run = say_to(project, begin(project), "hello")
        assert run["status"] == "failed", run
        return json.dumps(run)

    # A provider that also guards could not be asked while it answers.
    guard = "kage.on('transform_context', function(messages) return messages end)\n"
    scripts.load(parrot=PARROT + guard)
    assert "guards by transform_context" in refusal()
    assert any("a script does one or the other" in one for one in scripts.notices())
    # Another script that guards sees what goes to the provider, and may change it.
    hide = """kage.on('transform_context', function(messages)
      for _, m in ipairs(messages) do for _, b in ipairs(m.content) do
        if b.text then b.text = b.text:gsub('sk%-%w+', 'HIDDEN') end
      end end
      return messages
    end)"""
    scripts.load(parrot=PARROT, zz_hide=hide)
    assert say_to(project, session, "my key is sk-123")["status"] == "completed"
    asked = json.dumps(scripts.value("asked"))
    assert "HIDDEN" in asked
    assert "sk-123" not in asked
    # The operator names the models; what no script has is refused by name.
    project.describe(model="other")
    project.reload()
    assert "parrot/small" in refusal()
    project.describe(model="parrot")
    project.reload()
    # Without the grant there is no such function, and no such model.
    scripts.grant()
    found = scripts.load(parrot=PARROT)["parrot"]
    assert (found["state"], found["providers"]) == ("failed", [])
    assert "No script of this project provides parrot/small" in refusal()


def test_the_window_that_a_script_states_is_the_one_that_is_compacted_for(
    scripts: Scripts, project: Project, session: str
) -> None:
    usage = command("usage", "return kage.context_usage()")
    # Counts what it is sent, as vendors do.
    counts = PARROT.replace("input = 11", "input = 300 * #request.messages")

    def window() -> int:
        return int(scripts.value("usage")["value"]["context_window"])

    def talk() -> list[str]:
        for number in range(8):
            text = f"number {number} " + "and so on " * 120
            assert say_to(project, current(project), text)["status"] == "completed"
        rows = project.daemon.audit("compaction.triggered", project_id=project.id)
        return [json.dumps(one) for one in rows]

    scripts.load(parrot=counts, usage=usage)
    stated_small = talk()
    assert window() == 9000
    assert stated_small == []
    # A smaller window is in force from the reload on, in the same session.
    scripts.load(parrot=counts.replace("context = 9000", "context = 1500"), usage=usage)
    compacted = talk()
    assert compacted
    assert all(session in one for one in compacted)
    assert window() == 1500
    # What the operator says comes before that, and without both the window is the usual one.
    project.describe(model="roomy")
    project.reload()
    second = begin(project)
    assert second not in str(talk())
    assert window() == 60_000
    project.describe(model="parrot")
    project.reload()
    scripts.load(parrot=counts.replace(", context = 9000", ""), usage=usage)
    assert say_to(project, begin(project), "hello")["status"] == "completed"
    assert window() == 128_000
    # One that makes no sense is the script's mistake, told when it registers.
    for wrong in ("'9000'", "0", "9000.5", "1e9"):
        made = scripts.load(parrot=counts.replace("context = 9000", f"context = {wrong}"))
        assert made["parrot"]["state"] == "failed", (wrong, made)
        assert "between 256 and 100000000 tokens" in json.dumps(made["parrot"]), made


def test_two_sessions_are_answered_one_after_the_other_and_a_dead_script_comes_back(
    scripts: Scripts, project: Project, session: str
) -> None:
    second = begin(project, current=False)
    runs = [(place, send(project, place, f"hello {place}")) for place in (session, second)]
    for place, run in runs:
        assert ended(project, place, run)["status"] == "completed"
        assert f"You said: hello {place}" in texts(project, place)
    os.kill(scripts.state("parrot")["pid"], signal.SIGKILL)
    wait_for(lambda: (now := scripts.state("parrot"))["restarts"] and now["state"] == "running")
    assert say_to(project, session, "still there")["status"] == "completed"
