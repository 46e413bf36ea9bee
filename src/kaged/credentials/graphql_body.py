"""`root_fields`: what the operations of a GraphQL request do, from its whole body."""

from __future__ import annotations

import json
from typing import Any, Final

from kaged.base.errors import KagedError

MAX_GRAPHQL_BYTES: Final = 256 * 1024
MAX_OPERATIONS: Final = 64
MAX_TOKENS: Final = 20_000
_MAX_DEPTH: Final = 16


class GraphqlInvalid(KagedError):
    """The body is no GraphQL request that can be decided about."""

    code = "credential_graphql_invalid"


def root_fields(body: bytes) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the kind and the root fields of each operation in the body.

    Every operation counts, also those that the request does not ask to be run.

    Raises:
        GraphqlInvalid: it is not JSON, has no text of its operations, or cannot be parsed.
    """
    try:
        asked = json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise _invalid("it is not JSON, or names something twice") from None
    asked_list = asked if isinstance(asked, list) else [asked]
    found: list[tuple[str, tuple[str, ...]]] = []
    for one in asked_list:
        text = one.get("query") if isinstance(one, dict) else None
        if not isinstance(text, str):
            raise _invalid("it holds no text of its operation")
        found += _operations(text)
        if len(found) > MAX_OPERATIONS:
            raise _invalid("it has too many operations")
    if not found:
        raise _invalid("it has no operation")
    return tuple(found)


def _operations(text: str) -> list[tuple[str, tuple[str, ...]]]:
    # Loaded with the first such request; most daemons never have one.
    from graphql.error import GraphQLError  # noqa: PLC0415 - see above
    from graphql.language import (  # noqa: PLC0415 - see above
        FragmentDefinitionNode,
        OperationDefinitionNode,
        parse,
    )

    try:
        document = parse(text, no_location=True, max_tokens=MAX_TOKENS)
    except (GraphQLError, RecursionError):
        raise _invalid("its operation cannot be parsed") from None
    fragments = {
        one.name.value: one.selection_set
        for one in document.definitions
        if isinstance(one, FragmentDefinitionNode)
    }
    found: list[tuple[str, tuple[str, ...]]] = []
    for one in document.definitions:
        if isinstance(one, OperationDefinitionNode):
            fields: dict[str, None] = {}
            _collect(one.selection_set, fragments, fields, depth=0, seen=set())
            found.append((one.operation.value, tuple(fields)))
        elif not isinstance(one, FragmentDefinitionNode):
            raise _invalid("it defines types")
    return found


def _collect(
    selections: Any,
    fragments: dict[str, Any],
    fields: dict[str, None],
    *,
    depth: int,
    seen: set[str],
) -> None:
    from graphql.language import (  # noqa: PLC0415 - as above
        FieldNode,
        FragmentSpreadNode,
        InlineFragmentNode,
    )

    if depth > _MAX_DEPTH:
        raise _invalid("its fragments are nested too deeply")
    for one in selections.selections:
        if isinstance(one, FieldNode):
            fields[one.name.value] = None
        elif isinstance(one, InlineFragmentNode):
            _collect(one.selection_set, fragments, fields, depth=depth + 1, seen=seen)
        elif isinstance(one, FragmentSpreadNode):
            name = one.name.value
            if name not in fragments:
                raise _invalid("it uses a fragment that it does not hold")
            if name not in seen:
                seen.add(name)
                _collect(fragments[name], fragments, fields, depth=depth + 1, seen=seen)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _invalid(why: str) -> GraphqlInvalid:
    return GraphqlInvalid(
        f"The GraphQL request cannot be decided about: {why}.",
        fix="send a JSON body with the whole operation in `query`",
    )
