"""Bodies that a rule must read: pushes of Git and operations of GraphQL."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaged.credentials.git_push import MAX_COMMAND_BYTES, PushInvalid, pushed_refs
from kaged.credentials.graphql_body import GraphqlInvalid, root_fields

OLD, NEW = "1" * 40, "2" * 40


def _line(text: str) -> bytes:
    return f"{len(text) + 4:04x}{text}".encode()


def _push(*refs: str) -> bytes:
    lines = [_line(f"{OLD} {NEW} {ref}") for ref in refs]
    lines[0] = _line(f"{OLD} {NEW} {refs[0]}\0 report-status side-band-64k agent=git/2")
    return b"".join(lines) + b"0000PACK..."


def test_the_refs_of_a_push_are_read_from_its_beginning() -> None:
    body = _push("refs/heads/agent/a", "refs/tags/v1")
    assert pushed_refs(body, ended=False) == ("refs/heads/agent/a", "refs/tags/v1")
    for end in range(len(body) - len(b"PACK...")):
        assert pushed_refs(body[:end], ended=False) is None
    assert pushed_refs(b"0000", ended=True) == ()
    assert pushed_refs(_line(f"shallow {OLD}") + _push("refs/heads/a"), ended=False) == (
        "refs/heads/a",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"zzzz",
        b"0001",
        b"0004",
        b"+010",
        b"0x10",
        _line("push-cert\0 caps"),
        _line(f"{OLD} {NEW} HEAD"),
        _line(f"{OLD} {NEW} refs/heads/a b"),
        _line(f"{OLD} {NEW} refs/heads/a\nrefs/heads/main"),
        _line(f"{OLD}  {NEW} refs/heads/a"),
        _line(f"{OLD.upper()[:39]}G {NEW} refs/heads/a"),
        _line("x"),
        _line(f"{OLD} {NEW} refs/heads/a") * (MAX_COMMAND_BYTES // 90),
    ],
)
def test_what_cannot_be_decided_about_is_no_push(body: bytes) -> None:
    with pytest.raises(PushInvalid):
        pushed_refs(body, ended=False)


def test_a_list_without_an_end_is_no_push() -> None:
    with pytest.raises(PushInvalid):
        pushed_refs(_push("refs/heads/a")[:-20], ended=True)


@given(st.binary(max_size=300), st.booleans())
def test_reading_pushes_never_fails_otherwise(body: bytes, ended: bool) -> None:
    try:
        refs = pushed_refs(body, ended=ended)
    except PushInvalid:
        return
    assert refs is None or all(one.startswith("refs/") for one in refs)


def _body(text: str, **more: object) -> bytes:
    return json.dumps({"query": text, **more}).encode()


def test_every_operation_counts_with_all_its_root_fields() -> None:
    text = """
    query Harmless { viewer { login } ... on Query { issue(id: 1) { id } } ...More }
    fragment More on Query { renamed: secrets { id } }
    mutation Other { deleteRepository(id: 1) { ok } }
    """
    assert root_fields(_body(text, operationName="Harmless")) == (
        ("query", ("viewer", "issue", "secrets")),
        ("mutation", ("deleteRepository",)),
    )
    two = json.dumps([{"query": "{ a }"}, {"query": "subscription { b }"}]).encode()
    assert root_fields(two) == (("query", ("a",)), ("subscription", ("b",)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"a": 1}',
        b'{"query": 1}',
        b'{"query": ""}',
        b'{"query": "{"}',
        b'{"query": "{ ...None }"}',
        b'{"query": "type A { b: Int }"}',
        b'{"query": "{ a }", "query": "mutation { b }"}',
        b'{"query": "' + b"{ a " * 5000 + b'"}',
        b"[" * 100_000,
        json.dumps([{"query": "{ a }"}] * 65).encode(),
    ],
)
def test_what_is_no_operation_is_refused(body: bytes) -> None:
    with pytest.raises(GraphqlInvalid):
        root_fields(body)


def test_fragments_that_use_each_other_end() -> None:
    text = "{ ...A } fragment A on Q { ...B x } fragment B on Q { ...A y }"
    assert root_fields(_body(text)) == (("query", ("y", "x")),)


@given(st.text(max_size=200))
def test_reading_operations_never_fails_otherwise(text: str) -> None:
    for body in (_body(text), text.encode("utf-8", "surrogatepass")):
        try:
            root_fields(body)
        except GraphqlInvalid:
            continue
