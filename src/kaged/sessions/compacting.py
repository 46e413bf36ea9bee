"""`Compactor`: keeps an agent's window from overflowing, and never lets that stop a session.

full? → plan → pre_compact → compactor or strategy, else drop → post_compact → store → audit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Final

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.project import CompactionStrategy
from kaged.models.turn import Usage
from kaged.plugins.hooks import CompactionEvent
from kaged.sessions.compaction import (
    TARGET_SHARE,
    CompactionPlan,
    plan_compaction,
    threshold_tokens,
    with_note,
)
from kaged.sessions.entry import EntryDraft, EntryKind
from kaged.sessions.messages import NOTE_MARK, WindowMessage, message_of_json
from kaged.sessions.shortening import LEAST_TOKENS, plan_shortening, shortened_messages
from kaged.sessions.summary import (
    INSTRUCTION,
    SUMMARY_LIMIT_CHARS,
    summarize,
    transcript_for,
)
from kaged.sessions.window import compaction_messages

if TYPE_CHECKING:
    from kaged.base import Clock, Ids, JsonObject, JsonValue
    from kaged.plugins.hooks import PreCompactOutcome
    from kaged.sessions.agent_run import AgentRun
    from kaged.sessions.hooks import SessionHooks
    from kaged.sessions.needs import Announcer, AuditPost
    from kaged.sessions.transcript import Transcript
    from kaged.sessions.transforms import Transforms
    from kaged.tools.shown_results import ShownResults

THRESHOLD_CROSSED: Final = "threshold_crossed"
REQUESTED: Final = "requested"
CONTEXT_EXCEEDED: Final = "context_exceeded"
GROWTH: Final = 1.05
"""By how much a window that could not be made smaller must grow before it is tried again."""

SHORTEN: Final = "shorten"
"""How a compaction is called that showed the texts of a window shorter."""

ENOUGH_SHARE: Final = 0.75
"""A compaction that leaves more than that has not made room."""

KEEP_AT_LEAST: Final = 1
"""How many of the newest messages stay, with their turn, when nothing else makes room."""

MAX_PROMPT_GROWTH: Final = 16_000
"""How many characters a script may add to what a model is to summarize."""

_log = get_logger("kaged.sessions")


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did. `fallback` says that the strategy failed and old messages went."""

    compaction_id: str
    strategy: str
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    fallback: bool
    summary: str | None

    def as_json(self) -> JsonObject:
        """Write it down for people."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _Result:
    """What a strategy made of a plan. `note` goes where the messages stood that went."""

    messages: Sequence[WindowMessage]
    superseded: Sequence[str]
    note: str = ""
    summary: str | None = None
    plugin: str | None = None


@dataclass(eq=False)
class Compactor:
    """Compacts windows of agents, each on its own."""

    transcript: Transcript
    hooks: SessionHooks
    audit: AuditPost
    announce: Announcer
    transforms: Transforms
    _: KW_ONLY
    clock: Clock
    ids: Ids
    results: ShownResults

    async def check(self, agent_run: AgentRun) -> Compacted | None:
        """Compact a window that is full; one that cannot be made smaller is left alone.

        Nothing goes to a model that is larger than it takes, as far as that is known: some leave
        out what they like then, without a word.
        """
        tokens = agent_run.tokens
        if tokens < self.threshold(agent_run) or tokens < agent_run.stuck_at * GROWTH:
            return None
        done = await self.compact(agent_run, THRESHOLD_CROSSED)
        if agent_run.tokens > agent_run.model.context_tokens:
            goal = self._goal(agent_run)
            if goal > 0:
                await self._shorten(agent_run, goal)
        return done

    def threshold(self, agent_run: AgentRun) -> int:
        """Return the number of tokens at which an agent's window is full."""
        return threshold_tokens(
            agent_run.snapshot.agent.compaction.value, agent_run.model.context_tokens
        )

    def plan(self, agent_run: AgentRun) -> CompactionPlan:
        """Choose what would go. Changes nothing and asks nobody."""
        return plan_compaction(agent_run.window.messages, max(0, self._goal(agent_run)))

    def preview(self, agent_run: AgentRun) -> JsonObject:
        """Return what a compaction would do now (dry run)."""
        plan = self.plan(agent_run)
        compaction = agent_run.snapshot.agent.compaction.value
        return {
            "strategy": compaction.strategy.value,
            "tokens": agent_run.tokens,
            "threshold": self.threshold(agent_run),
            "messages": len(agent_run.window.messages),
            "would_compact": [one.id for one in plan.being],
            "would_remain": [one.id for one in plan.remaining],
            "always_keep": [one.id for one in plan.keep],
            "tokens_after": plan.tokens_after,
        }

    async def make_room(self, agent_run: AgentRun) -> bool:
        """Make a window smaller that the model refused; returns whether that could be done.

        It is compacted first. Where that leaves most of it, the last messages are what is large:
        they are shown shorter, results of tools first, and at last only the newest turn stays.
        """
        if agent_run.tokens < agent_run.model.context_tokens:
            # The vendor counts more than was estimated.
            agent_run.gauge.learn(agent_run.request_tokens, agent_run.model.context_tokens)
        before = agent_run.window.tokens
        await self.compact(agent_run, CONTEXT_EXCEEDED)
        if agent_run.window.tokens > before * ENOUGH_SHARE:
            await self._shorten(agent_run, int(before * TARGET_SHARE))
        return agent_run.window.tokens < before

    async def compact(
        self, agent_run: AgentRun, trigger: str, wish: str | None = None
    ) -> Compacted | None:
        """Compact a window now; returns None when nothing of it may go.

        `wish` is what whoever asked for it wants of a summary, beside the usual instruction.
        """
        plan = self.plan(agent_run)
        compaction_id = self.ids.tagged("cmp")
        strategy = agent_run.snapshot.agent.compaction.value.strategy
        if not plan.being:
            agent_run.stuck_at = agent_run.tokens
            self._post(
                agent_run,
                "compaction.flagged",
                {"compaction_id": compaction_id, "flag": "nothing_to_compact"},
            )
            return None
        started_s = self.clock.monotonic_s()
        before, tokens_before = len(agent_run.window.messages), agent_run.tokens
        self._post(
            agent_run,
            "compaction.triggered",
            {
                "compaction_id": compaction_id,
                "strategy": strategy.value,
                "messages": before,
                "tokens": tokens_before,
                "threshold": self.threshold(agent_run),
            },
        )
        self._tell(agent_run, "compaction.started", {"compaction_id": compaction_id})
        context = agent_run.hook_context(self.ids.tagged("req"))
        asked = await self.hooks.pre_compact(
            context, _event(plan.being, plan.remaining, strategy, trigger, plan.keep)
        )
        result = await self._strategy(agent_run, plan, asked, compaction_id, strategy, wish)
        used = strategy if result is not None else CompactionStrategy.DROP
        result = result or _dropped(plan)
        gone = [one for one in plan.being if one.id in set(result.superseded)]
        said = await self.hooks.post_compact(
            context, _event(gone, result.messages, used, trigger, plan.keep)
        )
        note = _note(
            result.note,
            (*asked.observed.retain, *said.retain),
            (*asked.observed.inject, *said.inject),
        )
        messages = with_note(
            agent_run.window.messages, result.messages, f"{compaction_id}{NOTE_MARK}note", note
        )
        await self._keep(agent_run, messages, result, used.value)
        done = Compacted(
            compaction_id=compaction_id,
            strategy=used.value,
            messages_before=before,
            messages_after=len(messages),
            tokens_before=tokens_before,
            tokens_after=agent_run.tokens,
            fallback=used is not strategy,
            summary=result.summary,
        )
        self._completed(
            agent_run, done, result.plugin, (self.clock.monotonic_s() - started_s) * 1000
        )
        return done

    # -- own -----------------------------------------------------------------------------------

    def _goal(self, agent_run: AgentRun) -> int:
        """Return to how many tokens the messages should come; below 1 the rest is too large."""
        # In the units of the estimate, of which what stands in the request anyway is not ours.
        fixed = agent_run.request_tokens - agent_run.window.tokens
        scale = agent_run.tokens / agent_run.request_tokens if agent_run.request_tokens else 1.0
        goal = min(self.threshold(agent_run), agent_run.tokens) * TARGET_SHARE / scale
        return int(goal) - fixed

    async def _shorten(self, agent_run: AgentRun, goal_tokens: int) -> None:
        """Show the long texts of a window shorter; the whole of each is kept under a handle."""
        started_s = self.clock.monotonic_s()
        compaction_id = self.ids.tagged("cmp")
        before, tokens_before = agent_run.window.messages.copy(), agent_run.tokens
        context = agent_run.call_context(self.ids.tagged("req"))
        texts: dict[tuple[int, int], str] = {}
        for planned in plan_shortening(before, goal_tokens):
            for one in planned.texts:
                texts[one.message, one.block] = await self.results.fit(
                    one.text,
                    context,
                    planned.limit_tokens,
                    agent_run.snapshot.tools.enabled,
                    least=LEAST_TOKENS,
                )
        messages = shortened_messages(before, texts)
        plan = plan_compaction(messages, goal_tokens, KEEP_AT_LEAST)
        result = _dropped(plan)
        note = result.note if plan.being else ""
        left = with_note(messages, plan.remaining, f"{compaction_id}{NOTE_MARK}note", note)
        if sum(one.tokens for one in left) >= agent_run.window.tokens:
            return
        started: JsonObject = {
            "compaction_id": compaction_id,
            "strategy": SHORTEN,
            "messages": len(before),
            "tokens": tokens_before,
            "threshold": self.threshold(agent_run),
        }
        self._post(agent_run, "compaction.triggered", started)
        self._tell(agent_run, "compaction.started", {"compaction_id": compaction_id})
        await self._keep(agent_run, left, result, SHORTEN)
        # What policies made of these messages is as long as they were; what they withheld stays so.
        for id_ in {before[place].id for place, _ in texts}:
            if agent_run.cleared.get(id_) is not None:
                del agent_run.cleared[id_]
        done = Compacted(
            compaction_id=compaction_id,
            strategy=SHORTEN,
            messages_before=len(before),
            messages_after=len(left),
            tokens_before=tokens_before,
            tokens_after=agent_run.tokens,
            fallback=False,
            summary=None,
        )
        self._completed(agent_run, done, None, (self.clock.monotonic_s() - started_s) * 1000)

    async def _strategy(
        self,
        agent_run: AgentRun,
        plan: CompactionPlan,
        asked: PreCompactOutcome,
        compaction_id: str,
        strategy: CompactionStrategy,
        wish: str | None,
    ) -> _Result | None:
        """Carry the strategy out; None, put on record, when it failed and old messages must go."""
        delegate = agent_run.snapshot.agent.compaction.value.delegate
        reason = asked.fallback
        if asked.replacement is not None:
            found = _replaced(agent_run, asked, delegate)
            if found is not None:
                return found
            reason = "a message has no known role"
        elif reason is None and strategy is CompactionStrategy.DELEGATE:
            reason = "the designated compactor is not there"
        if reason is None and strategy is CompactionStrategy.SUMMARIZE:
            try:
                text, usage = await self._summary(agent_run, plan, wish)
            except KagedError as error:
                reason = f"{error.code}: {error.message}"
            # Boundary: whatever a model's layer breaks with, the session goes on.
            except Exception as error:  # noqa: BLE001 - see above
                _log.exception("compaction.summary_failed", error=repr(error))
                reason = type(error).__name__
            else:
                agent_run.run.spending.add(usage)
                note = f"Summary of the earlier conversation:\n{text}"
                return _Result(plan.remaining, [one.id for one in plan.being], note, text)
        if reason is None:
            return _dropped(plan)
        self._post(
            agent_run,
            "compaction.failed",
            {
                "compaction_id": compaction_id,
                "strategy": strategy.value,
                "plugin": delegate,
                "failure": "compactor" if delegate is not None else "strategy",
                "detail": reason,
            },
        )
        return None

    async def _summary(
        self, agent_run: AgentRun, plan: CompactionPlan, wish: str | None
    ) -> tuple[str, Usage]:
        """Summarize what goes; whoever is asked first may change the request or write it.

        Raises:
            ModelError: the model did not answer, or with nothing.
        """
        text = transcript_for(agent_run.model, plan.being)
        usual = f"{INSTRUCTION}\n{wish}"[:SUMMARY_LIMIT_CHARS] if wish else INSTRUCTION
        if not self.transforms.has_summarizing or not agent_run.is_top:
            return await summarize(
                agent_run.model,
                text,
                agent_run.path,
                usual,
                project_id=agent_run.run.project_id,
                session_id=agent_run.run.session_id,
            )
        asked: JsonObject = {
            "transcript": text,
            "instruction": usual,
            "prompt": text,
            "model": agent_run.model.alias,
            "summarized": len(plan.being),
            "kept": len(plan.remaining),
        }
        asked = await self.transforms.summarizing(agent_run.run.session_id, asked)
        summary, prompt, instruction = (
            value if isinstance(value := asked.get(name), str) and value.strip() else None
            for name in ("summary", "prompt", "instruction")
        )
        if summary is not None:
            return summary.strip()[:SUMMARY_LIMIT_CHARS], Usage()
        return await summarize(
            agent_run.model,
            (prompt or text)[: len(text) + MAX_PROMPT_GROWTH],
            agent_run.path,
            (instruction or usual)[:SUMMARY_LIMIT_CHARS],
            project_id=agent_run.run.project_id,
            session_id=agent_run.run.session_id,
        )

    async def _keep(
        self,
        agent_run: AgentRun,
        messages: Sequence[WindowMessage],
        result: _Result,
        strategy: str,
    ) -> None:
        """Store the compaction and go on with the smaller window."""
        known = agent_run.window.messages
        marks = [one.id for one in known if one.stored and one.id in set(result.superseded)]
        summarized: list[JsonValue] = [*marks]
        draft = EntryDraft(
            kind=EntryKind.COMPACTION,
            content={
                "kept": len(result.messages),
                "summarized": summarized,
                "summary": result.summary,
                "strategy": strategy,
                "messages": compaction_messages(messages, known, marks),
            },
            agent=agent_run.window_key,
            run_id=agent_run.run.run_id or None,
        )
        await self.transcript.compact(agent_run.run.session_id, marks, draft, agent_run.window_key)
        agent_run.window.replace(messages)

    def _completed(
        self, agent_run: AgentRun, done: Compacted, plugin: str | None, duration_ms: float
    ) -> None:
        data: JsonObject = {
            "compaction_id": done.compaction_id,
            "strategy": done.strategy,
            "messages_before": done.messages_before,
            "messages_after": done.messages_after,
            "summary": done.summary,
            "fallback": done.fallback,
            "duration_ms": round(duration_ms, 3),
            "plugin": plugin,
        }
        self._post(agent_run, "compaction.completed", data)
        agent_run.stuck_at = 0
        if done.tokens_after >= self.threshold(agent_run):
            # Whoever compacts next would find the same; wait until there is more to take out.
            agent_run.stuck_at = done.tokens_after
            flag: JsonObject = {"compaction_id": done.compaction_id, "flag": "still_full"}
            self._post(agent_run, "compaction.flagged", {**flag, "plugin": plugin})
        self._tell(agent_run, "compaction.finished", done.as_json())

    def _post(self, agent_run: AgentRun, name: str, data: JsonObject) -> None:
        run = agent_run.run
        placed: JsonObject = {**data, "session_id": run.session_id, "agent_path": agent_run.path}
        try:
            self.audit.post(
                AuditEvent(name, placed, project_id=run.project_id, caller=agent_run.path)
            )
        except AuditUnavailable as error:
            _log.error("audit.event_lost", audit_event=name, error=str(error))

    def _tell(self, agent_run: AgentRun, name: str, data: JsonObject) -> None:
        self.announce(agent_run.event(name, data))


def _dropped(plan: CompactionPlan) -> _Result:
    count = len(plan.being)
    note = f"({count} earlier messages of this conversation were left out to save room.)"
    return _Result(plan.remaining, [one.id for one in plan.being], note)


def _replaced(
    agent_run: AgentRun, asked: PreCompactOutcome, delegate: str | None
) -> _Result | None:
    """Take over a compactor's list exactly; None when a message of it means nothing to a model."""
    replacement = asked.replacement
    assert replacement is not None
    known = {one.id: one for one in agent_run.window.messages}
    messages: list[WindowMessage] = []
    for number, one in enumerate(replacement.messages):
        made = message_of_json(one, f"compactor{NOTE_MARK}{number}")
        if made is None:
            return None
        original = known.get(made.id)
        if original is None and made.stored:
            # An id of its own making could be taken for an entry's.
            made = message_of_json({**one, "id": f"{made.id}{NOTE_MARK}{number}"}, "")
            assert made is not None
        messages.append(original if original is not None and original == made else made)
    return _Result(messages, replacement.superseded, summary=replacement.summary, plugin=delegate)


def _note(own: str, retained: Sequence[str], injected: Sequence[str]) -> str:
    """Put together what stands in the window in place of what went."""
    kept = "\n".join(("To be kept in mind:", *(f"- {one}" for one in retained)))
    parts = (own, kept if retained else "", *injected)
    return "\n\n".join(one for one in parts if one)


def _event(
    being: Sequence[WindowMessage],
    remaining: Sequence[WindowMessage],
    strategy: CompactionStrategy,
    trigger: str,
    keep: Sequence[WindowMessage],
) -> CompactionEvent:
    return CompactionEvent(
        being_compacted=[one.as_json() for one in being],
        remaining=[one.as_json() for one in remaining],
        strategy=strategy.value,
        trigger=trigger,
        always_keep=[one.as_json() for one in keep],
    )
