"""`CedarPolicy`: what Cedar is told about a call, whatever the call's arguments are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kaged.base import JsonObject
from kaged.pipeline.policies import CedarPolicy
from kaged.pipeline.policies.engine import NoDecision, Verdict
from kaged.pipeline.settings import PluginConfig


async def ask(folder: Path, text: str, question: JsonObject, **config: str) -> Verdict:
    file = folder / "p.cedar"
    file.write_text(text, encoding="utf-8")
    made = CedarPolicy(PluginConfig(name="c", kind="x", config={"policies": str(file), **config}))
    await made.initialize()
    return await made.ask(question)


def call(args: Any, **subject: Any) -> JsonObject:
    security: JsonObject = {}
    if subject:
        security = {"subject": {"id": "ann", "type": "user", **subject}}
    return {
        "hook": "tool_pre_invoke",
        "request_id": "r",
        "payload": {"name": "a.b", "args": args},
        "extensions": {"security": security},
    }


def forbids(condition: str) -> str:
    return (
        "permit(principal, action, resource);"
        f'@id("found") forbid(principal, action, resource) when {{ {condition} }};'
    )


async def test_arguments_cannot_pose_as_entities(tmp_path: Path) -> None:
    posed = {"__entity": {"type": "Role", "id": "admin"}}
    text = forbids('context.payload.args.who == Role::"admin"')
    assert (await ask(tmp_path, text, call({"who": posed}))).allowed
    as_text = forbids('context.payload.args.who like "*__entity*"')
    assert not (await ask(tmp_path, as_text, call({"who": posed}))).allowed
    called = {"__extn": {"fn": "ip", "arg": "nonsense"}}
    assert (await ask(tmp_path, text, call({"who": called}))).allowed


@pytest.mark.parametrize(
    ("value", "condition"),
    [
        (0.5, 'context.payload.args.a == "0.5"'),
        (2**63, 'context.payload.args.a == "9223372036854775808"'),
        (-(2**63), "context.payload.args.a < 0"),
        (True, "context.payload.args.a"),
        (None, "!(context.payload.args has a)"),
        ([1, None, 2.5], 'context.payload.args.a.containsAll([1, "2.5"])'),
        ({"b": {"c": None}}, "!(context.payload.args.a.b has c)"),
        ("x" * 100_000, 'context.payload.args.a like "xx*"'),
    ],
)
async def test_every_value_of_json_can_be_asked_about(
    tmp_path: Path, value: Any, condition: str
) -> None:
    verdict = await ask(tmp_path, forbids(condition), call({"a": value}))
    assert (verdict.allowed, verdict.details) == (False, {"policies": ["found"]})


async def test_who_calls_is_the_principal_with_roles_and_teams(tmp_path: Path) -> None:
    text = (
        'permit(principal == User::"ann", action, resource == Tool::"a.b")'
        ' when { principal in Role::"admin" && principal in Team::"blue"'
        ' && principal.claims.zone == "x" };'
    )
    known = {"roles": ["admin"], "teams": ["blue"], "claims": {"zone": "x"}}
    assert (await ask(tmp_path, text, call({}, **known))).allowed
    for less in ({"roles": []}, {"teams": ["red"]}, {"id": "bob"}):
        assert not (await ask(tmp_path, text, call({}, **{**known, **less}))).allowed


async def test_without_a_subject_nobody_calls(tmp_path: Path) -> None:
    text = 'permit(principal == Nobody::"nobody", action, resource);'
    assert (await ask(tmp_path, text, call({}))).allowed
    assert not (await ask(tmp_path, text, call({}, roles=[]))).allowed


async def test_policies_that_do_not_fit_their_schema_are_refused(tmp_path: Path) -> None:
    schema = tmp_path / "s.cedarschema"
    schema.write_text(
        'entity User; entity Tool; action "tool_pre_invoke" appliesTo'
        " { principal: User, resource: Tool };",
        encoding="utf-8",
    )
    wrong = "permit(principal, action, resource) when { principal.salary > 3 };"
    with pytest.raises(ValueError, match="salary"):
        await ask(tmp_path, wrong, call({}), schema_file=str(schema))


async def test_a_policy_that_cannot_be_evaluated_is_no_decision(tmp_path: Path) -> None:
    with pytest.raises(NoDecision, match="cannot be evaluated"):
        await ask(tmp_path, forbids("context.nothing == 1"), call({}))
