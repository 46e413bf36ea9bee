"""Answers to agents' questions, from a terminal or from options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from kaged.cli.inputs import file_of, pairs_of, plain_value
from kaged.cli.output import Output, one_line

Read = Callable[[str], str]
"""Asks the person one line."""


def show_interaction(asked: dict[str, Any], output: Output) -> None:
    """Show a question, a form or a checkpoint in full."""
    payload = asked["payload"]
    for question in payload.get("questions", ()):
        output.line()
        output.line(f"{question['id']}: {question['title']}")
        _explain(question, output)
    for field in payload.get("fields", ()):
        output.line()
        needed = " (required)" if field["required"] else ""
        output.line(f"{field['name']}: {field['label']} [{field['type']}]{needed}")
        _explain(field, output)
    if asked["kind"] == "checkpoint":
        output.line()
        output.line(payload["message"])
        if payload["detail"]:
            output.line(payload["detail"])


def ask_person(asked: dict[str, Any], output: Output, read: Read) -> dict[str, Any]:
    """Ask the person at the terminal; return the body of their answer."""
    show_interaction(asked, output)
    output.line()
    if asked["kind"] == "checkpoint":
        return _decision(read)
    payload = asked["payload"]
    answers: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for question in payload.get("questions", ()):
        many = bool(question["multiple"])
        hint = " (several: separate with ;)" if many else ""
        said = read(f"{one_line(question['id'])}{hint}> ")
        picked = [_picked(one, question["options"]) for one in said.split(";")] if many else []
        if said.strip():
            answers[question["id"]] = picked if many else _picked(said, question["options"])
    for field in payload.get("fields", ()):
        said = read(f"{one_line(field['name'])}> ").strip()
        if not said:
            continue
        if field["type"] == "file":
            files[field["name"]] = file_of(Path(said))
        else:
            value = _picked(said, field["options"])
            answers[field["name"]] = plain_value(field["type"], value)
    return {"answers": answers, "files": files}


def answer_of(
    asked: dict[str, Any], given: list[str] | None, files: list[str] | None
) -> dict[str, Any]:
    """Make the body of an answer from `NAME=VALUE` flags."""
    payload = asked["payload"]
    kinds = {field["name"]: field["type"] for field in payload.get("fields", ())}
    multiple = {one["id"] for one in payload.get("questions", ()) if one["multiple"]}
    found: dict[str, Any] = {}
    for name, text in pairs_of(given):
        value = plain_value(kinds.get(name), text)
        if name in multiple or name in found:
            before = found.get(name, [])
            found[name] = [*(before if isinstance(before, list) else [before]), value]
        else:
            found[name] = value
    return {
        "answers": found,
        "files": {name: file_of(Path(text)) for name, text in pairs_of(files)},
    }


def gist_of(asked: dict[str, Any]) -> str:
    """Return the question in one line."""
    payload = asked["payload"]
    if asked["kind"] == "checkpoint":
        return str(payload["message"])
    listed = payload.get("questions") or payload.get("fields") or []
    return "; ".join(str(item.get("title") or item.get("label")) for item in listed)


def show_answer(asked: dict[str, Any], output: Output) -> None:
    """Show what was answered, if anything was."""
    if asked["answer"] is not None:
        output.line(json.dumps(asked["answer"], ensure_ascii=True))


def _decision(read: Read) -> dict[str, Any]:
    while True:
        said = read("approve, reject, or type a reply> ").strip()
        match said.lower():
            case "":
                continue
            case "a" | "approve" | "y" | "yes":
                return {"decision": "approve", "text": None}
            case "r" | "reject" | "n" | "no":
                return {"decision": "reject", "text": None}
            case _:
                return {"decision": "reply", "text": said}


def _picked(said: str, options: list[str]) -> str:
    """Take an option by its number, or the words as they are."""
    said = said.strip()
    if options and said.isdecimal() and 1 <= int(said) <= len(options):
        return options[int(said) - 1]
    return said


def _explain(item: dict[str, Any], output: Output) -> None:
    if item["description"]:
        output.line(f"  {item['description']}")
    for number, option in enumerate(item["options"], start=1):
        output.line(f"  {number}. {option}")


def at_terminal(prompt: str) -> str:
    """Read a line from the person at the terminal. Raises typer.Abort at the end of input."""
    try:
        return input(prompt)
    except EOFError:
        raise typer.Abort from None
