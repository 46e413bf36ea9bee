"""How tests are handed out: each once, and those with a dear set-up together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from sharing import ByModuleOrTest

TOGETHER = [f"tests/whole/some/test_module.py::test_{number}" for number in range(7)]
ALONE = [f"tests/unit/some/test_module.py::test_{number}" for number in range(40)]


class Worker:
    """Takes places of tests, as a worker's process does, and runs none."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, places: Sequence[int]) -> None:
        self.given += places

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(workers: Sequence[Worker], tests: Sequence[str]) -> ByModuleOrTest:
    config = SimpleNamespace(
        getvalue=lambda _: ["popen"] * len(workers), option=SimpleNamespace(loadscopereorder=True)
    )
    made = ByModuleOrTest(cast("Any", config))
    for worker in workers:
        made.add_node(cast("Any", worker))
    for worker in workers:
        made.add_node_collection(cast("Any", worker), tests)
    made.schedule()
    return made


def run_all(
    schedule: ByModuleOrTest, workers: Sequence[Worker], tests: Sequence[str]
) -> list[list[str]]:
    """End one test after the other; return which each worker ran."""
    ran: list[list[str]] = [[] for _ in workers]
    while any(worker.given for worker in workers):
        for worker, own in zip(workers, ran, strict=True):
            if worker.given:
                place = worker.given.pop(0)
                own.append(tests[place])
                schedule.mark_test_complete(worker, place)
    return ran


def test_each_test_is_handed_out_once_and_a_module_with_a_daemon_to_one_worker() -> None:
    tests = [*ALONE[:20], *TOGETHER, *ALONE[20:]]
    workers = [Worker(), Worker(), Worker()]
    schedule = scheduled(workers, tests)
    ran = run_all(schedule, workers, tests)
    assert Counter(one for own in ran for one in own) == Counter(tests)
    assert [own for own in ran if set(own) & set(TOGETHER)] == [
        own for own in ran if set(TOGETHER) <= set(own)
    ]
    assert all(set(own) & set(ALONE) for own in ran)
    assert schedule.tests_finished
    assert not schedule.has_pending
    assert all(worker.shutting_down for worker in workers)


def test_a_worker_has_the_next_test_before_it_has_ended_the_last() -> None:
    worker = Worker()
    scheduled([worker], ALONE)
    assert len(worker.given) >= 2


def test_what_a_lost_worker_has_not_ended_goes_to_another_and_what_it_has_does_not() -> None:
    tests = [*TOGETHER, *ALONE]
    workers = [Worker(), Worker()]
    schedule = scheduled(workers, tests)
    (mine,) = [one for one in workers if tests[one.given[0]] in TOGETHER]
    lost, left = mine, next(one for one in workers if one is not mine)
    ended = [tests[lost.given.pop(0)] for _ in range(3)]
    for one in ended:
        schedule.mark_test_complete(lost, tests.index(one))
    assert schedule.remove_node(cast("Any", lost)) == TOGETHER[3]
    (ran,) = run_all(schedule, [left], tests)
    assert Counter(ran) == Counter(set(tests) - set(ended))
