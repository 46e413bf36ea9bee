"""What people who are not the operator may ask of the daemon: the others are the operator's alone.

People are those who signed in, and those whom a front end names.

A row says that a route knows whose things it shows or changes: it looks at the actor. A route that
is not in the table is closed to people, so that a new one is closed until somebody has thought
about it. `docs/reference/http-api.md` shows the same table.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import may_use_project
from kaged.projects.loaded import project_not_found

WEBSOCKET: Final = "WEBSOCKET"
_IN_PROJECT: Final = re.compile(r"/api/v1/projects/([^/]+)")


@dataclass(frozen=True, slots=True)
class PersonRoute:
    """A route that people may use, and on whose things."""

    method: str
    path: str
    on: str


_PROJECT: Final = "/api/v1/projects/{project_id}"
_SESSIONS: Final = f"{_PROJECT}/sessions"
_OWN: Final = "own sessions, and those of the same group chat"
_LED: Final = "leads: own invitations into teams that they lead"
_OWN_RUNS: Final = "own runs, and those of the same group chat"

PERSON_ROUTES: Final = (
    PersonRoute("GET", "/", "the daemon's name"),
    PersonRoute("GET", "/healthz", "whether it answers"),
    PersonRoute("GET", "/api/v1/auth/whoami", "themselves"),
    PersonRoute("DELETE", "/api/v1/auth/session", "their browser's session"),
    PersonRoute("GET", "/api/v1/auth/login", "themselves"),
    PersonRoute("GET", "/api/v1/auth/callback", "themselves"),
    PersonRoute("POST", "/api/v1/auth/logout", "their browser's session"),
    PersonRoute("GET", "/api/v1/auth/openid", "how to sign in"),
    PersonRoute("GET", "/.well-known/oauth-protected-resource", "how to sign in"),
    PersonRoute("POST", "/api/v1/auth/backchannel-logout", "whom the provider's token names"),
    PersonRoute("GET", "/api/v1/auth/invitation", "whom the invitation names"),
    PersonRoute("POST", "/api/v1/auth/invitation", "whom the invitation names"),
    PersonRoute("POST", "/api/v1/auth/invitation/token", "whom the invitation names"),
    PersonRoute("POST", "/api/v1/auth/invitation/end", "whom the token names"),
    PersonRoute("GET", "/api/v1/people/invitations", _LED),
    PersonRoute("POST", "/api/v1/people/invitations", _LED),
    PersonRoute("DELETE", "/api/v1/people/invitations/{invitation_id}", _LED),
    PersonRoute("GET", "/api/v1/projects", "the loaded projects that they may use"),
    PersonRoute("GET", _PROJECT, "a project that they may use"),
    PersonRoute("GET", f"{_PROJECT}/tools", "the tools of the project's agents"),
    PersonRoute("POST", f"{_PROJECT}/tools/call", "as themselves, with the agent's rights"),
    PersonRoute("POST", f"{_PROJECT}/tools/explain", "as themselves"),
    PersonRoute("GET", f"{_PROJECT}/mcp", "as themselves, with the agent's rights"),
    PersonRoute("POST", f"{_PROJECT}/mcp", "as themselves, with the agent's rights"),
    PersonRoute("DELETE", f"{_PROJECT}/mcp", "their own MCP session"),
    PersonRoute(WEBSOCKET, f"{_PROJECT}/mcp/stream", "as themselves, with the agent's rights"),
    PersonRoute("GET", _SESSIONS, _OWN),
    PersonRoute("POST", _SESSIONS, "a new one of their own"),
    PersonRoute("GET", f"{_SESSIONS}/tree", _OWN),
    PersonRoute("GET", f"{_SESSIONS}/search", _OWN),
    PersonRoute("POST", f"{_SESSIONS}/import", "a new one of their own"),
    PersonRoute("GET", f"{_SESSIONS}/{{session_id}}", _OWN),
    PersonRoute("PATCH", f"{_SESSIONS}/{{session_id}}", "own sessions"),
    PersonRoute("DELETE", f"{_SESSIONS}/{{session_id}}", "own sessions"),
    PersonRoute("GET", f"{_SESSIONS}/{{session_id}}/entries", _OWN),
    PersonRoute("GET", f"{_SESSIONS}/{{session_id}}/export", "own sessions"),
    PersonRoute("GET", f"{_SESSIONS}/{{session_id}}/runs", _OWN),
    PersonRoute("GET", f"{_SESSIONS}/{{session_id}}/tool-calls", _OWN),
    PersonRoute("GET", f"{_SESSIONS}/{{session_id}}/grants", "own sessions"),
    PersonRoute("DELETE", f"{_SESSIONS}/{{session_id}}/grants/{{grant_id}}", "own sessions"),
    PersonRoute("POST", f"{_SESSIONS}/{{session_id}}/message", _OWN),
    PersonRoute("POST", f"{_SESSIONS}/{{session_id}}/cancel", _OWN),
    PersonRoute("POST", f"{_SESSIONS}/{{session_id}}/resume", _OWN),
    PersonRoute("POST", f"{_SESSIONS}/{{session_id}}/compact", _OWN),
    PersonRoute("POST", f"{_SESSIONS}/{{session_id}}/fork", _OWN),
    PersonRoute("GET", f"{_PROJECT}/workflows", "the workflows that guests may start"),
    PersonRoute(
        "POST", f"{_PROJECT}/workflows/{{name}}/runs", "the workflows that guests may start"
    ),
    PersonRoute("GET", f"{_PROJECT}/runs", _OWN_RUNS),
    PersonRoute("GET", f"{_PROJECT}/runs/{{run_id}}", _OWN_RUNS),
    PersonRoute("POST", f"{_PROJECT}/runs/{{run_id}}/cancel", _OWN_RUNS),
    PersonRoute("GET", f"{_PROJECT}/undo", "what was done in " + _OWN),
    PersonRoute("POST", f"{_PROJECT}/undo", "what was done in own sessions"),
    PersonRoute("GET", f"{_PROJECT}/audit", "rows about own sessions and accounts"),
    PersonRoute("GET", f"{_PROJECT}/interactions", "questions that they were asked"),
    PersonRoute("GET", f"{_PROJECT}/interactions/{{request_id}}", "questions that they were asked"),
    PersonRoute(
        "POST", f"{_PROJECT}/interactions/{{request_id}}/answer", "questions that they were asked"
    ),
    PersonRoute(
        "DELETE", f"{_PROJECT}/interactions/{{request_id}}", "questions that they were asked"
    ),
    PersonRoute("GET", "/api/v1/usage", "what their own runs took"),
    PersonRoute("GET", "/api/v1/pipeline/traces/{request_id}", "requests of their own"),
    PersonRoute("GET", "/api/v1/inbox", "what they were asked"),
    PersonRoute("GET", "/api/v1/inbox/{request_id}", "what they were asked"),
    PersonRoute("POST", "/api/v1/inbox/{request_id}/answer", "what they were asked"),
    PersonRoute("GET", f"{_PROJECT}/issues", "the project's issues"),
    PersonRoute("POST", f"{_PROJECT}/issues", "the project's issues, under their own name"),
    PersonRoute("GET", f"{_PROJECT}/issues/{{number}}", "without comments for the operator"),
    PersonRoute(
        "POST", f"{_PROJECT}/issues/{{number}}/comments", "the project's issues, under their name"
    ),
    PersonRoute("GET", f"{_PROJECT}/issues/{{number}}/todos", "the project's issues"),
    PersonRoute("GET", "/api/v1/plugins/{name}/call/{method}", "as themselves"),
    PersonRoute("POST", "/api/v1/plugins/{name}/call/{method}", "as themselves"),
    PersonRoute("GET", "/api/v1/services/providers", "what accounts can be linked"),
    PersonRoute("GET", "/api/v1/services/accounts", "own accounts"),
    PersonRoute("POST", "/api/v1/services/accounts/check", "own accounts"),
    PersonRoute("POST", "/api/v1/services/accounts/revoke", "own accounts"),
    PersonRoute("GET", "/api/v1/services/shares", "own accounts, and those shared with them"),
    PersonRoute("POST", "/api/v1/services/shares", "own accounts, and nobody else's"),
    PersonRoute("DELETE", "/api/v1/services/shares/{share_id}", "own accounts"),
    PersonRoute("POST", "/api/v1/services/links", "own accounts"),
    PersonRoute("POST", "/api/v1/services/links/{flow_id}/complete", "own links under way"),
    PersonRoute("POST", "/api/v1/services/links/{flow_id}/poll", "own links under way"),
    PersonRoute("DELETE", "/api/v1/services/links/{flow_id}", "own links under way"),
    PersonRoute("GET", "/api/v1/services/approvals", "what waits for their consent"),
    PersonRoute("POST", "/api/v1/services/approvals/{plan_id}", "what waits for their consent"),
    PersonRoute(WEBSOCKET, "/api/v1/events", f"{_OWN}; what they were asked"),
)


@lru_cache(maxsize=16)  # methods come from outside
def _patterns(method: str) -> tuple[re.Pattern[str], ...]:
    # Made for the first person who comes: most daemons never see one.
    paths = [re.escape(one.path) for one in PERSON_ROUTES if one.method == method]
    return tuple(re.compile(re.sub(r"\\\{\w+\\\}", r"[^/\\s]+", path)) for path in paths)


def require_for_person(actor: Actor, method: str, path: str) -> None:
    """Refuse what is the operator's to a person. Raises `operator_only`."""
    if not actor.is_person:
        return
    asked = "GET" if method == "HEAD" else method
    if not any(pattern.fullmatch(path) for pattern in _patterns(asked)):
        raise operator_only()


def require_project(actor: Actor, path: str) -> None:
    """Refuse a project that a person may not use: to them it does not exist.

    Raises:
        KagedError: `project_not_found`.
    """
    project_id = _IN_PROJECT.match(path)
    if project_id is not None and not may_use_project(actor, project_id[1]):
        raise project_not_found(project_id[1])


def operator_only() -> KagedError:
    """Return the error for what only the operator may do."""
    return KagedError(
        "Only the operator of this daemon may do this.",
        code="operator_only",
        fix="ask the operator, or leave the X-Kaged-User-Id header out where you are the operator",
    )
