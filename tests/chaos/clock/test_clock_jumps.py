"""The wall clock jumps, forwards and back, by seconds and by years: what counts on, what ends.

Durations are measured on the clock that never goes back, so that a jump neither refills nor empties
a limit. What carries a date (tokens, flows, requests) ends early when the clock jumps forwards;
nothing that has ended comes back when it jumps back, and the daemon goes on in both cases.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.service_lab import ServiceLab
from fakes.tool_lab import ToolLab
from kaged.audit import AuditEvent
from kaged.audit.folding import FoldingGate, FoldingLimits
from kaged.base import ManualClock
from kaged.inbox import NO, YES, RequestDraft, RequestKind, RequestNotFound, RequestState
from kaged.services.errors import CapabilityAuthFlowInvalid, CapabilityRateLimited
from kaged.services.limits import Rate, RateLimits, RateRules
from kaged.tools.quotas import CallQuotas, QuotaRule, QuotaSpan
from kaged.wire.tokens import TokenRejected
from unit.tools.test_tool_dispatch import Spy, reader

SECOND, HOUR, YEAR = 1000, 3_600_000, 365 * 24 * 3_600_000
JUMPS = (31 * SECOND, HOUR, YEAR, -31 * SECOND, -HOUR, -YEAR)
either_way = pytest.mark.parametrize("jump", JUMPS)


@pytest.fixture
async def lab(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ServiceLab]:
    """Yield a host with one provider (`gog.email`)."""
    found = await ServiceLab(tmp_path, clock).open()
    await found.register()
    yield found
    await found.close()


def jump_by(clock: ManualClock, milliseconds: int) -> None:
    clock.set_wall(clock.now_ms() + milliseconds)


async def whoami(lab: ServiceLab, token: str) -> Any:
    params = {"capability": "gog.email", "operation": "ping", "input": {}}
    return await lab.rpc.call("capability.invoke", {**params, "context_token": token})


@either_way
async def test_a_token_of_before_a_jump_is_refused_and_a_new_one_works(
    lab: ServiceLab, jump: int
) -> None:
    await lab.link()
    before = lab.token()
    assert (await whoami(lab, before))["ok"]
    jump_by(lab.clock, jump)
    if abs(jump) > 6 * 60 * SECOND or jump < 0:
        with pytest.raises(TokenRejected):
            await whoami(lab, before)
    for _ in range(2):
        assert (await whoami(lab, lab.token()))["ok"]
    jump_by(lab.clock, -jump)
    assert (await whoami(lab, before))["ok"]


@either_way
async def test_a_flow_ends_with_a_jump_ahead_and_is_never_used_twice(
    lab: ServiceLab, jump: int
) -> None:
    used = await lab.call("auth.begin", "alice", capability="gog.email", account_hint="one")
    assert (await lab.call("auth.complete", flow_id=used["flow_id"], code="c"))["ok"]
    pending = await lab.call("auth.begin", "alice", capability="gog.email", account_hint="two")
    jump_by(lab.clock, jump)
    with pytest.raises(CapabilityAuthFlowInvalid):
        await lab.call("auth.complete", flow_id=used["flow_id"], code="c")
    if jump >= HOUR:
        with pytest.raises(CapabilityAuthFlowInvalid):
            await lab.call("auth.complete", flow_id=pending["flow_id"], code="c")
    else:
        assert (await lab.call("auth.complete", flow_id=pending["flow_id"], code="c"))["ok"]
    again = await lab.call("auth.begin", "alice", capability="gog.email", account_hint="three")
    assert (await lab.call("auth.complete", flow_id=again["flow_id"], code="c"))["ok"]


@either_way
async def test_a_request_that_expired_stays_expired(lab: ServiceLab, jump: int) -> None:
    def draft(number: int) -> RequestDraft:
        return RequestDraft(
            id=f"req_{number}",
            kind=RequestKind.TRUST,
            title="Open it?",
            details=[],
            choices=(YES, NO),
            owner="alice",
            expires_at_ms=lab.clock.now_ms() + 60 * SECOND,
        )

    async def state(number: int) -> RequestState | None:
        try:
            return (await lab.inbox.rows.get(f"req_{number}")).state
        except RequestNotFound:
            return None

    for number in (1, 2):
        assert await lab.inbox.ask(draft(number)) is not None
    jump_by(lab.clock, jump)
    await lab.inbox.expire()
    ends: RequestState | None = RequestState.EXPIRED if jump >= HOUR else RequestState.PENDING
    if jump == YEAR:
        ends = None  # what expired so long ago is deleted as well
    for _ in range(2):
        assert [await state(1), await state(2)] == [ends, ends]
        jump_by(lab.clock, -jump)  # back to where it was, and once more
        await lab.inbox.expire()
    assert await lab.inbox.ask(draft(3)) is not None


@either_way
def test_no_jump_gives_a_caller_more_calls_or_takes_some_away(
    clock: ManualClock, jump: int
) -> None:
    limits = RateLimits(clock, {"gog": RateRules(invoke=Rate(60, 2), per_day=100)})

    def call() -> None:
        limits.require_invoke("ann", "gog", "gog.email", mutating=False)

    call()
    call()
    jump_by(clock, jump)
    with pytest.raises(CapabilityRateLimited):
        call()
    clock.advance(1.0)
    call()
    jump_by(clock, -jump)
    with pytest.raises(CapabilityRateLimited):
        call()
    clock.advance(1.0)
    call()


@either_way
async def test_no_jump_gives_an_agent_more_calls_of_its_minute(
    tmp_path: Path, clock: ManualClock, jump: int
) -> None:
    quotas = CallQuotas([QuotaRule("file.*", 2, QuotaSpan.MINUTE)], clock)
    lab = ToolLab(tmp_path, [reader(Spy())], quotas=quotas, clock=clock)
    await lab.call("file.peek", path="a")
    jump_by(clock, jump)
    await lab.call("file.peek", path="a")
    await lab.refusal("file.peek", path="a")
    jump_by(clock, -jump)
    await lab.refusal("file.peek", path="a")
    clock.advance(61)
    await lab.call("file.peek", path="a")


@either_way
def test_a_flood_is_folded_the_same_and_every_event_counted(clock: ManualClock, jump: int) -> None:
    gate = FoldingGate(clock, limits=FoldingLimits(burst=5, per_s=0.1))
    event = AuditEvent("plugin.stdout_noise", {"name": "loud", "line": "x"})
    kept = sum(not gate.fold(event) for _ in range(20))
    jump_by(clock, jump)
    kept += sum(not gate.fold(event) for _ in range(20))
    written: list[AuditEvent] = []

    def write(one: AuditEvent) -> bool:
        written.append(one)
        return True

    gate.drain(write)
    counted = sum(int(str(one.data["count"])) for one in written)
    assert (kept, kept + counted) == (5, 40)
