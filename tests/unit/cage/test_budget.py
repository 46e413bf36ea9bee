"""How many processes fit into the limit of open files."""

from __future__ import annotations

import pytest

from kaged.cage.budget import PER_PROCESS, PER_START, ProcessBudget
from kaged.cage.errors import SpawnFailed


@pytest.mark.parametrize("limit", [64, 256, 1024, 20_000, 1 << 20])
def test_what_is_let_in_leaves_a_quarter_for_the_daemon(limit: int) -> None:
    budget = ProcessBudget(limit)
    starts = budget.starting._value
    assert starts >= 1
    assert budget.processes >= 1
    if limit >= 256:
        assert budget.processes * PER_PROCESS + starts * PER_START <= limit * 3 // 4


def test_the_last_that_fits_is_let_in_and_the_next_is_refused_with_the_fix() -> None:
    budget = ProcessBudget(1024)
    budget.require_room(budget.processes - 1)
    with pytest.raises(SpawnFailed) as refused:
        budget.require_room(budget.processes)
    assert "1024 open files" in refused.value.message
    assert "LimitNOFILE" in (refused.value.fix or "")
