"""`AgentRunFactory`: prepares one agent's part of a run: model, prompt, tools and window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kaged.sessions.agent_run import AgentRun
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.instructions import prompt_of
from kaged.sessions.messages import text_block
from kaged.sessions.window import Window, load_window

if TYPE_CHECKING:
    from kaged.base import JsonObject
    from kaged.sessions.agent_run import RunState
    from kaged.sessions.instructions import ProjectInstructions
    from kaged.sessions.needs import Models, Routing
    from kaged.sessions.policies import Policies
    from kaged.sessions.transcript import Transcript


class AgentRunFactory:
    """Makes agent runs. The same agent has a new one in every run and for every task."""

    def __init__(
        self,
        models: Models,
        transcript: Transcript,
        policies: Policies,
        routing: Routing,
        instructions: ProjectInstructions,
    ) -> None:
        self._models = models
        self._transcript = transcript
        self._policies = policies
        self._routing = routing
        self._instructions = instructions

    async def create(
        self,
        run: RunState,
        path: str,
        window_key: str,
        *,
        depth: int = 0,
        model: str | None = None,
        max_steps: int | None = None,
        prompt: str = "",
        fresh: bool = False,
    ) -> AgentRun:
        """Seat an agent. A `fresh` window has nothing in it and is not looked for in the store.

        Raises:
            ModelError: `model_unknown`; nobody knows its model.
            PipelineRefused, ReportedError: a policy does not let its prompt through.
        """
        snapshot = run.snapshot.agents[path]
        agent = snapshot.agent
        chosen = self._models.get(model or agent.model.value.alias, run.project_id)
        text = prompt or agent.system_prompt.value.text
        routed = await self._routing(run, snapshot)
        given = await self._instructions.of_root(run, snapshot)
        parts = [text, routed]
        if given is not None:
            parts.append(prompt_of(given, trusted=not run.snapshot.restricted))
            if run.run_id and depth == 0:
                await self._instructions.record(run, given)
        # What skills and projects say passes the policies with the rest of the prompt.
        own = await self._policies.prompt(
            run, path, "\n\n".join(one for one in parts if one), chosen.alias
        )
        window = (
            Window()
            if fresh
            else load_window(await self._transcript.window(run.session_id, window_key))
        )
        before = 0
        if run.goes_on and not fresh:
            before = await self._transcript.turns(run.session_id, window_key, run.goes_on)
        return AgentRun(
            run=run,
            path=path,
            window_key=window_key,
            snapshot=snapshot,
            model=chosen,
            window=window,
            system_prompt=own,
            max_steps=max_steps or agent.max_steps.value,
            depth=depth,
            turns_before=before,
        )

    async def tell(self, agent_run: AgentRun, text: str, *, pinned: bool = False) -> None:
        """Put what an agent is asked into its window, and into the transcript first."""
        await tell(agent_run, text, self._transcript, pinned=pinned)


async def tell(
    agent_run: AgentRun, text: str, transcript: Transcript, *, pinned: bool = False
) -> None:
    """Put what an agent is asked into its window, and into the transcript first."""
    content: JsonObject = {"content": [text_block(text)]}
    if pinned:
        content["pinned"] = True
    draft = EntryDraft(
        kind=EntryKind.MESSAGE,
        role=EntryRole.USER,
        content=content,
        agent=agent_run.window_key,
        run_id=agent_run.run.run_id or None,
    )
    agent_run.window.add(await transcript.append(agent_run.run.session_id, [draft]))
