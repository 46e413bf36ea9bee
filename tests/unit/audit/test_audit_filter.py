"""A filter says which rows a reader wants, live and from the store."""

from __future__ import annotations

import pytest

from kaged.audit import AuditFilter, AuditRow

ROW = AuditRow(7, "01", 1000, "plugin.hook.fired", "prj_1", "req_1", '{"Hook":"x"}', "", "")


@pytest.mark.parametrize(
    "wanted",
    [
        AuditFilter(),
        AuditFilter(names=("plugin.hook.fired",)),
        AuditFilter(names=("tool.*", "plugin.*")),
        AuditFilter(names=("plugin.hook.*",)),
        AuditFilter(names=("*",)),
        AuditFilter(project_id="prj_1", request_id="req_1"),
        AuditFilter(since_ms=1000, until_ms=1001),
        AuditFilter(text="hOOk"),
        AuditFilter(text="FIRED"),
        AuditFilter(after_seq=6),
    ],
)
def test_what_fits_is_wanted(wanted: AuditFilter) -> None:
    assert wanted.matches(ROW)


@pytest.mark.parametrize(
    "wanted",
    [
        AuditFilter(names=("plugin.hook",)),
        AuditFilter(names=("plug.*",)),
        AuditFilter(names=("tool.*",)),
        AuditFilter(project_id="prj_2"),
        AuditFilter(project_id="prj_1", request_id="req_2"),
        AuditFilter(since_ms=1001),
        AuditFilter(until_ms=1000),
        AuditFilter(text="absent"),
        AuditFilter(after_seq=7),
    ],
)
def test_what_does_not_fit_is_not(wanted: AuditFilter) -> None:
    assert not wanted.matches(ROW)
    assert not wanted.everything


@pytest.mark.parametrize("name", ["", "plug*", "*.hook", "plugin.*.x", "a*b.*"])
def test_other_patterns_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="neither an event name nor a prefix"):
        AuditFilter(names=(name,))


def test_a_filter_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most"):
        AuditFilter(names=("a",) * 51)
    with pytest.raises(ValueError, match="at most"):
        AuditFilter(text="x" * 201)


def test_only_what_is_set_is_written_down() -> None:
    assert AuditFilter().to_json() == {}
    assert AuditFilter(text="x", after_seq=3).to_json() == {"text": "x", "after_seq": 3}
