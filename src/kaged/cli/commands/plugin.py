"""`kaged plugin`: install, enable, inspect, call and check plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kaged.base import KagedError
from kaged.cli.commands.plugin_consent import (
    Name,
    Yes,
    register_consents,
    require_consent,
)
from kaged.cli.commands.plugin_secret import app as secrets
from kaged.cli.exits import Exit
from kaged.cli.inputs import json_object
from kaged.cli.output import Output, show_lines
from kaged.cli.runner import DaemonClient, command, daemon_command, group

app = group("Install, enable, inspect, call and check plugins.")


def _show_plugin(found: Any, output: Output) -> None:
    output.fields({key: _cell(value) for key, value in found.items() if key != "metrics"})
    output.fields(_counters(found.get("metrics") or {}))


def _counters(metrics: dict[str, Any]) -> dict[str, str]:
    """Return a plugin's counters in one line each."""
    found = {
        name: _cell(metrics[name])
        for name in ("calls", "hooks", "hook_timeouts", "restarts", "notifications_dropped")
        if name in metrics
    }
    errors = metrics.get("errors") or {}
    found["errors"] = ", ".join(f"{code}: {count}" for code, count in errors.items()) or "0"
    if metrics.get("calls"):
        found["mean_ms"] = f"{metrics['latency_sum_ms'] / metrics['calls']:.3f}"
    return found if metrics else {}


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


@daemon_command(app, "list")
def list_plugins(
    client: DaemonClient,
    output: Output,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show homepage, capabilities and grants.")
    ] = False,
) -> None:
    """List the installed plugins, and the data that is kept of uninstalled ones."""
    answer = client.get("/plugins")
    found = [*answer["items"], *map(_kept_row, answer["kept"])]
    output.result(found)
    columns = ["name", "version", "state", "description"]
    if verbose:
        columns += ["homepage", "capabilities", "operator_grants"]
    output.table(columns, [[_cell(one.get(column)) for column in columns] for one in found])
    if answer["kept"]:
        output.note("Remove kept data for good with `kaged plugin forget NAME`.")


def _kept_row(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the row of data that an uninstalled plugin left."""
    what = [f"{key}: {_cell(kept[key])}" for key in ("tables", "settings") if kept[key]]
    if kept["folder"]:
        what.append("data folder")
    return {**kept, "state": "uninstalled, data kept", "description": "; ".join(what)}


def install(
    client: DaemonClient,
    output: Output,
    path: Annotated[
        str, typer.Argument(help="The plugin's directory, or gallery:NAME for one of kaged's own.")
    ],
    yes: Yes = False,
) -> Any:
    """Install or upgrade a plugin after showing what it may do."""
    place = path if path.startswith("gallery:") else str(Path(path).absolute())
    shown = client.post("/plugins/preview", {"path": place})
    show_lines(shown, output)
    require_consent(shown["question"], output, yes=yes)
    return client.post("/plugins", {"path": place, "digest": shown["digest"]})


daemon_command(app, "install", view=show_lines)(install)


@command(app, "gallery")
def gallery(output: Output) -> None:
    """List the plugins that come with kaged; install one with `gallery:NAME`."""
    from kaged.config.manifest import load_manifest
    from kaged.plugins.gallery import gallery_directories

    found = [load_manifest(one).value for one in gallery_directories()]
    shown = [
        {"name": one.name, "version": str(one.version), "description": one.description}
        for one in found
    ]
    output.result(shown)
    output.table(["name", "version", "description"], [list(one.values()) for one in shown])


@daemon_command(app, "export")
def export(
    client: DaemonClient,
    output: Output,
    name: Name,
    path: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
) -> None:
    """Export a plugin's tables as SQL. Use it before uninstalling the plugin."""
    done = client.post(f"/plugins/{name}/export", {"path": str(path.absolute())})
    output.result(done)
    output.line(f"✓ {done['rows']} rows of {len(done['tables'])} tables → {done['path']}")


daemon_command(app, "upgrade", view=show_lines, text="Upgrade a plugin: the same as `install`.")(
    install
)


@daemon_command(app, "uninstall", view=show_lines)
def uninstall(
    client: DaemonClient,
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Uninstall it even while sessions use it.")
    ] = False,
    keep_data: Annotated[
        bool,
        typer.Option(
            "--keep-data", help="Keep its tables, data folder and settings for the same files."
        ),
    ] = False,
) -> Any:
    """Uninstall a plugin: delete its files, tables and entries."""
    force_text, keep_text = str(force).lower(), str(keep_data).lower()
    return client.delete(f"/plugins/{name}?force={force_text}&keep_data={keep_text}")


@daemon_command(app, "forget", view=show_lines)
def forget(
    client: DaemonClient,
    name: Annotated[
        str,
        typer.Argument(help="The plugin's name, or '~ID' of a record that `doctor` cannot read."),
    ],
) -> Any:
    """Remove for good what `uninstall --keep-data` has kept of a plugin."""
    return client.delete(f"/plugins/{name}/kept")


def _register_verb(verb: str, text: str) -> None:
    def show(found: Any, output: Output) -> Exit | None:
        output.line(f"{found['name']} is {found['state']}.")
        if found.get("note"):
            output.note(found["note"])
        return Exit.ERROR if verb != "disable" and found["state"] == "failed" else None

    @daemon_command(app, verb, view=show, text=text)
    def act(client: DaemonClient, name: Name) -> Any:
        return client.post(f"/plugins/{name}/{verb}")


for _verb, _text in (
    ("enable", "Enable a plugin, start it and reset its failure counter."),
    ("disable", "Stop a plugin and keep it from starting."),
    ("restart", "Stop a plugin and start it again, also one that has failed."),
    ("reload", "Switch a running plugin to its changed files. On a failure the old ones stay."),
):
    _register_verb(_verb, _text)


@daemon_command(app, "info", view=_show_plugin)
def info(client: DaemonClient, name: Name) -> Any:
    """Show everything about one plugin."""
    return client.get(f"/plugins/{name}")


@daemon_command(app, "logs", view=show_lines)
def logs(client: DaemonClient, name: Name) -> Any:
    """Show the last lines that a plugin wrote to its standard error."""
    return client.get(f"/plugins/{name}/logs")


@daemon_command(app, "call")
def call(
    client: DaemonClient,
    output: Output,
    name: Name,
    method: Annotated[str, typer.Argument(help="A method that the plugin declares.")],
    params: Annotated[str, typer.Argument(help="Its parameters, as a JSON object.")] = "{}",
) -> None:
    """Call a method of a plugin and print its result as JSON."""
    answer = client.post(f"/plugins/{name}/call/{method}", json_object(params, "PARAMS"))
    output.raw(json.dumps(answer["result"], indent=2))


register_consents(app)
app.add_typer(secrets, name="secret")


@command(app, "check")
def check(
    output: Output,
    path: Annotated[Path, typer.Argument(help="The plugin's directory.")],
    dry: Annotated[bool, typer.Option("--dry", help="Only read the files; start nothing.")] = False,
) -> None:
    """Check a plugin's files and start it once in a cage. Exit code 6 on errors."""
    from kaged.cli.checks import check_directory

    report = check_directory(path, handshake=not dry)
    output.result(report.as_json())
    for line in report.lines():
        output.line(line)
    if not report.ok:
        raise typer.Exit(Exit.INVALID)


@command(app, "new")
def new(
    output: Output,
    directory: Annotated[Path, typer.Argument(help="The directory to create.")],
    name: Annotated[
        str, typer.Option("--name", help="The plugin's name. Default: the directory's name.")
    ] = "",
    lang: Annotated[str, typer.Option("--lang", help="python, node or bash.")] = "python",
) -> None:
    """Create a small working plugin to start from."""
    from kaged.plugins.scaffold import Language, new_plugin

    try:
        language = Language(lang)
    except ValueError:
        known = ", ".join(one.value for one in Language)
        raise KagedError(
            f"There is no template for {lang!r}.",
            code="invalid_params",
            fix=f"Use --lang with one of {known}.",
        ) from None
    made = new_plugin(directory, name or directory.absolute().name, language)
    files = [str(path) for path in made.files]
    output.result({"directory": str(made.directory), "files": files})
    for path in files:
        output.line(f"created  {path}")
    output.note(f"Next: `kaged plugin check {directory}`.")
