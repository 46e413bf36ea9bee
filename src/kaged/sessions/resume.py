"""`Resumption`: gives the calls that an earlier run left open their results, before a run goes on.

A question gets its answer, a subagent that stopped with the session goes on, and anything else
was cut off by a crash: it gets a result that says so, and is never made again by the host.
"""

from __future__ import annotations

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.sessions.agent_run import AgentRun
from kaged.sessions.messages import INTERRUPTED, AskedCall
from kaged.sessions.subagents import Delegations
from kaged.sessions.toolcalls import ToolRunner
from kaged.store.interaction_rows import InteractionRecord, InteractionRows, InteractionStatus
from kaged.store.work_errors import InteractionNotFound
from kaged.toolbox.project.interactions import answer_json

WITHDRAWN = "The operator withdrew the question and will not answer it."


@dataclass(eq=False)
class Resumption:
    """Settles what is open in an agent run's window."""

    questions: InteractionRows
    tools: ToolRunner
    children: Delegations

    async def settle(self, agent_run: AgentRun) -> None:
        """Set each open call's result, in the order of asking.

        Raises:
            KagedError: `interaction_pending`; one of them still waits for the operator.
        """
        for call in agent_run.window.open_calls():
            asked = await self._asked(agent_run, call)
            if asked is not None:
                await self._deliver(agent_run, call, asked)
            elif agent_run.run.resumes_pause and self.children.knows(agent_run, call):
                await self.children.resume(agent_run, call, self.settle)
            else:
                await self.tools.answer(agent_run, call, INTERRUPTED, is_error=True)

    async def _asked(self, agent_run: AgentRun, call: AskedCall) -> InteractionRecord | None:
        try:
            return await self.questions.get(agent_run.run.project_id, call.request_id)
        except InteractionNotFound:
            return None

    async def _deliver(
        self, agent_run: AgentRun, call: AskedCall, asked: InteractionRecord
    ) -> None:
        if asked.status is InteractionStatus.PENDING:
            raise KagedError(
                "This session waits for the operator.",
                code="interaction_pending",
                fix="answer what it asks first",
                request_id=asked.request_id,
            )
        if asked.answer is None:
            withdrawn: JsonObject = {"code": "interaction_withdrawn", "message": WITHDRAWN}
            await self.tools.answer(agent_run, call, withdrawn, is_error=True)
        else:
            await self.tools.answer(agent_run, call, answer_json(asked))
        # After the result is on disk: a crash in between delivers it again, never not at all.
        await self.questions.mark_delivered(asked.request_id)
