"""`kaged audit`: follow, ask, check and copy the record of everything that was done."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.cli.context import AsJson, NoStart, Offline, command, daemon
from kaged.cli.exits import Exit
from kaged.cli.output import Output, one_line

if TYPE_CHECKING:
    from kaged.audit import AuditFilter, VerifyReport

MAX_ROWS = 100_000
SHOWN_DATA_CHARS = 160

Events = Annotated[
    list[str] | None,
    typer.Option("--event", "-e", help="Only these events; `plugin.*` covers all that begin so."),
]
Project = Annotated[str | None, typer.Option("--project", help="Only this project id.")]
Request = Annotated[str | None, typer.Option("--request", help="Only this request id.")]
Since = Annotated[
    str | None, typer.Option(help="From then on: ISO 8601 with zone, or epoch milliseconds.")
]
Until = Annotated[
    str | None, typer.Option(help="Before then: ISO 8601 with zone, or epoch milliseconds.")
]
Text = Annotated[str, typer.Option(help="Only rows with this text in name or data.")]
Lines = Annotated[
    int, typer.Option("--lines", "-n", min=1, max=MAX_ROWS, help="How many rows at most.")
]


def build() -> typer.Typer:
    """Build the group."""
    app = typer.Typer(
        help="Follow, query, verify and export the audit trail.", no_args_is_help=True
    )
    _register_reading(app)
    _register_keeping(app)
    return app


def _register_reading(app: typer.Typer) -> None:
    @command(app, "tail")
    def tail(
        lines: Lines = 20,
        follow: Annotated[
            bool, typer.Option("--follow", "-f", help="Go on with new rows as they happen.")
        ] = False,
        as_json: AsJson = False,
        offline: Offline = False,
        no_start: NoStart = False,
    ) -> None:
        """Show the newest rows, oldest first; --json gives one object per line."""
        from kaged.cli import trail

        output = Output(as_json=as_json)
        if not follow:
            for row in reversed(_newest({}, lines, offline=offline)):
                _show_row(row, output)
            return
        with daemon(start=not no_start) as client:
            client.get("/status")
        last = 0
        with contextlib.suppress(KeyboardInterrupt):
            for row in trail.follow():
                if not row:
                    # The stream is open: what is on disk by now and what it brings do overlap.
                    for old in reversed(_newest({}, lines, offline=False)):
                        _show_row(old, output)
                        last = old["seq"]
                elif row["seq"] > last:
                    _show_row(row, output)

    @command(app, "query")
    def query(
        event: Events = None,
        project: Project = None,
        request: Request = None,
        since: Since = None,
        until: Until = None,
        text: Text = "",
        lines: Lines = 100,
        as_json: AsJson = False,
        offline: Offline = False,
    ) -> None:
        """Show the rows that fit, newest first. Works without a daemon, too."""
        output = Output(as_json=as_json)
        found = _newest(_params(event, project, request, since, until, text), lines,
                        offline=offline)  # fmt: skip
        output.result(found)
        output.table(
            ["seq", "time", "event", "project", "data"],
            [
                [row["seq"], row["timestamp"], row["event"], row["project_id"], _data(row, output)]
                for row in found
            ],
        )


def _register_keeping(app: typer.Typer) -> None:
    @command(app, "verify")
    def verify(
        file: Annotated[
            Path | None, typer.Argument(help="An export to check; the trail itself by default.")
        ] = None,
        as_json: AsJson = False,
        offline: Offline = False,
    ) -> None:
        """Check that no row was changed, removed or added; exit code 8 when one was."""
        output = Output(as_json=as_json)
        found = _verify_export(file) if file is not None else _verify_trail(offline=offline)
        output.result(found)
        output.table(
            ["row", "kind", "finding"],
            [[one["seq"], one["kind"], one["detail"]] for one in found["findings"]],
        )
        if found["ok"]:
            output.line(f"{found['rows']} rows, all as they were written.")
            return
        total = found["findings_total"]
        output.line(f"{total} {'finding' if total == 1 else 'findings'} in {found['rows']} rows.")
        raise typer.Exit(Exit.FINDINGS)

    @command(app, "export")
    def export(
        file: Annotated[
            Path | None, typer.Argument(help="Where to write it; standard output by default.")
        ] = None,
        event: Events = None,
        project: Project = None,
        request: Request = None,
        since: Since = None,
        until: Until = None,
        text: Text = "",
        as_json: AsJson = False,
        offline: Offline = False,
    ) -> None:
        """Copy the trail, or a part of it, as JSON lines that can be checked elsewhere."""
        params = _params(event, project, request, since, until, text)
        if file is None:
            _export(params, sys.stdout.buffer.write, offline=offline)
            sys.stdout.flush()
            return
        # Private and never over something else: the copy holds what the trail holds.
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as target:
            _export(params, target.write, offline=offline)
            target.flush()
            os.fsync(target.fileno())
            size = target.tell()
        output = Output(as_json=as_json)
        output.result({"file": str(file.absolute()), "bytes": size})
        output.line(f"Wrote {file} ({size} bytes); check it with `kaged audit verify {file}`.")


def _params(
    event: list[str] | None, project: str | None, request: str | None,
    since: str | None, until: str | None, text: str,
) -> dict[str, Any]:  # fmt: skip
    return {
        "event": event or None,
        "project_id": project,
        "request_id": request,
        "since": since,
        "until": until,
        "text": text or None,
    }


def _filter(params: dict[str, Any]) -> AuditFilter:
    """Read the options as the daemon would read the query."""
    from kaged.audit import AuditFilter
    from kaged.serve.http.errors import InvalidHttpRequest
    from kaged.serve.http.routes.audit import parse_moment

    try:
        return AuditFilter(
            names=tuple(params.get("event") or ()),
            project_id=params.get("project_id"),
            request_id=params.get("request_id"),
            since_ms=parse_moment(params.get("since"), "since"),
            until_ms=parse_moment(params.get("until"), "until"),
            text=params.get("text") or "",
        )
    except ValueError as error:
        raise InvalidHttpRequest(f"The filter is not valid: {error}.") from error


def _newest(params: dict[str, Any], lines: int, *, offline: bool) -> list[dict[str, Any]]:
    if not offline:
        with daemon(start=False) as client:
            if client.alive():
                found: list[dict[str, Any]] = []
                for row in client.pages("/audit", {**params, "limit": min(lines, 500)}):
                    found.append(row)
                    if len(found) == lines:
                        break
                return found
    from kaged.cli import trail

    return trail.query_offline(_filter(params), lines)


def _verify_trail(*, offline: bool) -> dict[str, Any]:
    if not offline:
        with daemon(start=False) as client:
            if client.alive():
                return client.post("/audit/verify")
    from kaged.cli import trail

    return _report(trail.verify_offline())


def _verify_export(file: Path) -> dict[str, Any]:
    from kaged.audit import verify_export
    from kaged.cli import trail

    key = trail.key_of(trail.settings())
    with file.open("rb") as lines:
        return _report(verify_export(lines, key))


def _report(report: VerifyReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "rows": report.rows,
        "head_seq": report.head.seq,
        "head_hash": report.head.hash,
        "findings": [
            {"seq": one.seq, "kind": one.kind.value, "detail": one.detail}
            for one in report.findings
        ],
        "findings_total": report.total,
        "anchors": list(report.anchors),
    }


def _export(params: dict[str, Any], write: Any, *, offline: bool) -> None:
    if not offline:
        with daemon(start=False) as client:
            if client.alive():
                for piece in client.stream("/audit/export", params):
                    write(piece)
                return
    from kaged.cli import trail

    trail.export_offline(_filter(params), write)


def _show_row(row: dict[str, Any], output: Output) -> None:
    if output.as_json:
        output.json_line(row)
        return
    project = row["project_id"] or "-"
    output.line(
        f"{row['seq']}\t{row['timestamp']}\t{row['event']}\t{project}\t{_data(row, output)}"
    )


def _data(row: dict[str, Any], output: Output) -> str:
    shown = one_line(" ".join(f"{name}={value}" for name, value in row["data"].items()))
    if output.for_people and len(shown) > SHOWN_DATA_CHARS:
        return f"{shown[: SHOWN_DATA_CHARS - 1]}…"
    return shown
