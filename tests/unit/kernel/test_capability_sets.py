from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.capabilities import (
    CapabilityPath,
    CapabilitySet,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    PathBase,
    StorageAccess,
    StorageCapability,
    covers,
    diff,
    parse_capabilities,
    parse_capability,
)
from kaged.kernel.net import matches
from kaged.kernel.paths import AbsPath, contains
from kaged.kernel.policy import FsMode
from unit.kernel.strategies import (
    HOSTS,
    PORTS,
    anything,
    capabilities,
    capability_sets,
    patiently,
    places,
    small_paths,
)

# A small world in which every right can be listed: all paths that the sets can name, one level
# more, and names that no set mentions, which stand for all the others.
WORLD = [
    CapabilityPath(base, AbsPath("/" + "/".join(parts)))
    for base in PathBase
    for depth in range(4)
    for parts in itertools.product("abz", repeat=depth)
]
DESTINATIONS = [(h, p) for h in (*HOSTS, "other.example", "9.9.9.9") for p in (*PORTS, 9)]


def rights(items: tuple[ManifestCapability, ...]) -> set[tuple[object, ...]]:
    """List every single right that a capability list gives, the slow and plain way."""
    return {*_fs_rights(items), *_other_rights(items)}


def _fs_rights(items: tuple[ManifestCapability, ...]) -> Iterator[tuple[object, ...]]:
    entries = [i for i in items if isinstance(i, FsCapability)]
    for place in WORLD:
        above = [e for e in entries if _inside(e.place, place)]
        deepest = max((len(e.place.path.rstrip("/")) for e in above), default=0)
        deciding = {e.mode for e in above if len(e.place.path.rstrip("/")) == deepest}
        if deciding:
            yield "read", place
        if FsMode.RW in deciding:
            yield "write", place


def _other_rights(items: tuple[ManifestCapability, ...]) -> Iterator[tuple[object, ...]]:
    for item in items:
        if isinstance(item, ExecCapability):
            yield from (("exec", item.binary, p) for p in WORLD if _inside(item.place, p))
        elif isinstance(item, NetCapability):
            yield from (("net", *d) for d in DESTINATIONS if matches(item.target, *d))
        elif isinstance(item, StorageCapability):
            yield ("select",)
            if item.access is StorageAccess.WRITE:
                yield ("insert",)


def _inside(parent: CapabilityPath, child: CapabilityPath) -> bool:
    return parent.base == child.base and contains(parent.path, child.path)


@patiently
@given(capabilities(small_paths), capabilities(small_paths))
def test_a_term_covers_another_exactly_when_it_gives_all_its_rights(
    one: ManifestCapability, other: ManifestCapability
) -> None:
    assert covers(one, other) is (rights((other,)) <= rights((one,)))


@pytest.mark.parametrize(
    ("one", "other", "covered"),
    [
        ("read:fs:/a", "read:fs:/a/b", True),
        ("read:fs:/a", "read:fs:/ab", False),
        ("read:fs:/a", "write:fs:/a", False),
        ("write:fs:/a", "read:fs:/a", True),
        ("read:fs:/a", "read:fs:config:/a", False),
        ("exec:git:/a", "exec:git:/a/b", True),
        ("exec:git:/a/b", "exec:git:/a", False),
        ("exec:git:/a", "exec:gi:/a", False),
        ("net:h:*", "net:h:1", True),
        ("net:h:1", "net:h:2", False),
        ("net:*", "net:h:1", True),
        ("net:*", "net:localhost:1", False),
        ("kaged:storage:write", "kaged:storage:read", True),
        ("kaged:storage:read", "kaged:storage:write", False),
        ("read:fs:/a", "net:[]", True),
        ("net:[]", "net:h:1", False),
        ("write:fs:/", "exec:git:/", False),
        ("net:*", "kaged:storage:read", False),
    ],
)
def test_terms_cover_what_they_include(one: str, other: str, covered: bool) -> None:
    assert covers(parse_capability(one), parse_capability(other)) is covered


@patiently
@given(capability_sets, capability_sets)
def test_a_list_is_within_another_exactly_when_it_gives_no_more_rights(
    one: CapabilitySet, other: CapabilitySet
) -> None:
    assert one.issubset(other) is (rights(one.items) <= rights(other.items))


@patiently
@given(capability_sets, capabilities(small_paths))
def test_a_list_covers_a_term_exactly_when_it_gives_all_its_rights(
    caps: CapabilitySet, term: ManifestCapability
) -> None:
    assert caps.covers(term) is (rights((term,)) <= rights(caps.items))


@patiently
@given(capability_sets, places(small_paths))
def test_the_mode_of_a_path_is_what_the_rights_say(
    caps: CapabilitySet, place: CapabilityPath
) -> None:
    held = rights(caps.items)
    expected = None
    if ("read", place) in held:
        expected = FsMode.RW if ("write", place) in held else FsMode.RO
    assert caps.mode_at(place) is expected


@patiently
@given(capability_sets)
def test_every_list_is_within_itself_and_its_normalised_form_gives_the_same(
    caps: CapabilitySet,
) -> None:
    normal = caps.normalised()

    assert caps.issubset(caps)
    assert rights(normal.items) == rights(caps.items)
    assert normal.normalised() == normal
    assert len(normal) <= len(caps)


@patiently
@given(capability_sets, capability_sets)
def test_two_lists_within_each_other_have_one_normalised_form(
    one: CapabilitySet, other: CapabilitySet
) -> None:
    both = one.issubset(other) and other.issubset(one)
    assert both is (one.normalised() == other.normalised())


@patiently
@given(capability_sets, capability_sets)
def test_spelling_a_list_differently_keeps_its_normalised_form(
    one: CapabilitySet, extra: CapabilitySet
) -> None:
    more = CapabilitySet.of([*one, *(item for item in extra if one.covers(item))])
    if rights(more.items) == rights(one.items):
        assert more.normalised() == one.normalised()


@patiently
@given(capability_sets, capability_sets, capability_sets)
def test_being_within_is_transitive(a: CapabilitySet, b: CapabilitySet, c: CapabilitySet) -> None:
    # Chains are rare among random lists, so the middle and the end are made to contain the start.
    for middle, end in ((b, c), (a.joined(b), a.joined(b).joined(c))):
        if a.issubset(middle) and middle.issubset(end):
            assert a.issubset(end)


def test_a_narrower_read_inside_a_wider_write_takes_something_away() -> None:
    wide = parse_capabilities(["write:fs:/a"])
    holed = parse_capabilities(["write:fs:/a", "read:fs:/a/b"])

    assert holed.issubset(wide)
    assert not wide.issubset(holed)
    assert not holed.covers(parse_capability("write:fs:/a/b/c"))
    assert not holed.covers(parse_capability("write:fs:/a"))
    assert holed.covers(parse_capability("write:fs:/a/x"))
    assert holed.covers(parse_capability("read:fs:/a"))


def test_the_bases_are_worlds_apart() -> None:
    root = parse_capabilities(["write:fs:/"])

    assert not root.covers(parse_capability("read:fs:config:/x"))
    assert not root.covers(parse_capability("read:fs:project:/x"))


def test_claims_are_compared_as_whole_texts() -> None:
    declared = parse_capabilities(
        ["read:fs:/opt/x", "exec:git:/opt/x", "net:api.test:*", "kaged:storage:write"]
    )

    assert declared.overreach([]) == ()
    assert declared.overreach(["read:fs:/opt/x/", "kaged:storage:read", "net:API.test:*"]) == ()
    over = ["read:fs:/opt/x/y", "net:api.test:443", "write:fs:/opt/x", "net:[]", "rubbish", 5]
    assert declared.overreach(over) == tuple(map(str, over))


def test_reading_storage_does_not_cover_a_claim_to_write() -> None:
    declared = parse_capabilities(["kaged:storage:read"])

    assert declared.overreach(["kaged:storage:write"]) == ("kaged:storage:write",)
    assert declared.overreach(["kaged:storage:read"]) == ()


@patiently
@given(capability_sets, st.lists(anything, max_size=4))
def test_claims_of_any_shape_are_overreach_and_not_an_error(
    declared: CapabilitySet, claims: list[object]
) -> None:
    assert all(isinstance(text, str) for text in declared.overreach(claims))


def test_the_operators_grants_are_added() -> None:
    manifest = parse_capabilities(["read:fs:/x", "net:[]"])

    assert manifest.joined(parse_capabilities(["write:fs:config:/memory"])).texts == (
        "read:fs:/x",
        "net:[]",
        "write:fs:config:/memory",
    )
    assert manifest.joined(parse_capabilities(["net:h:1", "read:fs:/x"])).texts == (
        "read:fs:/x",
        "net:h:1",
    )


@patiently
@given(capability_sets, capability_sets)
def test_adding_network_storage_or_programs_never_takes_rights_away(
    one: CapabilitySet, other: CapabilitySet
) -> None:
    plain = CapabilitySet.of(i for i in other if not isinstance(i, FsCapability))
    assert one.issubset(one.joined(plain))


def test_a_diff_lists_what_came_went_and_stayed() -> None:
    old = parse_capabilities(["exec:bash:/opt/x", "read:fs:/opt/x", "kaged:storage:write"])
    new = parse_capabilities(["net:api.openai.com:443", "read:fs:/opt/x/", "kaged:storage:read"])

    change = diff(old, new)

    assert [i.text for i in change.added] == ["net:api.openai.com:443", "kaged:storage:read"]
    assert [i.text for i in change.removed] == ["exec:bash:/opt/x", "kaged:storage:write"]
    assert [i.text for i in change.same] == ["read:fs:/opt/x"]
    assert [i.text for i in change.widening] == ["net:api.openai.com:443"]
    assert change.widens
    assert change.changed


@pytest.mark.parametrize(
    ("old", "new", "widening", "widens"),
    [
        (["read:fs:/a/b"], ["read:fs:/a"], ["read:fs:/a"], True),
        (["read:fs:/a"], ["read:fs:/a/b"], [], False),
        (["read:fs:/a"], ["write:fs:/a"], ["write:fs:/a"], True),
        (["net:h:1"], ["net:h:*"], ["net:h:*"], True),
        (["net:*"], ["net:*", "net:localhost:1"], ["net:localhost:1"], True),
        (["write:fs:/a"], ["write:fs:/a", "read:fs:/a/b"], [], False),
        # Taking an entry away can widen, too.
        (["write:fs:/a", "read:fs:/a/b"], ["write:fs:/a"], [], True),
        (["net:[]"], [], [], False),
        (["read:fs:/a"], ["read:fs:/a"], [], False),
    ],
)
def test_a_diff_knows_what_widens(
    old: list[str], new: list[str], widening: list[str], widens: bool
) -> None:
    change = diff(parse_capabilities(old), parse_capabilities(new))

    assert [i.text for i in change.widening] == widening
    assert change.widens is widens
    assert change.changed is (old != new)


def test_nothing_is_said_by_a_list_that_only_says_no_network() -> None:
    assert CapabilitySet.of([NoNetCapability()]).normalised() == CapabilitySet()
