"""`Usage`: what runs took of models, as the daemon's HTTP API tells it, and how a run is ended."""

from __future__ import annotations

from typing import Any, NamedTuple

from kaged.sdk.http_client import Unreachable, request

PAGE = 100


class Spent(NamedTuple):
    """What was taken. `unpriced` counts what has tokens and no known price."""

    tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0

    def plus(self, other: Spent) -> Spent:
        """Return the sum."""
        return Spent(
            self.tokens + other.tokens, self.usd + other.usd, self.unpriced + other.unpriced
        )


class Session(NamedTuple):
    """A session in which something may be spent."""

    project: str
    id: str
    running: bool
    updated_at: str


class Usage:
    """The calls of the API that a guard needs. All raise Unreachable."""

    def __init__(self, url: str, token: str, projects: list[str]) -> None:
        self._base = f"{url.rstrip('/')}/api/v1"
        self._token = token
        self._projects = projects
        # What the entries of a run said while it is running: its own row is written at its end.
        self._live: dict[str, dict[str, Spent]] = {}

    def since(self, moment: str) -> Spent:
        """Return what the runs took that began since then and have ended."""
        wanted = [f"&project_id={one}" for one in self._projects] or [""]
        total = Spent()
        for one in wanted:
            path = f"/usage?by=model&limit={PAGE}&since={moment}{one}"
            for row in self._ask("GET", path)["items"]:
                tokens = row["input_tokens"] + row["output_tokens"]
                # Runs that took nothing have no price either, so a model is judged and not a run.
                unpriced = row["runs"] if tokens and not row["priced_runs"] else 0
                total = total.plus(Spent(tokens, row["cost_usd"] or 0.0, unpriced))
        return total

    def sessions(self) -> list[Session]:
        """Return the sessions of each project that were used last."""
        projects = self._projects or [
            one["id"] for one in self._ask("GET", f"/projects?limit={PAGE}")["items"]
        ]
        return [
            Session(project, one["id"], one["status"] == "running", one["updated_at"])
            for project in projects
            for one in self._ask("GET", f"/projects/{project}/sessions?limit={PAGE}")["items"]
        ]

    def of_session(self, session: Session, but: str | None) -> Spent:
        """Return what all runs of a session took that have ended, without one."""
        total, path = Spent(), f"/projects/{session.project}/sessions/{session.id}/runs"
        page = self._ask("GET", f"{path}?limit={PAGE}")
        while True:
            for one in page["items"]:
                used = one["usage"] if one["id"] != but else {}
                tokens = used.get("input_tokens", 0) + used.get("output_tokens", 0)
                total = total.plus(_spent(tokens, used.get("cost_usd")))
            if not page["next_cursor"]:
                return total
            page = self._ask("GET", f"{path}?limit={PAGE}&cursor={page['next_cursor']}")

    def of_active_run(self, session: Session) -> tuple[str | None, Spent]:
        """Return the run of a session that has not ended, and what its answers took."""
        path = f"/projects/{session.project}/sessions/{session.id}"
        run = self._ask("GET", path)["active_run"]
        if run is None:
            return None, Spent()
        seen = self._live.setdefault(run, {})
        for entry in self._ask("GET", f"{path}/entries?tail=true&limit={PAGE}")["items"]:
            used = entry["content"].get("usage")
            if entry["run_id"] == run and isinstance(used, dict):
                tokens = used.get("input", 0) + used.get("output", 0)
                seen[entry["id"]] = _spent(tokens, used.get("cost_usd"))
        total = Spent()
        for one in seen.values():
            total = total.plus(one)
        return run, total

    def forget_all_but(self, runs: set[str | None]) -> None:
        """Forget the answers of runs that have ended."""
        self._live = {run: seen for run, seen in self._live.items() if run in runs}

    def cancel(self, session: Session) -> None:
        """End the active run of a session."""
        self._ask("POST", f"/projects/{session.project}/sessions/{session.id}/cancel")

    def notify(self, project: str, body: str) -> None:
        """Notify people, through the plugin `notify` of a project."""
        params = {"title": "kaged: cost guard", "body": body, "type": "warning"}
        call = {"agent": "primary", "tool": "notify.send", "params": params}
        self._ask("POST", f"/projects/{project}/tools/call", call)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        code, said = request(method, self._base + path, headers, body)
        if code >= 300:
            error = said.get("error", {}) if isinstance(said, dict) else {}
            raise Unreachable(f"{method} {path.partition('?')[0]}: {code} {error.get('code', '')}")
        return said


def _spent(tokens: int, usd: float | None) -> Spent:
    return Spent(tokens, usd or 0.0, int(usd is None and tokens > 0))
