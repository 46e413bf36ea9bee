"""issues: the issues of GitHub and GitLab repositories, with a token that agents never see."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from kaged.sdk import CallContext, NotApplicable, Plugin, PluginError
from kaged.sdk.http_request import HttpUnreachable, http_request

REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+){1,5}")
URLS = {"github": "https://api.github.com", "gitlab": "https://gitlab.com"}
GITHUB_STATES = {"open": "open", "closed": "closed", "all": "all"}
GITLAB_STATES = {"open": "opened", "closed": "closed", "all": "all"}
MAX_COMMENTS = 100

plugin = Plugin("issues", "0.1.0")
config: dict[str, Any] = {}


@plugin.config
def configure(new: dict[str, Any]) -> None:
    """Take a new configuration."""
    config.clear()
    config.update(new)


@plugin.tool("list")
def list_issues(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """List issues, newest first."""
    limit, labels = int(params.get("limit", 20)), ",".join(params.get("labels", []))
    state = str(params.get("state", "open"))
    if is_gitlab():
        found = call(context, "GET", "/issues", state=GITLAB_STATES[state], labels=labels,
                     per_page=limit)  # fmt: skip
        return {"issues": [from_gitlab(one) for one in found]}
    found = call(context, "GET", "/issues", state=GITHUB_STATES[state], labels=labels,
                 per_page=limit)  # fmt: skip
    # For GitHub a pull request is an issue, too.
    return {"issues": [from_github(one) for one in found if "pull_request" not in one]}


@plugin.tool("get")
def get_issue(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Read one issue with its comments."""
    number = int(params["number"])
    issue = call(context, "GET", f"/issues/{number}")
    if is_gitlab():
        notes = call(context, "GET", f"/issues/{number}/notes", sort="asc", per_page=MAX_COMMENTS)
        comments = [
            {"author": one["author"]["username"], "at": one["created_at"], "body": one["body"]}
            for one in notes
            if not one.get("system")
        ]
        return {**from_gitlab(issue), "body": issue.get("description") or "", "comments": comments}
    notes = call(context, "GET", f"/issues/{number}/comments", per_page=MAX_COMMENTS)
    comments = [
        {"author": one["user"]["login"], "at": one["created_at"], "body": one["body"]}
        for one in notes
    ]
    return {**from_github(issue), "body": issue.get("body") or "", "comments": comments}


@plugin.tool("create")
def create_issue(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Open an issue."""
    require_writes()
    title, body, labels = params["title"], params.get("body", ""), params.get("labels", [])
    if is_gitlab():
        given = {"title": title, "description": body, "labels": ",".join(labels)}
        return from_gitlab(call(context, "POST", "/issues", given))
    given = {"title": title, "body": body, "labels": labels}
    return from_github(call(context, "POST", "/issues", given))


@plugin.tool("comment")
def comment(params: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Comment on an issue."""
    require_writes()
    number, given = int(params["number"]), {"body": params["body"]}
    kind = "notes" if is_gitlab() else "comments"
    made = call(context, "POST", f"/issues/{number}/{kind}", given)
    return {"number": number, "comment_id": made["id"]}


def from_github(issue: dict[str, Any]) -> dict[str, Any]:
    """Return what an agent needs of an issue of GitHub's."""
    return {
        "number": issue["number"],
        "title": issue["title"],
        "state": issue["state"],
        "author": issue["user"]["login"],
        "labels": [one["name"] for one in issue.get("labels", [])],
        "url": issue["html_url"],
        "updated": issue["updated_at"],
    }


def from_gitlab(issue: dict[str, Any]) -> dict[str, Any]:
    """Return the same of an issue of GitLab's; its number is the one within the project."""
    return {
        "number": issue["iid"],
        "title": issue["title"],
        "state": "open" if issue["state"] == "opened" else issue["state"],
        "author": issue["author"]["username"],
        "labels": list(issue.get("labels", [])),
        "url": issue["web_url"],
        "updated": issue["updated_at"],
    }


def call(context: CallContext, method: str, path: str, body: Any = None, **query: Any) -> Any:
    """Ask the service about the caller's repository; returns its JSON."""
    from urllib.parse import quote, urlencode  # noqa: PLC0415 - not needed while waiting

    repository = allowed_repository(context)
    base = str(config.get("url") or URLS[provider()]).rstrip("/")
    if is_gitlab():
        place = f"{base}/api/v4/projects/{quote(repository, safe='')}"
        headers = {"PRIVATE-TOKEN": str(config["token"])} if config.get("token") else {}
    else:
        place = f"{base}/repos/{repository}"
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        if config.get("token"):
            headers["Authorization"] = f"Bearer {config['token']}"
    asked = urlencode({key: value for key, value in query.items() if value != ""})
    try:
        answer = http_request(method, f"{place}{path}{'?' if asked else ''}{asked}", headers, body)
    except HttpUnreachable as error:
        raise PluginError(f"{provider()} was not reached: {error}") from None
    said = answer.json()
    if answer.status in (200, 201):
        return said
    told = said.get("message") if isinstance(said, dict) else None
    if answer.status in (401, 403):
        raise PluginError(f"{provider()} does not let this token do that: {told or answer.status}")
    if answer.status in (404, 410):
        raise PluginError(f"{provider()} knows no such repository or issue")
    raise PluginError(f"{provider()} answered {answer.status}: {told or 'no reason given'}")


def allowed_repository(context: CallContext) -> str:
    """Return the repository that the caller's project names, if the operator allows it."""
    named = str((context.config or {}).get("repository", ""))
    if not named:
        raise NotApplicable("the project names no repository: set the knob `repository`")
    if not REPOSITORY.fullmatch(named) or ".." in named:
        raise NotApplicable(f"{named!r} is no repository such as owner/name")
    if not any(fnmatchcase(named, one) for one in config.get("repositories", [])):
        raise NotApplicable(f"the operator does not allow {named}: add it to `repositories`")
    return named


def require_writes() -> None:
    """Refuse to write unless the operator allows it."""
    if config.get("allow_writes") is not True:
        raise NotApplicable("the operator allows reading only: `allow_writes` is not set")


def provider() -> str:
    """Return which service it is."""
    return str(config.get("provider", "github"))


def is_gitlab() -> bool:
    """Return whether it is GitLab, whose words differ."""
    return provider() == "gitlab"


if __name__ == "__main__":
    plugin.start()
