"""Bindings: where a credential may go, for which requests, and what a cage holds of it."""

from __future__ import annotations

import pytest

from kaged.kernel.bindings import (
    ANY_BASIC,
    BEARER,
    BindingInvalid,
    CageCredential,
    CageCredentials,
    CredentialBinding,
    Destination,
    Place,
    PlaceKind,
    RequestLine,
    SecretValue,
    body_rule,
    decide_request,
    new_placeholder,
)
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.request_paths import PathPatternInvalid
from kaged.kernel.request_rules import GitRule, GraphqlRule, RequestRule, Rule, read_only


def _binding(*rules: Rule, name: str = "github") -> CredentialBinding:
    return CredentialBinding(name, (Destination("api.test"),), (BEARER,), rules)


def _asked(
    method: str, path: str, query: str = "", host: str = "api.test", port: int = 443
) -> RequestLine:
    return RequestLine(method, host, port, path, query)


def test_without_rules_everything_at_the_destination_is_allowed_and_nothing_elsewhere() -> None:
    binding = _binding()
    assert decide_request(binding, _asked("DELETE", "/x")).allowed
    assert decide_request(binding, _asked("GET", "/x", host="API.test.")).allowed
    elsewhere = decide_request(binding, _asked("GET", "/x", host="evil.test"))
    assert not elsewhere.allowed
    assert elsewhere.rule == "credential.destination"
    assert not decide_request(binding, _asked("GET", "/x", port=8443)).allowed
    assert not decide_request(binding, _asked("GET", "/x", host="api.test.evil.test")).allowed
    assert not decide_request(binding, _asked("GET", "/x/../y")).allowed
    assert not decide_request(binding, _asked("get", "/x")).allowed
    assert not decide_request(binding, _asked("GET\r\nX", "/x")).allowed


def test_with_rules_only_what_one_allows_and_none_denies_passes() -> None:
    binding = _binding(
        RequestRule(("GET",), "/repos/acme/**"),
        RequestRule(("POST",), "/repos/acme/x/pulls"),
        RequestRule((), "/repos/acme/secret/**", allow=False),
    )
    assert decide_request(binding, _asked("GET", "/repos/acme/x")).allowed
    assert decide_request(binding, _asked("POST", "/repos/acme/x/pulls")).allowed
    assert not decide_request(binding, _asked("POST", "/repos/acme/x/issues")).allowed
    assert not decide_request(binding, _asked("GET", "/repos/other/x")).allowed
    assert not decide_request(binding, _asked("GET", "/repos/acme/secret/a")).allowed
    assert not decide_request(binding, _asked("GET", "/repos/acme/SECRET%2Fa")).allowed


def test_a_registry_is_read_only() -> None:
    binding = _binding(read_only())
    assert decide_request(binding, _asked("GET", "/@scope%2Fname")).allowed
    assert not decide_request(binding, _asked("PUT", "/@scope%2Fname")).allowed


def test_git_is_fetched_everywhere_and_pushed_where_the_refs_allow_it() -> None:
    rule = GitRule("/acme/*", push=("agent/*", "refs/tags/v*"))
    binding = _binding(rule)
    for repository in ("/acme/x", "/acme/x.git"):
        refs = f"{repository}/info/refs"
        assert decide_request(binding, _asked("GET", refs, "service=git-upload-pack")).allowed
        assert decide_request(binding, _asked("GET", refs, "service=git-receive-pack")).allowed
        push = _asked("POST", f"{repository}/git-receive-pack")
        assert decide_request(binding, push).allowed
        assert body_rule(binding, push) is rule
        fetch = _asked("POST", f"{repository}/git-upload-pack")
        assert decide_request(binding, fetch).allowed
        assert body_rule(binding, fetch) is None
    assert not decide_request(binding, _asked("GET", "/acme/x/info/refs")).allowed
    twice = "service=git-upload-pack&service=git-receive-pack"
    assert not decide_request(binding, _asked("GET", "/acme/x/info/refs", twice)).allowed
    assert not decide_request(binding, _asked("POST", "/other/x/git-upload-pack")).allowed
    assert not decide_request(binding, _asked("GET", "/acme/x/settings")).allowed
    assert rule.decide_push(["refs/heads/agent/a/b", "refs/tags/v1"]).allowed
    for ref in ("refs/heads/main", "refs/heads/agent", "agent/x", "refs/tags/x", "refs/agent/x"):
        assert not rule.decide_push(["refs/heads/agent/a", ref]).allowed, ref
    reader = _binding(GitRule("/acme/*"))
    assert not decide_request(reader, _asked("POST", "/acme/x/git-receive-pack")).allowed


def test_graphql_is_decided_by_root_fields() -> None:
    rule = GraphqlRule("/graphql", queries=("issue*",), mutations=("addComment",))
    binding = _binding(rule)
    assert decide_request(binding, _asked("POST", "/graphql")).allowed
    assert body_rule(binding, _asked("POST", "/graphql")) is rule
    assert not decide_request(binding, _asked("GET", "/graphql", "query={x}")).allowed
    assert not decide_request(binding, _asked("POST", "/graphql", "query={x}")).allowed
    assert rule.decide_fields("query", ["issue", "issues"]).allowed
    assert not rule.decide_fields("query", ["issue", "viewer"]).allowed
    assert rule.decide_fields("mutation", ["addComment"]).allowed
    assert not rule.decide_fields("mutation", ["deleteRepository"]).allowed
    assert not rule.decide_fields("subscription", ["issue"]).allowed


@pytest.mark.parametrize(
    "make",
    [
        lambda: CredentialBinding("X", (Destination("a.test"),)),
        lambda: CredentialBinding("x", ()),
        lambda: CredentialBinding("x", (Destination("a.test"),), ()),
        lambda: Place(PlaceKind.HEADER, "Host"),
        lambda: Place(PlaceKind.HEADER, "content-length"),
        lambda: Place(PlaceKind.HEADER, "x y"),
        lambda: Place(PlaceKind.HEADER, "x-key", "a\r\nb"),
        lambda: Place(PlaceKind.QUERY, ""),
        lambda: Destination("*"),
        lambda: Destination("a.test", 0),
        lambda: RequestRule(("get",), "/"),
        lambda: RequestRule(("GET",), "x"),
        lambda: GitRule("/a", push=("",)),
        lambda: GraphqlRule("/g", queries=("a b",)),
    ],
)
def test_what_is_no_binding_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises((BindingInvalid, NetTargetInvalid, PathPatternInvalid)):
        make()


def test_a_cage_finds_its_credentials_by_placeholder_name_and_destination() -> None:
    first = CageCredential(_binding(), new_placeholder(bytes(20)))
    second = CageCredential(_binding(name="second"), new_placeholder(b"\1" * 20))
    held = CageCredentials([first, second])
    assert held
    assert held.by_placeholder(first.placeholder) is first
    assert held.by_placeholder(new_placeholder(b"\2" * 20)) is None
    assert held.by_name("second") is second
    assert held.bound_at("api.test", 443) == (first, second)
    assert held.binds("api.test", 443)
    assert not held.binds("api.test", 80)
    assert held.names == ("github", "second")
    assert held.hosts == ("api.test",)
    assert [one.text for one in held.targets] == ["api.test:443"]
    assert not CageCredentials()
    with pytest.raises(ValueError, match="stands once"):
        CageCredentials([first, first])
    with pytest.raises(ValueError, match="new_placeholder"):
        CageCredential(_binding(), "kgd_short")
    with pytest.raises(ValueError, match="random bytes"):
        new_placeholder(b"short")


def test_places_say_which_header_they_are() -> None:
    assert (BEARER.header, ANY_BASIC.header) == ("authorization", "authorization")
    assert Place(PlaceKind.HEADER, "X-Api-Key").header == "x-api-key"
    assert Place(PlaceKind.QUERY, "key").header == ""


def test_a_value_is_not_shown() -> None:
    assert "hush" not in repr(SecretValue("hush-hush", ("hush-too",)))
