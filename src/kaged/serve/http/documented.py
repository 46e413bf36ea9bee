"""What every route has in common in the OpenAPI document: its error answers."""

from __future__ import annotations

from typing import Any, Final

from kaged.serve.http.access import COOKIE_NAME
from kaged.serve.http.models import ErrorOut

ResponseDocs = dict[int | str, dict[str, Any]]

_TEXT: Final = {
    400: "The request makes no sense (`invalid_cursor`, `invalid_request`).",
    401: "No credential, or one that is not valid (`unauthenticated`).",
    403: "Not for this caller (`access_denied`, `origin_not_allowed`).",
    404: "There is no such thing (`not_found`, `project_not_found`).",
    405: "This path exists, but not with this method (`method_not_allowed`).",
    409: "It does not go together with what is there.",
    410: "It was there and has ended (`capability_auth_flow_expired`).",
    413: "The body is too large (`payload_too_large`).",
    421: "The Host header is not one of this daemon's names (`host_not_allowed`).",
    422: "The request does not fit the route (`invalid_request`, `config_invalid`).",
    429: "Too often (`capability_rate_limited`).",
    500: "Something broke inside (`internal`).",
    502: "The plugin is down, too slow, or answered with an error (`plugin_unavailable`).",
    503: "Not now (`daemon_stopping`, `store_unavailable`).",
    504: "It took too long (`request_timeout`).",
}
_ALWAYS: Final = (401, 403, 405, 413, 421, 422, 500, 503, 504)


# A reference and not the model itself: the framework would build it anew for every status of every
# route, which takes longer than all the rest of the start.
_SHAPE: Final = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOut"}}}


def errors(*more: int) -> ResponseDocs:
    """Document the error answers that every route can give, and `more`."""
    return {
        status: {"description": _TEXT[status], "content": _SHAPE}
        for status in sorted({*_ALWAYS, *more})
    }


def documented(summary: str, *more: int) -> dict[str, Any]:
    """Return a route's part of the document: its summary and its error answers, as `errors`."""
    return {"summary": summary, "responses": errors(*more)}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Put the error shape and the two credentials of the TCP listener into an OpenAPI document."""
    drawn = ErrorOut.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(drawn.pop("$defs"))
    schemas["ErrorOut"] = drawn
    # The framework's own shape of a 422, which no route of ours gives.
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "`kaged daemon token`"},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": COOKIE_NAME,
            "description": "Given by the link that `kaged daemon open` makes.",
        },
    }
    document["security"] = [{"bearer": []}, {"session": []}]
    return document
