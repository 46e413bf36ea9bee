from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.kernel.capabilities import (
    FORMS,
    CapabilityInvalid,
    CapabilityPath,
    ExecCapability,
    FsCapability,
    ManifestCapability,
    NetCapability,
    NoNetCapability,
    PathBase,
    StorageAccess,
    StorageCapability,
    parse_capabilities,
    parse_capability,
)
from kaged.kernel.capabilities.grammar import MAX_CAPABILITY_CHARS
from kaged.kernel.capabilities.sets import MAX_CAPABILITIES
from kaged.kernel.net import ANYWHERE, NetTarget
from kaged.kernel.paths import AbsPath
from kaged.kernel.policy import FsMode
from requirements import requirement
from unit.kernel.strategies import anything, capabilities, paths, patiently


def place(path: str, base: PathBase = PathBase.HOST) -> CapabilityPath:
    return CapabilityPath(base, AbsPath(path))


def refusal(value: object) -> str:
    with pytest.raises(CapabilityInvalid) as caught:
        parse_capability(value)
    (problem,) = caught.value.problems
    return problem.nearest


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("read:fs:/opt/x", FsCapability(FsMode.RO, place("/opt/x"))),
        ("write:fs:/var/lib/m", FsCapability(FsMode.RW, place("/var/lib/m"))),
        ("read:fs:/", FsCapability(FsMode.RO, place("/"))),
        ("read:fs:/opt/a:b c", FsCapability(FsMode.RO, place("/opt/a:b c"))),
        ("read:fs:config:/memory", FsCapability(FsMode.RO, place("/memory", PathBase.CONFIG))),
        ("write:fs:project:/", FsCapability(FsMode.RW, place("/", PathBase.PROJECT))),
        ("exec:bash:/opt/x", ExecCapability("bash", place("/opt/x"))),
        ("exec:g++:/opt/a:b", ExecCapability("g++", place("/opt/a:b"))),
        ("exec:git:project:/", ExecCapability("git", place("/", PathBase.PROJECT))),
        ("net:api.openai.com:443", NetCapability(NetTarget("api.openai.com", 443))),
        ("net:localhost:*", NetCapability(NetTarget("localhost", None))),
        ("net:*", NetCapability(ANYWHERE)),
        ("net:[]", NoNetCapability()),
        ("kaged:storage:read", StorageCapability(StorageAccess.READ)),
        ("kaged:storage:write", StorageCapability(StorageAccess.WRITE)),
    ],
)
def test_every_form_is_read_and_printed_back(text: str, term: ManifestCapability) -> None:
    assert parse_capability(text) == term
    assert term.text == text


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("read:fs:/opt//x/./", "read:fs:/opt/x"),
        ("exec:bash:config://x/", "exec:bash:config:/x"),
        ("net:API.example.org.:443", "net:api.example.org:443"),
        ("net: []", "net:[]"),
    ],
)
def test_spellings_of_one_thing_become_one(text: str, normal: str) -> None:
    assert parse_capability(text).text == normal


@requirement("PH-BEY-14")
def test_an_ipv6_address_stands_in_brackets() -> None:
    term = parse_capability("net:[::1]:443")

    assert term == NetCapability(NetTarget("::1", 443))
    assert term.text == "net:[::1]:443"
    assert term != parse_capability("net:[]")


@requirement("PH-CAP-10")
@pytest.mark.parametrize(
    "text",
    [
        "read:/x",
        "fs:read:/x",
        "kaged:storage",
        "net:",
        "",
        " ",
        "read",
        "read:fs",
        "read:fs:",
        "Read:fs:/x",
        " read:fs:/x",
        "exec:bash",
        "exec::/x",
        "exec:/usr/bin/git:/x",
        "exec:a b:/x",
        "exec:-rf:/x",
        "exec:..:/x",
        "exec:bash:",
        "kaged:storage:",
        "kaged:storage:readwrite",
        "kaged:events:read",
        "net",
        "net:[x]",
        "net:example.org",
        "file:///x",
        "sudo",
        "*",
    ],
)
def test_a_text_of_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(CapabilityInvalid):
        parse_capability(text)
    with pytest.raises(CapabilityInvalid):
        parse_capabilities([text])


@requirement("PH-CAP-11")
@pytest.mark.parametrize(
    "text",
    [
        "read:fs:data",
        "write:fs:./data",
        "exec:bash:data",
        "read:fs:~/data",
        "read:fs:config:memory",
    ],
)
def test_paths_must_be_absolute(text: str) -> None:
    with pytest.raises(CapabilityInvalid, match="absolute"):
        parse_capability(text)
    head = text.rpartition(":")[0].removesuffix(":config")
    for place in ("/data", "config:/data", "project:/data"):
        assert parse_capability(f"{head}:{place}").text == f"{head}:{place}"


@pytest.mark.parametrize("text", ["read:fs:config:/../x", "read:fs:/a/..", "exec:a:project:/.."])
def test_paths_may_not_climb(text: str) -> None:
    with pytest.raises(CapabilityInvalid, match=r"\.\."):
        parse_capability(text)


@requirement("PH-CAP-13")
@pytest.mark.parametrize(
    "text",
    ["read:fs:/opt/*", "write:fs:/opt/a?", "read:fs:/opt/[ab]", "exec:bash:/opt/**", "read:fs:*"],
)
def test_glob_patterns_are_refused(text: str) -> None:
    with pytest.raises(CapabilityInvalid, match="glob"):
        parse_capability(text)


@requirement("PH-CAP-15")
@pytest.mark.parametrize(
    "text", ["net:h:0", "net:h:70000", "net::443", "net:h:x", "net:h:", "net:h:1.5", "net:h:-1"]
)
def test_ports_and_hosts_must_be_real(text: str) -> None:
    with pytest.raises(CapabilityInvalid):
        parse_capability(text)
    for port in ("1", "65535", "*"):
        assert parse_capability(f"net:h:{port}").text == f"net:h:{port}"


@pytest.mark.parametrize(
    "text",
    ["read:fs:/a\nb", "read:fs:/a\0", "read:fs:/\u202egpj.exe", "read:fs:/a\u200b", "net:a\t:1"],
)
def test_texts_that_a_terminal_would_not_show_are_refused(text: str) -> None:
    with pytest.raises(CapabilityInvalid) as caught:
        parse_capability(text)
    assert str(caught.value).isprintable()


def test_an_endless_text_is_refused_and_cut_in_the_message() -> None:
    with pytest.raises(CapabilityInvalid) as caught:
        parse_capability("read:fs:/" + "a" * MAX_CAPABILITY_CHARS)
    assert len(str(caught.value)) < 600


def test_a_path_that_linux_would_not_take_is_refused() -> None:
    with pytest.raises(CapabilityInvalid, match="bytes"):
        parse_capability("read:fs:/" + "é" * 2048)


@requirement("PH-AMB-02")
def test_no_network_can_be_written_in_three_ways_and_no_other_mapping_exists() -> None:
    spelled = parse_capabilities(["read:fs:/x", "net:[]"])

    assert parse_capabilities(["read:fs:/x", {"net": []}]) == spelled
    assert parse_capabilities(["read:fs:/x", "net: []"]) == spelled
    assert spelled.texts == ("read:fs:/x", "net:[]")
    # Claims of a running plugin are read the same way.
    assert spelled.overreach(["net: []", {"net": []}, "net:[]"]) == ()
    for mapping in ({"net": ["x"]}, {"net": []} | {"fs": []}, {"fs": []}, {}, {"net": None}):
        with pytest.raises(CapabilityInvalid):
            parse_capabilities([mapping])
        assert len(spelled.overreach([mapping])) == 1


@requirement("PH-AMB-45")
def test_no_network_beside_network_is_a_contradiction() -> None:
    with pytest.raises(CapabilityInvalid, match="contradicts") as caught:
        parse_capabilities(["net:[]", "net:h:1"])

    assert [p.text for p in caught.value.problems] == ["net:h:1"]
    assert len(parse_capabilities([])) == 0


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("read:/x", "read:fs:/x"),
        ("fs:read:/x", "read:fs:/x"),
        ("fs:write:/x/y", "write:fs:/x/y"),
        ("rw:fs:/x", "write:fs:/x"),
        ("Read:fs:/x", "read:fs:/x"),
        (" read:fs:/x ", "read:fs:/x"),
        ("read:fs:data", "read:fs:/data"),
        ("read:fs:~/data", "read:fs:/data"),
        ("read:fs:/opt/*", "read:fs:/opt"),
        ("read:fs:/opt/../etc", "read:fs:/opt/etc"),
        ("read:fs:config:/../x", "read:fs:config:/x"),
        ("read:fs:", ""),
        ("read:fs:/*", ""),
        ("kaged:storage", "kaged:storage:read"),
        ("storage:write", "kaged:storage:write"),
        ("net:", "net:[]"),
        ("net:example.org", "net:example.org:443"),
        ("net:https://example.org/path", "net:example.org:443"),
        ("https://example.org:8443", "net:example.org:8443"),
        ("net:http://", "net:[]"),
        ("NET:EXAMPLE.org:80", "net:example.org:80"),
        ("exec:/usr/bin/git:/x", "exec:git:/x"),
        ("run:git:/x", "exec:git:/x"),
        ("exec:git", ""),
        ("sudo", ""),
        ("", ""),
        ({"net": ["x"]}, "net:[]"),
        (7, ""),
    ],
)
def test_the_refusal_names_the_nearest_form(wrong: object, nearest: str) -> None:
    assert refusal(wrong) == nearest


def test_the_refusal_says_what_where_and_how() -> None:
    with pytest.raises(CapabilityInvalid) as caught:
        parse_capabilities(["net:*", "read:/x", 3, "net:h:0"])

    error = caught.value
    assert error.code == "manifest_capability_invalid"
    assert [p.where for p in error.problems] == [f"capabilities[{i}]" for i in (1, 2, 3)]
    assert str(error.problems[0]) == (
        "capabilities[1]: read:/x: matches no known form; did you mean read:fs:/x?"
    )
    assert str(error.problems[1]) == "capabilities[2]: 3: must be a text"
    assert error.data["problems"] == [
        {"where": p.where, "text": p.text, "message": p.message, "nearest": p.nearest}
        for p in error.problems
    ]
    assert all(form in str(error) for form in FORMS)


@pytest.mark.parametrize("value", [None, "read:fs:/x", {"read:fs:/x": 1}, 3])
def test_a_capability_list_is_a_list(value: object) -> None:
    with pytest.raises(CapabilityInvalid, match="list"):
        parse_capabilities(value)


def test_a_list_too_long_to_read_is_refused() -> None:
    entries = [f"read:fs:/{i}" for i in range(MAX_CAPABILITIES + 1)]

    assert len(parse_capabilities(entries[1:])) == MAX_CAPABILITIES
    with pytest.raises(CapabilityInvalid, match="at most"):
        parse_capabilities(entries)


def test_a_repeated_entry_counts_once_and_stays_in_what_was_declared() -> None:
    caps = parse_capabilities(["read:fs:/x", "read:fs:/x/", {"net": []}])

    assert caps.texts == ("read:fs:/x", "net:[]")
    assert caps.declared == ("read:fs:/x", "read:fs:/x/", "net: []")


@patiently
@given(capabilities(paths))
def test_printing_and_reading_gives_the_capability_back(term: ManifestCapability) -> None:
    assert parse_capability(term.text) == term


HEADS = ["read:fs:", "write:fs:", "exec:", "exec:sh:", "net:", "kaged:storage:", "config:", "fs:"]


@patiently
@given(st.sampled_from(["", *HEADS]), st.text(max_size=20))
def test_reading_and_printing_settles_after_one_step(head: str, rest: str) -> None:
    try:
        term = parse_capability(head + rest)
    except CapabilityInvalid as error:
        # Whatever is suggested can be written as it stands.
        for problem in error.problems:
            assert not problem.nearest or parse_capability(problem.nearest).text == problem.nearest
    else:
        assert parse_capability(term.text) == term


@patiently
@given(anything)
def test_reading_anything_gives_a_capability_or_the_one_error(value: object) -> None:
    for read in (parse_capability, parse_capabilities):
        try:
            read(value)
        except CapabilityInvalid as error:
            assert error.problems  # noqa: PT017 - either outcome is right, any other error is not
