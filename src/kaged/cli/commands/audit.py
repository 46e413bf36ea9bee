"""`kaged audit`: follow, query, verify and export the record of everything that was done."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.cli.context import daemon
from kaged.cli.exits import Exit
from kaged.cli.named_files import open_export, open_named
from kaged.cli.output import Output, counted, one_line
from kaged.cli.runner import DaemonClient, NoStart, Offline, command, group

if TYPE_CHECKING:
    from kaged.audit import AuditFilter, VerifyReport

MAX_ROWS = 100_000
SHOWN_DATA_CHARS = 160

Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event", "-e", help="Only these events; `plugin.*` covers all with that prefix."
    ),
]
Project = Annotated[str | None, typer.Option("--project", help="Only this project id.")]
Request = Annotated[str | None, typer.Option("--request", help="Only this request id.")]
Since = Annotated[
    str | None, typer.Option(help="From this time on: ISO 8601 with zone, or epoch milliseconds.")
]
Until = Annotated[
    str | None, typer.Option(help="Before this time: ISO 8601 with zone, or epoch milliseconds.")
]
Text = Annotated[str, typer.Option(help="Only rows with this text in their name or data.")]
Lines = Annotated[
    int, typer.Option("--lines", "-n", min=1, max=MAX_ROWS, help="Maximum number of rows.")
]

app = group("Follow, query, verify and export the audit log.")


@command(app, "tail")
def tail(
    output: Output,
    lines: Lines = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new rows as they are written.")
    ] = False,
    offline: Offline = False,
    no_start: NoStart = False,
) -> None:
    """Show the newest rows, oldest first. --json prints one object per line."""
    if not follow:
        for row in reversed(_newest({}, lines, offline=offline)):
            _show_row(row, output)
        return
    from kaged.cli import trail

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
    output: Output,
    event: Events = None,
    project: Project = None,
    request: Request = None,
    since: Since = None,
    until: Until = None,
    text: Text = "",
    lines: Lines = 100,
    offline: Offline = False,
) -> None:
    """Show the rows that match, newest first. Works without a daemon, too."""
    params = _params(event, project, request, since, until, text)
    found = _newest(params, lines, offline=offline)
    output.result(found)
    output.table(
        ["seq", "time", "event", "project", "data"],
        [
            [row["seq"], row["timestamp"], row["event"], row["project_id"], _data(row, output)]
            for row in found
        ],
    )


def _show_report(found: Any, output: Output) -> Exit | None:
    output.table(
        ["row", "kind", "finding"],
        [[one["seq"], one["kind"], one["detail"]] for one in found["findings"]],
    )
    if found["ok"]:
        output.line(f"{found['rows']} rows, all as they were written.")
        return None
    output.line(f"{counted(found['findings_total'], 'finding')} in {found['rows']} rows.")
    return Exit.FINDINGS


@command(app, "verify", view=_show_report)
def verify(
    file: Annotated[
        Path | None, typer.Argument(help="An export to verify. Default: the audit log itself.")
    ] = None,
    offline: Offline = False,
) -> Any:
    """Verify that no row was changed, removed or added. Exit code 8 if one was."""
    if file is None:
        with _running_daemon(offline=offline) as client:
            if client is not None:
                return client.post("/audit/verify")
    from kaged.audit import verify_export
    from kaged.cli import trail

    if file is None:
        return _report(trail.verify_offline())
    key = trail.key_of(trail.settings())
    with open_named(file) as lines:
        return _report(verify_export(lines, key))


@command(app, "export")
def export(
    output: Output,
    file: Annotated[
        Path | None, typer.Argument(help="The file to write. Default: standard output.")
    ] = None,
    event: Events = None,
    project: Project = None,
    request: Request = None,
    since: Since = None,
    until: Until = None,
    text: Text = "",
    offline: Offline = False,
) -> None:
    """Export the audit log, or a part of it, as JSON lines. It can be verified elsewhere."""
    params = _params(event, project, request, since, until, text)
    with _running_daemon(offline=offline) as client, open_export(file) as target:
        if client is not None:
            target.writelines(client.stream("/audit/export", params))
        else:
            from kaged.cli import trail

            trail.export_offline(_filter(params), target.write)
    output.wrote(file, f"; verify it with `kaged audit verify {file}`")


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


@contextlib.contextmanager
def _running_daemon(*, offline: bool) -> Generator[DaemonClient | None]:
    """Yield a client of the daemon that runs; None without one, or when it is not to be asked."""
    if offline:
        yield None
        return
    with daemon(start=False) as client:
        yield client if client.alive() else None


def _newest(params: dict[str, Any], lines: int, *, offline: bool) -> list[dict[str, Any]]:
    with _running_daemon(offline=offline) as client:
        if client is not None:
            rows = client.pages("/audit", {**params, "limit": min(lines, 500)})
            return list(itertools.islice(rows, lines))
    from kaged.cli import trail

    return trail.query_offline(_filter(params), lines)


def _report(report: VerifyReport) -> dict[str, Any]:
    from kaged.serve.http.models import VerifyOut

    return VerifyOut.of_report(report).model_dump(mode="json")


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
