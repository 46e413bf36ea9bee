from __future__ import annotations

import pytest

from kaged.pipeline import (
    DelegationExtension,
    DelegationHop,
    Extensions,
    HttpExtension,
    RequestExtension,
    SecurityExtension,
    TierViolationError,
    filter_extensions,
    validate_tier_constraints,
)
from unit.pipeline.material import ALL_CAPABILITIES, MOMENT, full_extensions

HOP = DelegationHop(subject_id="a", subject_type="user", timestamp=MOMENT)
CHAIN = DelegationExtension(chain=(HOP,), depth=1)


@pytest.mark.parametrize(
    ("before", "after", "capabilities", "slot"),
    [
        (Extensions(), Extensions(request=RequestExtension()), ALL_CAPABILITIES, "request"),
        (Extensions(), Extensions(http=HttpExtension()), {"read_headers"}, "http"),
        (
            Extensions(security=SecurityExtension(labels=frozenset({"a"}))),
            Extensions(security=SecurityExtension()),
            ALL_CAPABILITIES,
            "security.labels",
        ),
        (Extensions(delegation=CHAIN), Extensions(), ALL_CAPABILITIES, "delegation"),
        (
            Extensions(delegation=CHAIN),
            Extensions(delegation=DelegationExtension()),
            ALL_CAPABILITIES,
            "delegation",
        ),
    ],
)
def test_the_strict_check_raises_at_the_first_wrong_change(
    before: Extensions, after: Extensions, capabilities: set[str], slot: str
) -> None:
    with pytest.raises(TierViolationError) as caught:
        validate_tier_constraints(before, after, frozenset(capabilities), "p")
    assert caught.value.slot == slot


def test_allowed_changes_pass_the_strict_check() -> None:
    before = full_extensions()
    longer = before.delegation
    assert longer is not None
    after = before.model_copy(
        update={
            "custom": None,
            "http": HttpExtension(headers={}),
            "delegation": longer.with_new_hop(HOP),
        }
    )
    validate_tier_constraints(before, after, ALL_CAPABILITIES, "p")
    validate_tier_constraints(Extensions(), Extensions(delegation=CHAIN), ALL_CAPABILITIES, "p")
    grown = Extensions(security=SecurityExtension(labels=frozenset({"a"})))
    start = Extensions(security=SecurityExtension())
    validate_tier_constraints(start, grown, frozenset({"append_labels"}), "p")


def test_a_filtered_view_differs_from_its_source() -> None:
    original = full_extensions()
    view = filter_extensions(original, frozenset())
    assert view is not None
    with pytest.raises(TierViolationError):
        validate_tier_constraints(original, view, frozenset(), "p")
