"""Rules for single requests: by method and path, for Git's protocol, and for GraphQL.

A request is allowed when one rule allows it and none denies it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision
from kaged.kernel.request_paths import (
    PathPatternInvalid,
    RequestPath,
    check_pattern,
    path_matches,
    path_may_match,
    text_matches,
)

READ_METHODS: Final = ("GET", "HEAD")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}")
_REF_PATTERN = re.compile(r"[!-~]{1,256}")
_OPERATION_PATTERN = re.compile(r"[A-Za-z0-9_*]{1,128}")
_UPLOAD, _RECEIVE, _INFO = "/git-upload-pack", "/git-receive-pack", "/info/refs"
_SHORT_REFS = ("refs/heads/", "refs/tags/")


@dataclass(frozen=True, slots=True)
class RequestRule:
    """Requests of these methods (none: every one) whose path matches a pattern.

    A rule with `allow` False takes away what others allow, whatever their order.
    """

    methods: tuple[str, ...]
    path: str
    allow: bool = True

    def __post_init__(self) -> None:
        """Refuse methods and patterns that are none."""
        check_pattern(self.path)
        if not all(_METHOD.fullmatch(one) for one in self.methods):
            raise PathPatternInvalid(
                "A rule names methods in capital letters.", fix="write for example GET /repos/*"
            )

    def matches(self, method: str, path: RequestPath) -> bool:
        """Return whether the rule speaks about a request."""
        if self.methods and method not in self.methods:
            return False
        return path_matches(self.path, path) if self.allow else path_may_match(self.path, path)

    @property
    def text(self) -> str:
        """The rule as it is written: `GET,HEAD /repos/*`."""
        return f"{','.join(self.methods) or '*'} {self.path}"


class GitStep(StrEnum):
    """A request of Git's smart HTTP protocol."""

    LIST_FETCH = "list_fetch"
    LIST_PUSH = "list_push"
    FETCH = "fetch"
    PUSH = "push"


@dataclass(frozen=True, slots=True)
class GitRule:
    """Git over HTTP for repositories whose path matches a pattern, with or without `.git`.

    `push` holds patterns of refs (`agent/*` is a branch, `refs/tags/*` written out); `*` crosses
    slashes there. Empty allows no push.
    """

    repositories: str
    fetch: bool = True
    push: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse patterns that are none."""
        check_pattern(self.repositories)
        if not all(_REF_PATTERN.fullmatch(one) for one in self.push):
            raise PathPatternInvalid(
                "A pattern of refs has 1 to 256 printable ASCII characters.", fix="write agent/*"
            )

    def step(self, method: str, path: RequestPath, query: str) -> GitStep | None:
        """Return which request of Git this is to a repository of the rule, or None."""
        if len(path.readings) != 1:
            return None  # Git's clients write plain paths
        for method_wanted, ending, asked, step in _STEPS:
            if method != method_wanted or not path.text.endswith(ending):
                continue
            if query != asked:  # Git's clients write it in one way
                continue
            if self._covers(path.text.removesuffix(ending)):
                return step
        return None

    def allows(self, method: str, path: RequestPath, query: str) -> bool:
        """Return whether the rule allows a request, as far as its line tells."""
        match self.step(method, path, query):
            case GitStep.LIST_FETCH | GitStep.FETCH:
                return self.fetch
            case GitStep.LIST_PUSH | GitStep.PUSH:
                return bool(self.push)
            case None:
                return False

    def reads_body(self, method: str, path: RequestPath, query: str) -> bool:
        """Return whether the rule must see the refs in the body of a request."""
        return bool(self.push) and self.step(method, path, query) is GitStep.PUSH

    def decide_push(self, refs: Iterable[str]) -> Decision:
        """Decide whether all these refs, written out as `refs/…`, may be changed."""
        for ref in refs:
            if not any(_ref_matches(pattern, ref) for pattern in self.push):
                return Decision.deny(
                    "credential.git.ref",
                    f"Pushing to {ref[:256]!a} is not allowed; allowed: {', '.join(self.push)}.",
                    "push to a branch that is allowed",
                )
        return Decision.allow("credential.git.ref")

    def _covers(self, repository: str) -> bool:
        spelled = RequestPath(repository, (tuple(repository.split("/")[1:]),))
        bare = repository.removesuffix(".git")
        plain = RequestPath(bare, (tuple(bare.split("/")[1:]),))
        return path_matches(self.repositories, spelled) or path_matches(self.repositories, plain)

    @property
    def text(self) -> str:
        """The rule in words."""
        told = ["fetch"] if self.fetch else []
        told += [f"push to {', '.join(self.push)}"] if self.push else []
        return f"git {' and '.join(told) or 'nothing'} {self.repositories}"


_STEPS: Final = (
    ("GET", _INFO, "service=git-upload-pack", GitStep.LIST_FETCH),
    ("GET", _INFO, "service=git-receive-pack", GitStep.LIST_PUSH),
    ("POST", _UPLOAD, "", GitStep.FETCH),
    ("POST", _RECEIVE, "", GitStep.PUSH),
)


@dataclass(frozen=True, slots=True)
class GraphqlRule:
    """Operations of GraphQL at one path, by the root fields that they use.

    `queries` are patterns of root fields that are read, `mutations` of those that change something;
    `*` stands for any characters. A client names its operations as it likes, so those names say
    nothing; the root fields are what the server runs.
    """

    path: str
    queries: tuple[str, ...] = ("*",)
    mutations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse patterns that are none."""
        check_pattern(self.path)
        if not all(_OPERATION_PATTERN.fullmatch(one) for one in (*self.queries, *self.mutations)):
            raise PathPatternInvalid(
                "The name of a root field has letters, digits, _ and *.", fix="write issue*"
            )

    def allows(self, method: str, path: RequestPath, query: str) -> bool:
        """Return whether the rule allows a request, as far as its line tells."""
        return self.reads_body(method, path, query)

    def reads_body(self, method: str, path: RequestPath, query: str) -> bool:
        """Return whether the rule must see the operation in the body of a request."""
        # A server may take the operation from the query, where nobody would look for it.
        return method == "POST" and not query and path_matches(self.path, path)

    def decide_fields(self, kind: str, fields: Iterable[str]) -> Decision:
        """Decide about an operation: its kind (`query`, `mutation`, …) and all its root fields."""
        allowed = {"query": self.queries, "mutation": self.mutations}.get(kind, ())
        for name in fields:
            if not any(text_matches(pattern, name) for pattern in allowed):
                return Decision.deny(
                    "credential.graphql",
                    f"The GraphQL {kind[:16]} {name[:128]!a} is not allowed.",
                    "use root fields that are allowed",
                )
        return Decision.allow("credential.graphql")

    @property
    def text(self) -> str:
        """The rule in words."""
        told = [f"queries {', '.join(self.queries)}"] if self.queries else []
        told += [f"mutations {', '.join(self.mutations)}"] if self.mutations else []
        return f"graphql {' and '.join(told) or 'nothing'} {self.path}"


Rule: TypeAlias = RequestRule | GitRule | GraphqlRule


def read_only(path: str = "/**") -> RequestRule:
    """Return the rule of a package registry that is only read from."""
    return RequestRule(READ_METHODS, path)


def rules_decide(
    rules: Iterable[Rule], name: str, method: str, path: RequestPath, query: str
) -> Decision:
    """Decide a request by rules: none may deny it and one must allow it."""
    allowed_by: Rule | None = None
    for rule in rules:
        if isinstance(rule, RequestRule):
            if not rule.matches(method, path):
                continue
            if not rule.allow:
                return Decision.deny(
                    "credential.rule",
                    f"{method} {path.text} is denied for the credential {name} by"
                    f" the rule {rule.text}.",
                )
            allowed_by = allowed_by or rule
        elif rule.allows(method, path, query):
            allowed_by = allowed_by or rule
    if allowed_by is not None:
        return Decision.allow("credential.rule", allowed_by.text)
    return Decision.deny(
        "credential.rule",
        f"{method} {path.text} matches no rule of the credential {name}.",
        f"add a rule for it to the credential {name}, if that is meant",
    )


def _ref_matches(pattern: str, ref: str) -> bool:
    if pattern.startswith("refs/"):
        return text_matches(pattern, ref)
    return text_matches(_SHORT_REFS[0] + pattern, ref)
