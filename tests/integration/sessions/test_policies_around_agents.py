"""The extension pipeline around model calls, system prompts and agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes.loop_lab import loop_lab
from fakes.played_model import PlayedModel, call, say
from fakes.tool_lab import Spy, make_tool
from kaged.pipeline import Plugin, PluginResult, PluginViolation
from kaged.pipeline.plugin import hook
from unit.pipeline.lab import Lab, entry
from unit.pipeline.material import ALL_CAPABILITIES

ALL_ON = "primary: {model: default, system_prompt: You help., tools: {'*': {enabled: true}}}\n"
TREE = """
primary:
  model: default
  system_prompt: You lead.
  subagents:
    coder: {model: small, system_prompt: You code.}
"""


def _violation(reason: str) -> PluginViolation:
    return PluginViolation(reason=reason, description=reason, code="NO")


class Redacts(Plugin):
    """Takes a word out of everything that goes to a model, and out of what comes back."""

    @hook(["cmf.llm_input", "cmf.llm_output"])
    async def redact(self, payload: Any, context: Any) -> PluginResult[Any] | None:
        message = payload.message
        if "secret" not in str(message):
            return None
        parts: list[Any] = []
        for part in message.content:
            if part.content_type == "text":
                parts.append(part.model_copy(update={"text": part.text.replace("secret", "***")}))
            elif part.content_type == "tool_result":
                inner = part.content
                clean = str(inner.content).replace("secret", "***")
                parts.append(
                    part.model_copy(update={"content": inner.model_copy(update={"content": clean})})
                )
            else:
                parts.append(part)
        changed = payload.model_copy(
            update={"message": message.model_copy(update={"content": parts})}
        )
        return PluginResult(modified_payload=changed)


async def test_what_goes_to_the_model_and_comes_back_is_what_policies_make_of_it(
    tmp_path: Path,
) -> None:
    """The user's words, a tool's result and the model's answer; words are not shown before."""
    lab_ = await Lab.of(
        entry(Redacts, *ALL_CAPABILITIES, hooks=["cmf.llm_input", "cmf.llm_output"])
    )
    model = PlayedModel(say("", call("file_peek")), say("The secret is out."))
    tools = [make_tool("file.peek", handler=Spy({"text": "a secret"}))]
    async with loop_lab(
        tmp_path, model, tools=tools, project=ALL_ON, pipeline=lambda: lab_.pipeline
    ) as lab:
        end = await lab.talk("Tell the secret")

        assert end.text == "The *** is out."
        assert model.texts()[1:] == [
            "user: Tell the ***",
            "assistant: <file_peek>",
            'result file_peek: {"text":"a ***"}',
        ]
        assert [one.data["text"] for one in lab.told("text.delta")] == ["The *** is out."]
        assert (await lab.entries(end.session_id))[-1] == "assistant: The *** is out."
        assert (await lab.entries(end.session_id))[0] == "user: Tell the secret"


class Refuses(Plugin):
    """Refuses every message with a word in it."""

    @hook(["cmf.llm_input", "cmf.llm_output"])
    async def look(self, payload: Any, context: Any) -> PluginResult[Any] | None:
        if "forbidden" in str(payload.message):
            return PluginResult(continue_processing=False, violation=_violation("that word"))
        return None


async def test_a_refused_message_ends_the_run_and_is_withheld_later(tmp_path: Path) -> None:
    """The model is not asked; the next run goes on without those words."""
    lab_ = await Lab.of(entry(Refuses, hooks=["cmf.llm_input"]))
    async with loop_lab(tmp_path, PlayedModel(say("Fine.")), pipeline=lambda: lab_.pipeline) as lab:
        session = await lab.session()
        end = await lab.run(session, "Something forbidden")
        assert end.status == "failed"
        assert end.error is not None
        assert end.error["code"] == "pipeline_refused"
        assert "that word" in str(end.error["message"])
        assert lab.model.requests == []

        assert (await lab.run(session, "Something else")).text == "Fine."
        assert lab.model.texts()[1].startswith("user: [BLOCKED]")
        assert lab.model.texts()[2] == "user: Something else"


async def test_a_refused_result_is_withheld_and_a_refused_answer_ends_the_run(
    tmp_path: Path,
) -> None:
    """The agent is told that it may not see; what it may not say is stored nowhere."""
    lab_ = await Lab.of(entry(Refuses, hooks=["cmf.llm_input", "cmf.llm_output"]))
    model = PlayedModel(say("", call("file_peek")), say("I see."), say("It is forbidden."))
    tools = [make_tool("file.peek", handler=Spy("forbidden"))]
    async with loop_lab(
        tmp_path, model, tools=tools, project=ALL_ON, pipeline=lambda: lab_.pipeline
    ) as lab:
        end = await lab.talk("Look")
        assert end.text == "I see."
        assert model.texts()[-1].startswith("result file_peek: [BLOCKED]")

        end = await lab.run(end.session_id, "What is it?")
        assert end.status == "failed"
        assert end.error is not None
        assert end.error["code"] == "pipeline_refused"
        assert all("It is forbidden" not in one for one in await lab.entries(end.session_id))
        assert all("forbidden" not in str(one.data) for one in lab.told("text.delta"))


class AroundAgents(Plugin):
    """Signs what agents are asked and answer, and what their prompts are."""

    async def agent_pre_invoke(
        self, payload: Any, context: Any, extensions: Any
    ) -> PluginResult[Any]:
        seen.append((payload.agent_id, extensions.agent.agent_id, payload.model))
        text = f"{payload.messages[0].content} (checked)"
        changed = payload.model_copy(update={"messages": [{"role": "user", "content": text}]})
        return PluginResult(modified_payload=changed)

    async def agent_post_invoke(self, payload: Any, context: Any) -> PluginResult[Any]:
        text = f"{payload.messages[0].content} (seen)"
        changed = payload.model_copy(update={"messages": [{"role": "assistant", "content": text}]})
        return PluginResult(modified_payload=changed)

    async def prompt_post_fetch(self, payload: Any, context: Any) -> PluginResult[Any]:
        text = f"{payload.result.messages[0].content.text} Be kind."
        made = {"messages": [{"role": "system", "content": {"type": "text", "text": text}}]}
        return PluginResult(modified_payload=payload.model_copy(update={"result": made}))


seen: list[tuple[str, str, str]] = []


async def test_agents_and_their_prompts_pass_policies(tmp_path: Path) -> None:
    """The root and the child that it sets to work alike."""
    seen.clear()
    hooks = ["agent_pre_invoke", "agent_post_invoke", "prompt_post_fetch"]
    lab_ = await Lab.of(entry(AroundAgents, *ALL_CAPABILITIES, hooks=hooks))
    root = PlayedModel(say("", call("agent-coder", {"message": "Code"})), say("Done."))
    small = PlayedModel(say("Coded."), alias="small")
    async with loop_lab(
        tmp_path,
        root,
        models={"small": small},
        project=TREE,
        pipeline=lambda: lab_.pipeline,
    ) as lab:
        end = await lab.talk("Go")

        assert end.text == "Done. (seen)"
        assert root.texts(0) == ["system: You lead. Be kind.", "user: Go (checked)"]
        assert small.texts(0) == ["system: You code. Be kind.", "user: Code (checked)"]
        assert root.texts()[-1] == "result agent-coder: Coded. (seen)"
        assert seen == [
            ("primary", "primary", "default"),
            ("primary.subagents.coder", "primary/coder", "small"),
        ]


class Breaks(Plugin):
    """Raises."""

    async def agent_pre_invoke(self, payload: Any, context: Any) -> None:
        raise RuntimeError("the policy broke")


async def test_a_policy_that_fails_ends_the_call_and_says_which(tmp_path: Path) -> None:
    """Fail closed: the agent is not asked."""
    lab_ = await Lab.of(entry(Breaks, hooks=["agent_pre_invoke"], name="guard"))
    async with loop_lab(tmp_path, PlayedModel(say("no")), pipeline=lambda: lab_.pipeline) as lab:
        end = await lab.talk("Go")
        assert end.status == "failed"
        assert end.error is not None
        assert "failed" in str(end.error["message"])
        assert lab.model.requests == []
