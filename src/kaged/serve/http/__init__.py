"""The HTTP edge: `EarlyApp`, `HttpServices`, `AccessRules`, the one error shape.

A request walks: `connection` (who is on the other end of the socket) → `context` (request id,
metrics, last resort for errors) → `access` (Host, Origin, credential → `Actor`) → `limits`
(body, time) → one route → one service function.
"""

from kaged.serve.http.access import AccessRules
from kaged.serve.http.early_app import EarlyApp
from kaged.serve.http.services import HttpServices

__all__ = ["AccessRules", "EarlyApp", "HttpServices"]
