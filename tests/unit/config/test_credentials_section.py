"""`[credentials.NAME]`: what it binds, and what is refused with which sentence."""

from __future__ import annotations

import pytest

from kaged.kernel.bindings import Destination, Place, PlaceKind
from kaged.kernel.request_rules import GitRule, GraphqlRule, RequestRule
from unit.config.trials import OperatorFiles

FULL = """\
[credentials.github]
hosts = ["GitHub.com", "api.github.com:8443", "http://localhost:8080", "[::1]:99"]
place = ["bearer", "basic:x-access-token", "header:Authorization token", "query:key", "basic-user"]
paths = ["/repos/**"]
methods = ["GET"]
rules = ["deny DELETE /**", "git push agent/* wip /acme/shop", "graphql query Get* List /graphql",
         "graphql mutation Add /graphql", "read /simple/**", "GET,POST /x", "* /y"]
body_bytes = 1000
requests_per_minute = 30
as = { env = ["GITHUB_TOKEN"], files = ["netrc", "git-credentials"] }
for = { projects = ["shop"], agents = ["primary"] }
"""


def test_a_section_becomes_a_binding(operator: OperatorFiles) -> None:
    section = operator.config(FULL).value.credentials.good["github"]
    binding = section.binding("github")
    assert binding.destinations == (
        Destination("github.com"),
        Destination("api.github.com", 8443),
        Destination("localhost", 8080, tls=False),
        Destination("::1", 99),
    )
    assert binding.places == (
        Place(PlaceKind.BEARER),
        Place(PlaceKind.BASIC, "x-access-token"),
        Place(PlaceKind.HEADER, "authorization", "token "),
        Place(PlaceKind.QUERY, "key"),
        Place(PlaceKind.BASIC_USER),
    )
    assert binding.rules == (
        RequestRule(("GET",), "/repos/**"),
        RequestRule(("DELETE",), "/**", allow=False),
        GitRule("/acme/shop", push=("agent/*", "wip")),
        GraphqlRule("/graphql", queries=("Get*", "List")),
        GraphqlRule("/graphql", queries=(), mutations=("Add",)),
        RequestRule(("GET", "HEAD"), "/simple/**"),
        RequestRule(("GET", "POST"), "/x"),
        RequestRule((), "/y"),
    )
    assert (binding.limits.body_bytes, binding.limits.requests_per_minute) == (1000, 30)
    assert section.granted.grant().projects == ("shop",)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('hosts = ["*"]', "credential_too_wide"),
        ('hosts = ["*.github.com"]', "credential_too_wide"),
        ('hosts = ["com"]', "credential_too_wide"),
        ("hosts = []", "invalid_value"),
        ("", "missing_key"),
        ('hosts = ["ftp://a.example"]', "host_value_invalid"),
        ('hosts = ["a.example/path"]', "net_target_invalid"),
        ('hosts = ["a.example"]\nplace = "cookie"', "credential_place_invalid"),
        ('hosts = ["a.example"]\nplace = "header:Host"', "credential_binding_invalid"),
        ('hosts = ["a.example"]\nrules = ["fetch everything"]', "credential_rule_invalid"),
        ('hosts = ["a.example"]\nrules = ["GET repos"]', "credential_pattern_invalid"),
        ('hosts = ["a.example"]\nvault = true\ncommand = "pass x"', "conflicting_keys"),
        ('hosts = ["a.example"]\nkeyring = "gh"', "invalid_value"),
        ('hosts = ["a.example"]\nvalue = "ghp_x"', "unknown_key"),
        ('hosts = ["a.example"]\nfor = { agents = ["primary"] }', "missing_key"),
    ],
)
def test_what_binds_too_much_or_nothing_is_out_of_use_and_says_why(
    operator: OperatorFiles, line: str, code: str
) -> None:
    found = operator.config(f"[credentials.x]\n{line}\n").value.credentials
    assert not found.good
    assert [one.code for one in found.broken["x"]] == [code]


def test_the_value_stands_in_the_private_file_only(operator: OperatorFiles) -> None:
    text = '[credentials.x]\nvalue = "${TOKEN}"\n'
    local = operator.local(text, {"TOKEN": "ghp_value"}).value
    assert local.credentials.good["x"].value.reveal() == "ghp_value"
    assert "ghp_value" not in repr(local)
    unset = operator.local(text, {}).value.credentials
    assert [one.code for one in unset.broken["x"]] == ["variable_unset"]
