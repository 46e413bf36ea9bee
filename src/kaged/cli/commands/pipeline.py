"""`kaged pipeline`: check the policy file, explain it, and trace one call through it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.context import locations, quiet_logs
from kaged.cli.exits import Exit
from kaged.cli.output import Output, counted
from kaged.cli.runner import command, daemon, group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kaged.config.problems import Problem
    from kaged.config.settings import Settings
    from kaged.pipeline.explain import CheckReport, HookExplained
    from kaged.pipeline.kinds import PluginKind
    from kaged.pipeline.trace import TraceReport
    from kaged.pipeline.traced_step import TracedStep

MAX_INPUT_BYTES = 4 * 1024 * 1024
NS_PER_MS = 1_000_000
REQUEST_ID = re.compile(r"[a-z]+_[0-9A-HJKMNP-TV-Z]{26}", re.ASCII)

File = Annotated[
    Path | None,
    typer.Argument(help="The pipeline file. Default: the one that config.toml names."),
]


app = group("Check, explain and trace the policy pipeline.")


@command(app, "check")
def check(output: Output, file: File = None) -> None:
    """Load the file as the daemon would and list its problems."""
    report = asyncio.run(_checked(_chosen(file)))
    output.result(
        {
            "file": report.file,
            "sound": report.sound,
            "problems": [problem.as_json() for problem in report.problems],
            "hooks": {hook.hook: [step.plugin for step in hook.steps] for hook in report.hooks},
        }
    )
    _tell(output, report.problems)
    if not report.sound:
        raise typer.Exit(Exit.INVALID)
    count = len({step.plugin for hook in report.hooks for step in hook.steps})
    output.line(
        f"{report.file} is valid: {counted(count, 'plugin')} on "
        f"{counted(len(report.hooks), 'hook')}."
    )


@command(app, "explain")
def explain(
    output: Output,
    file: File = None,
    hook: Annotated[str | None, typer.Option(help="Only this hook.")] = None,
) -> None:
    """Explain which plugins run on which hook. Shows what each sees and may change or deny."""
    report = asyncio.run(_checked(_chosen(file)))
    if not report.sound:
        _tell(output, report.problems)
        output.result({"problems": [problem.as_json() for problem in report.problems]})
        raise typer.Exit(Exit.INVALID)
    found = [one for one in report.hooks if hook in (None, one.hook)]
    output.result({"file": report.file, "hooks": [asdict(one) for one in found]})
    for one in found:
        _explain(output, one)
    if not found:
        output.line("No plugin runs." if hook is None else f"No plugin runs on {hook}.")


@command(app, "trace")
def trace(
    output: Output,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[REQUEST|FILE]",
            help="The id of a request, or a pipeline file. Default: the file that config.toml "
            "names.",
        ),
    ] = None,
    hook: Annotated[str, typer.Option(help="The hook to fire.")] = "tool_pre_invoke",
    payload: Annotated[
        str, typer.Option(help="The payload as JSON, as @FILE, or - for standard input.")
    ] = '{"name": "example.tool", "args": {}}',
    slots: Annotated[
        str, typer.Option(help="The extensions as JSON or @FILE: {slot: {field: value}}.")
    ] = "{}",
) -> None:
    """Show what each plugin saw, changed and decided: in a request, or in a sample call.

    REQUEST is the id of a request as errors and audit rows name it. Without one, a sample call is
    sent through the plugins of the file.
    """
    if target is not None and REQUEST_ID.fullmatch(target) and not Path(target).exists():
        _show_request(target, output)
        return
    file = None if target is None else Path(target)
    call, filled = _json_of(payload, "--payload"), _json_of(slots, "--slots")
    report = asyncio.run(_traced(_chosen(file), hook, call, filled))
    output.result(_trace_json(report))
    _tell(output, report.problems)
    output.table(
        ("Plugin", "Mode", "Saw", "Read", "Changed", "Refused", "Outcome", "ms"),
        [_traced_row(step) for step in report.steps],
    )
    if report.in_force:
        output.line(_verdict(report))
    if not report.allowed:
        raise typer.Exit(Exit.DENIED if report.in_force else Exit.INVALID)


def _show_request(request_id: str, output: Output) -> None:
    with daemon() as client:
        found = client.get(f"/pipeline/traces/{request_id}")
    output.result(found)
    output.table(
        ("Hook", "Plugin", "Mode", "Saw", "Read", "Changed", "Refused", "Outcome", "Why", "ms"),
        [
            (
                step["hook"],
                step["plugin"],
                step["mode"],
                ", ".join(step["saw"]),
                ", ".join(step["read"]),
                ", ".join(step["changed"]),
                "; ".join(step["refused"]),
                step["outcome"],
                ". ".join(step[key] for key in ("reason", "description") if step[key]),
                f"{step['duration_ns'] / NS_PER_MS:.3f}",
            )
            for step in found["steps"]
        ],
    )
    if found["cut"]:
        output.note("The request had more steps than are kept.")


def _chosen(file: Path | None) -> tuple[Settings, Path]:
    from kaged.config.settings import read_settings

    settings = read_settings(locations(), os.environ)
    chosen = file or settings.daemon.value.pipeline.file
    if chosen is None:
        raise KagedError(
            "config.toml names no pipeline file.",
            code="pipeline_file_not_found",
            fix="Pass a file, or set [pipeline] file in config.toml.",
        )
    if not chosen.is_file():
        raise KagedError(
            f"There is no file {chosen}.", code="pipeline_file_not_found", fix="Check the path."
        )
    quiet_logs()
    return settings, chosen.absolute()


@asynccontextmanager
async def _kinds(settings: Settings, file: Path) -> AsyncGenerator[Mapping[str, PluginKind]]:
    """Yield the kinds of plugins that need cages, with a spawner of this command's own."""
    from kaged.app.pipeline import plugin_kinds
    from kaged.cage import Spawner
    from kaged.cage.configured import cage_settings
    from kaged.cage.net import NetGate

    settings.places.ensure()
    chosen = cage_settings(settings)
    gate = NetGate(lambda _event: None)
    try:
        if _has_guests(file):  # its trial runs take a second that trusted classes do not need
            await gate.start(chosen.bwrap)
        spawner = Spawner(chosen, gate=gate)
        try:
            yield plugin_kinds(spawner)
        finally:
            await spawner.close()
    finally:
        await gate.close()


def _has_guests(file: Path) -> bool:
    from kaged.pipeline.document import parse_document

    try:
        document = parse_document(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError):
        return False  # loading it says why
    return any("." not in entry.config.kind for entry in document.entries)


async def _checked(chosen: tuple[Settings, Path]) -> CheckReport:
    from kaged.base import Ids, SystemClock
    from kaged.pipeline.explain import check_file

    settings, file = chosen
    clock = SystemClock()
    async with _kinds(settings, file) as kinds:
        return await check_file(file, clock, Ids(clock), kinds=kinds)


async def _traced(
    chosen: tuple[Settings, Path], hook: str, payload: dict[str, Any], slots: dict[str, Any]
) -> TraceReport:
    from kaged.base import Ids, SystemClock
    from kaged.pipeline.trace import trace_file

    settings, file = chosen
    clock = SystemClock()
    async with _kinds(settings, file) as kinds:
        try:
            return await trace_file(file, hook, payload, slots, clock, Ids(clock), kinds=kinds)
        except ValueError as error:
            raise KagedError(
                f"The payload or the slots do not fit {hook}: {error}",
                code="pipeline_trace_input_invalid",
                fix="See the payloads and slots in docs/reference/pipeline.md.",
            ) from error


def _json_of(text: str, flag: str) -> dict[str, Any]:
    """Read an option's JSON object: literally, from `@FILE`, or from standard input for `-`."""
    try:
        if text == "-":
            text = typer.get_text_stream("stdin").read(MAX_INPUT_BYTES)
        elif text.startswith("@"):
            path = Path(text[1:])
            if path.stat().st_size > MAX_INPUT_BYTES:
                raise KagedError(
                    f"{path} is larger than {MAX_INPUT_BYTES} bytes.",
                    code="pipeline_trace_input_invalid",
                )
            text = path.read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise KagedError(
            f"{flag} cannot be read: {error}.",
            code="pipeline_trace_input_invalid",
            fix="Pass a JSON object, or @FILE with one.",
        ) from error
    if not isinstance(found, dict):
        raise KagedError(
            f"{flag} is not a JSON object.",
            code="pipeline_trace_input_invalid",
            fix='Write it as {"name": ...}.',
        )
    return found


def _tell(output: Output, problems: Sequence[Problem]) -> None:
    for problem in problems:
        output.note(problem)


def _explain(output: Output, hook: HookExplained) -> None:
    output.line(f"● {hook.hook}")
    output.table(
        ("#", "Plugin", "Kind", "Mode", "On error", "Timeout", "Sees", "May change", "May deny"),
        [
            (
                step.order,
                step.plugin + (" (on a condition)" if step.conditional else ""),
                step.kind,
                step.mode,
                step.on_error,
                f"{step.timeout_s:g}s",
                ", ".join(step.sees),
                ", ".join(step.may_change) or "nothing",
                "yes" if step.may_deny else "no",
            )
            for step in hook.steps
        ],
    )


def _traced_row(step: TracedStep) -> tuple[object, ...]:
    return (
        step.plugin,
        step.mode,
        ", ".join(step.saw),
        ", ".join(step.read),
        ", ".join(step.changed),
        "; ".join(step.refused),
        step.outcome,
        f"{step.duration_ns / NS_PER_MS:.3f}",
    )


def _verdict(report: TraceReport) -> str:
    if report.error is not None:
        return f"failed: {report.error}"
    if not report.allowed:
        return f"denied: {report.violation or 'no reason given'}"
    return f"allowed: {json.dumps(report.payload, default=str)}"


def _trace_json(report: TraceReport) -> dict[str, Any]:
    return {
        "file": report.file,
        "problems": [problem.as_json() for problem in report.problems],
        "steps": [step._asdict() for step in report.steps],
        "allowed": report.allowed,
        "violation": report.violation,
        "error": report.error,
        "payload": report.payload,
        "extensions": report.extensions,
    }
