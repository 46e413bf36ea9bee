from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.net import NetTarget
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import (
    CapabilityRequirement,
    FsRequirement,
    NetRequirement,
    RequirementInvalid,
    SeccompRequirement,
    ToolRequirement,
    parse_requirement,
    parse_requirements,
)
from unit.kernel.strategies import anything, modes, net_targets, patiently

requirements = st.one_of(
    st.builds(FsRequirement, modes),
    st.just(SeccompRequirement()),
    st.builds(NetRequirement, net_targets),
    st.builds(
        CapabilityRequirement,
        st.text("aZ", min_size=1, max_size=3).flatmap(
            lambda head: st.text("aZ0_.:-", max_size=5).map(head.__add__)
        ),
    ),
)


@pytest.mark.parametrize(
    ("value", "requirement"),
    [
        ({"kind": "fs", "mode": "ro", "path": "caller"}, FsRequirement(FsMode.RO)),
        ({"kind": "fs", "mode": "rw", "path": "caller"}, FsRequirement(FsMode.RW)),
        ({"kind": "seccomp", "profile": "relaxed"}, SeccompRequirement()),
        ({"kind": "net", "target": "a.test:443"}, NetRequirement(NetTarget("a.test", 443))),
        ({"kind": "capability", "name": "shell"}, CapabilityRequirement("shell")),
    ],
)
def test_the_four_shapes_are_read(value: object, requirement: ToolRequirement) -> None:
    assert parse_requirement(value) == requirement
    assert requirement.as_json() == value


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "magic"},
        {},
        {"kind": ["fs"]},
        {"kind": "fs"},
        {"kind": "fs", "mode": "ro"},
        {"kind": "fs", "mode": "rwx", "path": "caller"},
        {"kind": "fs", "mode": ["ro"], "path": "caller"},
        {"kind": "fs", "mode": "ro", "path": "/etc"},
        {"kind": "fs", "mode": "ro", "path": "caller", "extra": 1},
        {"kind": "seccomp", "profile": "default"},
        {"kind": "seccomp", "profile": None},
        {"kind": "net", "target": "a.test"},
        {"kind": "net", "target": 443},
        {"kind": "capability", "name": ""},
        {"kind": "capability", "name": "a b"},
        {"kind": "capability", "name": "shell\n"},
        {"kind": "capability", "name": None},
        "fs",
        None,
        ["fs"],
    ],
)
def test_any_other_shape_is_refused(value: object) -> None:
    with pytest.raises(RequirementInvalid) as caught:
        parse_requirement(value)
    assert caught.value.code == "tool_requirement_invalid"
    assert caught.value.fix


def test_a_list_of_requirements_is_read_whole() -> None:
    shell = {"kind": "capability", "name": "shell"}

    assert parse_requirements([]) == ()
    assert parse_requirements([shell]) == (CapabilityRequirement("shell"),)
    with pytest.raises(RequirementInvalid):
        parse_requirements([shell, {"kind": "magic"}])
    with pytest.raises(RequirementInvalid, match="list"):
        parse_requirements(shell)


@patiently
@given(requirements)
def test_printing_and_reading_gives_the_requirement_back(requirement: ToolRequirement) -> None:
    assert parse_requirement(requirement.as_json()) == requirement


@patiently
@given(anything)
def test_reading_anything_gives_a_requirement_or_the_one_error(value: object) -> None:
    for read in (parse_requirement, parse_requirements):
        try:
            read(value)
        except RequirementInvalid as error:
            assert error.message  # noqa: PT017 - either outcome is right, any other error is not
