from __future__ import annotations

from typing import Any

import pytest

from kaged.base import ManualClock
from kaged.pipeline import (
    AgentExtension,
    AgentPreInvokePayload,
    Extensions,
    HttpExtension,
    MCPExtension,
    PluginConfig,
    PromptPosthookPayload,
    RequestExtension,
    ResourcePostFetchPayload,
    SecurityExtension,
    SubjectExtension,
    SubjectType,
    ToolMetadata,
    ToolPostInvokePayload,
    ToolPreInvokePayload,
)
from kaged.pipeline.policies import (
    DenyRules,
    EgressGuard,
    HeaderAllowlist,
    SecretRedaction,
    SubjectRateLimit,
    ratelimit,
)
from kaged.pipeline.policies.texts import compile_names, map_texts
from unit.pipeline.lab import HOOK, Lab, entry
from unit.pipeline.material import ALL_CAPABILITIES

KEY = "AKIAIOSFODNN7EXAMPLE"
HEADER = "Bearer abcdefghijklmnop"


def config(options: Any = None, *capabilities: str) -> PluginConfig:
    return PluginConfig(name="p", kind="a.B", config=options, capabilities=frozenset(capabilities))


def who(
    name: str, *labels: str, roles: tuple[str, ...] = (), teams: tuple[str, ...] = ()
) -> Extensions:
    return Extensions(
        security=SecurityExtension(
            labels=frozenset(labels),
            subject=SubjectExtension(
                id=name, type=SubjectType.USER, roles=frozenset(roles), teams=frozenset(teams)
            ),
        )
    )


# -- redaction -----------------------------------------------------------------------------------


async def redacted(
    payload: Any, hook: str, extensions: Extensions | None = None, **options: Any
) -> Any:
    lab = await Lab.of(entry(SecretRedaction, "read_labels", hooks=[hook], config=options or None))
    result = await lab.call(payload, hook=hook, extensions=extensions)
    return result.modified_payload


async def test_secrets_are_taken_out_of_results_of_every_kind() -> None:
    nested = {
        "text": f"key {KEY} end",
        "list": [HEADER, {"n": 5, "password": "password = hunter22"}],
    }
    tool = await redacted(ToolPostInvokePayload(name="t", result=nested), "tool_post_invoke")
    assert tool.result["text"] == "key [redacted] end"
    assert tool.result["list"][0] == "[redacted]"
    assert "hunter22" not in repr(tool)
    assert tool.result["list"][1]["n"] == 5
    prompt = await redacted(
        PromptPosthookPayload(
            prompt_id="p", result={"messages": [{"role": "user", "content": {"text": KEY}}]}
        ),
        "prompt_post_fetch",
    )
    assert prompt.result.messages[0].content.text == "[redacted]"
    resource = await redacted(
        ResourcePostFetchPayload(uri="u", content=f"x {KEY}"), "resource_post_fetch"
    )
    assert resource.content == "x [redacted]"


async def test_clean_results_are_not_touched() -> None:
    assert (
        await redacted(
            ToolPostInvokePayload(name="t", result={"a": ["nothing here", 5, None]}),
            "tool_post_invoke",
        )
        is None
    )


async def test_labels_choose_the_patterns() -> None:
    options = {
        "labels": {"pii": ["email", "badge"]},
        "patterns": {"badge": "B-[0-9]{4}"},
        "replacement": r"<\1>",
    }
    text = "bob@example.com B-1234"
    payload = ToolPostInvokePayload(name="t", result=text)
    labelled = await redacted(payload, "tool_post_invoke", who("a", "pii"), **options)
    assert labelled.result == r"<\1> <\1>"
    assert await redacted(payload, "tool_post_invoke", who("a"), **options) is None
    assert await redacted(payload, "tool_post_invoke", None, **options) is None


@pytest.mark.parametrize(
    "options",
    [
        {"labels": {"*": ["no_such_pattern"]}},
        {"labels": {"*": ["mine"]}, "patterns": {"mine": "("}},
        {"lables": {}},
    ],
)
def test_redaction_refuses_options_that_would_weaken_it(options: Any) -> None:
    with pytest.raises(ValueError, match=r"pattern|expression|lables"):
        SecretRedaction(config(options))


# -- headers -------------------------------------------------------------------------------------


async def test_only_allowed_headers_stay() -> None:
    lab = await Lab.of(
        entry(
            HeaderAllowlist,
            "write_headers",
            hooks=[HOOK, "agent_pre_invoke"],
            config={"allow": ["Accept", "x-trace-*"]},
        )
    )
    ext = Extensions(http=HttpExtension(headers={"accept": "a", "X-Trace-Id": "t", "cookie": "c"}))
    result = await lab.call(extensions=ext)
    assert result.modified_extensions is not None
    assert result.modified_extensions.http == HttpExtension(
        headers={"accept": "a", "X-Trace-Id": "t"}
    )
    agent = AgentPreInvokePayload(agent_id="a", messages=[])
    cut = await lab.call(agent, hook="agent_pre_invoke", extensions=ext)
    assert cut.modified_extensions is not None
    for fine in (None, Extensions(), Extensions(http=HttpExtension(headers={"accept": "a"}))):
        assert (await lab.call(extensions=fine)).modified_extensions is None


def test_a_header_policy_that_could_change_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="write_headers"):
        HeaderAllowlist(config({"allow": ["x"]}, "read_headers"))
    with pytest.raises(ValueError, match="allow"):
        HeaderAllowlist(config({}, "write_headers"))


# -- rate limit ----------------------------------------------------------------------------------


async def test_each_subject_has_a_rate_of_its_own(clock: ManualClock) -> None:
    def limited(settings: PluginConfig) -> SubjectRateLimit:
        return SubjectRateLimit(settings, clock)

    lab = await Lab.of(
        entry(limited, "read_subject", config={"rate": "2/m", "tools": ["db.*"]}), clock=clock
    )

    async def allowed(subject: str | None, tool: str = "db.query") -> bool:
        ext = None if subject is None else who(subject)
        result = await lab.call(ToolPreInvokePayload(name=tool), extensions=ext)
        if not result.continue_processing:
            assert result.violation is not None
            assert result.violation.http_status_code == 429
            assert result.violation.http_headers is not None
            assert int(result.violation.http_headers["retry-after"]) > 0
        return result.continue_processing

    assert [await allowed("alice") for _ in range(3)] == [True, True, False]
    assert [await allowed("bob") for _ in range(2)] == [True, True]
    assert await allowed("alice", "other.tool")
    assert [await allowed(None) for _ in range(3)] == [True, True, False]
    clock.advance(30)
    assert [await allowed("alice") for _ in range(2)] == [True, False]
    clock.advance(3600)
    assert [await allowed("alice") for _ in range(3)] == [True, True, False]


async def test_the_table_of_subjects_is_bounded(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratelimit, "MAX_SUBJECTS", 3)
    plugin = SubjectRateLimit(config({"rate": "1/h"}, "read_subject"), clock)
    for name in "abcd":
        assert plugin._take(name) is None
    assert len(plugin._buckets) == 3
    assert plugin._take("d") is not None
    assert plugin._take("a") is None, "the oldest was forgotten"


@pytest.mark.parametrize(
    ("options", "capabilities", "word"),
    [
        ({"rate": "60"}, ["read_subject"], "60/m"),
        ({"rate": "0/m"}, ["read_subject"], "60/m"),
        ({"rate": "5/m"}, ["read_labels"], "read_subject"),
        ({}, ["read_subject"], "rate"),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused(
    options: Any, capabilities: list[str], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        SubjectRateLimit(config(options, *capabilities))


# -- egress --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "annotations", "options", "denied"),
    [
        (["pii"], {"net": True}, {}, True),
        (["pii"], {"net": False}, {}, False),
        (["pii"], {"openWorldHint": True}, {}, True),
        (["pii"], {"net": False, "openWorldHint": True}, {}, False),
        (["pii"], {}, {}, True),
        (["pii"], {}, {"unknown": "allow"}, False),
        (["pii"], None, {}, True),
        (["pii"], {"net": False}, {"tools": ["web.*"]}, True),
        (["pii"], {"net": True}, {"except_tools": ["web.post"]}, False),
        (["public"], {"net": True}, {}, False),
        ([], {"net": True}, {}, False),
        (["secret"], {"net": True}, {"labels": ["secret"]}, True),
    ],
)
async def test_labelled_data_does_not_leave(
    labels: list[str], annotations: dict[str, Any] | None, options: dict[str, Any], denied: bool
) -> None:
    lab = await Lab.of(entry(EgressGuard, "read_labels", config=options))
    mcp = (
        None
        if annotations is None
        else MCPExtension(tool=ToolMetadata(name="web.post", annotations=annotations))
    )
    ext = Extensions(security=SecurityExtension(labels=frozenset(labels)), mcp=mcp)
    result = await lab.call(ToolPreInvokePayload(name="web.post"), extensions=ext)
    assert result.continue_processing is not denied
    if denied:
        assert result.violation is not None
        assert result.violation.code == "egress_denied"


async def test_the_guard_does_not_believe_metadata_of_another_tool() -> None:
    lab = await Lab.of(entry(EgressGuard, "append_labels"))
    ext = Extensions(
        security=SecurityExtension(labels=frozenset({"pii"})),
        mcp=MCPExtension(tool=ToolMetadata(name="other", annotations={"net": False})),
    )
    result = await lab.call(ToolPreInvokePayload(name="web.post"), extensions=ext)
    assert result.continue_processing is False
    assert (await lab.call(extensions=None)).continue_processing is True
    with pytest.raises(ValueError, match="read_labels"):
        EgressGuard(config({}))


# -- deny rules ----------------------------------------------------------------------------------

RULES = {
    "rules": [
        {"deny": "shell.*", "unless": {"roles": ["admin"]}, "because": "only admins run commands"},
        {
            "deny": ["file.write", "file.delete"],
            "when": {"args": {"path": "/etc/*"}},
            "because": "system files stay as they are",
        },
        {"deny": "mail.send", "when": {"labels": ["pii"]}, "because": "no personal data by mail"},
        {"deny": "db.drop", "when": {"users": ["mallory"]}, "because": "not mallory"},
        {"deny": "pay.*", "when": {"teams": ["interns"]}, "because": "not interns"},
        {"deny": "git.push", "when": {"agents": ["lead/*"]}, "because": "not subagents"},
        {"deny": "deploy", "when": {"environments": ["production"]}, "because": "not now"},
    ]
}


@pytest.mark.parametrize(
    ("tool", "args", "extensions", "because"),
    [
        ("shell.run", {}, who("a"), "only admins run commands"),
        ("shell.run", {}, who("a", roles=("admin",)), None),
        ("shell.run", {}, None, "only admins run commands"),
        ("file.write", {"path": "/etc/passwd"}, None, "system files stay as they are"),
        ("file.write", {"path": "/home/x"}, None, None),
        ("file.delete", {}, None, None),
        ("mail.send", {}, who("a", "pii"), "no personal data by mail"),
        ("mail.send", {}, who("a"), None),
        ("db.drop", {}, who("mallory"), "not mallory"),
        ("db.drop", {}, who("alice"), None),
        ("db.drop", {}, None, None),
        ("pay.invoice", {}, who("a", teams=("interns",)), "not interns"),
        ("pay.invoice", {}, who("a"), None),
        ("git.push", {}, Extensions(agent=AgentExtension(agent_id="lead/coder")), "not subagents"),
        ("git.push", {}, Extensions(agent=AgentExtension()), None),
        ("git.push", {}, None, None),
        ("deploy", {}, Extensions(request=RequestExtension(environment="production")), "not now"),
        ("deploy", {}, Extensions(), None),
        ("other", {}, who("mallory"), None),
    ],
)
async def test_rules_read_as_they_are_written(
    tool: str, args: dict[str, Any], extensions: Extensions | None, because: str | None
) -> None:
    lab = await Lab.of(entry(DenyRules, *ALL_CAPABILITIES, config=RULES))
    result = await lab.call(ToolPreInvokePayload(name=tool, args=args), extensions=extensions)
    if because is None:
        assert result.continue_processing is True
    else:
        assert result.violation is not None
        assert result.violation.reason == because


@pytest.mark.parametrize(
    ("part", "needed"),
    [
        ({"roles": ["x"]}, "read_roles"),
        ({"teams": ["x"]}, "read_teams"),
        ({"users": ["x"]}, "read_subject"),
        ({"labels": ["x"]}, "read_labels"),
        ({"agents": ["x"]}, "read_agent"),
    ],
)
def test_a_rule_that_could_never_see_what_it_asks_about_is_refused(
    part: dict[str, Any], needed: str
) -> None:
    for place in ("when", "unless"):
        options = {"rules": [{"deny": "x", "because": "y", place: part}]}
        with pytest.raises(ValueError, match=needed):
            DenyRules(config(options))
        DenyRules(config(options, needed))


def test_rules_with_typos_are_refused() -> None:
    for options in ({}, {"rules": []}, {"rules": [{"denny": "x", "because": "y"}]}):
        with pytest.raises(ValueError, match="rules"):
            DenyRules(config(options))


# -- helpers -------------------------------------------------------------------------------------


def test_names_match_with_wildcards_and_case() -> None:
    test = compile_names(["shell.*", "file.read"])
    assert test("shell.run")
    assert test("file.read")
    assert not test("file.reads")
    assert not test("Shell.run")
    assert not compile_names([])("x")


def test_mapping_texts_reaches_every_text_or_says_that_it_cannot() -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="nested deeper"):
        map_texts(deep, str.upper)
    value = {"a": ["b", ("c", frozenset({"d"})), {"e"}], "f": 1}
    assert map_texts(value, str.upper) == {"A": ["B", ("C", frozenset({"D"})), {"E"}], "F": 1}
    same = {"a": ["b", ("c",), {"d"}]}
    assert map_texts(same, lambda text: text) is same


async def test_a_secret_hides_neither_in_keys_nor_in_tuples_nor_deep_down() -> None:
    key = "AKIAIOSFODNN7EXAMPLE"
    result: Any = {key: 1, "pair": (key, {key})}
    payload = ToolPostInvokePayload(name="t", result=result)
    found = await redacted(payload, "tool_post_invoke", None)
    assert key not in repr(found)
    deep: Any = key
    for _ in range(60):
        deep = [deep]
    found = await redacted(ToolPostInvokePayload(name="t", result=deep), "tool_post_invoke", None)
    assert key not in repr(found)


def test_redaction_by_label_is_refused_when_it_could_see_no_label() -> None:
    options = {"labels": {"pii": ["email"]}}
    with pytest.raises(ValueError, match="read_labels"):
        SecretRedaction(config(options))
    SecretRedaction(config(options, "read_labels"))
    SecretRedaction(config({"labels": {"*": ["email"]}}))
