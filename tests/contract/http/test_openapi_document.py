"""The OpenAPI document says everything, and the reference page says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes.running_daemon import InProcess

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "http-api.md"


async def _document(inside: InProcess) -> dict[str, Any]:
    answer = await inside.client.get("/api/v1/openapi.json")
    assert answer.status_code == 200
    return answer.json()


def _operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_every_route_has_a_summary_a_description_and_its_errors(inside: InProcess) -> None:
    for method, path, operation in _operations(await _document(inside)):
        assert operation["summary"], (method, path)
        assert operation["description"], (method, path)
        for status in ("401", "403", "421", "500", "503"):
            content = operation["responses"][status]["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorOut"}, (method, path)


async def test_every_reference_in_the_document_leads_somewhere(inside: InProcess) -> None:
    document = await _document(inside)
    waiting: list[Any] = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                name = node["$ref"].removeprefix("#/components/schemas/")
                assert name in document["components"]["schemas"]
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


async def test_the_document_names_both_credentials(inside: InProcess) -> None:
    document = await _document(inside)
    assert set(document["components"]["securitySchemes"]) == {"bearer", "session"}


async def test_the_reference_page_has_every_route_and_no_other(inside: InProcess) -> None:
    page = PAGE.read_text(encoding="utf-8")
    wanted = {f"`{method} {path}`" for method, path, _ in _operations(await _document(inside))}
    wanted |= {"`WS /api/v1/events`", "`WS /api/v1/projects/{project_id}/mcp/stream`"}
    missing = {route for route in wanted if route not in page}
    assert not missing, f"add to {PAGE.name}: {sorted(missing)}"
    listed = {
        cell for line in page.splitlines() if line.startswith("| `")
        for cell in [line.split("|")[1].strip()]
        if cell.split(" ")[0].strip("`") in {"GET", "POST", "PUT", "PATCH", "DELETE", "WS"}
    }  # fmt: skip
    assert listed == wanted


async def test_the_reference_page_has_every_error_code_of_the_edge() -> None:
    from kaged.base.error_codes import EDGE

    page = PAGE.read_text(encoding="utf-8")
    assert [code for code in EDGE if f"`{code}`" not in page] == []


async def test_the_reference_page_has_every_limit() -> None:
    from kaged.events import hub
    from kaged.serve.http import connection, credentials, middleware
    from kaged.serve.http.connection_budget import ListenerLimits

    connections = ListenerLimits()
    page = PAGE.read_text(encoding="utf-8").replace(",", "")
    for number in (
        connections.tcp,
        connections.owner,
        connections.other_uid,
        connections.other_uids,
        connection.MAX_HEAD_BYTES,
        middleware.MAX_BODY_BYTES,
        hub.RING_EVENTS,
        hub.MAX_SUBSCRIBERS,
        int(credentials.LAUNCH_LIFETIME_S),
    ):
        assert str(number) in page, number
