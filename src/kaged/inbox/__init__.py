"""What waits for a person: one inbox of requests, whatever their kind.

ask → `inbox_requests` (or memory) → attention.required
answer → rule (whose is it) → `check` of the kind → closed once → attention.ended → `on_answer`
"""

from kaged.inbox.inbox import AnsweredBy, CheckedAnswer, Inbox, RequestHandler
from kaged.inbox.words import NO, YES, chosen_yes, request_json
from kaged.store.inbox_rows import (
    InboxRequest,
    RequestClosed,
    RequestDraft,
    RequestFilter,
    RequestKind,
    RequestNotFound,
    RequestPending,
    RequestState,
)

__all__ = [
    "NO",
    "YES",
    "AnsweredBy",
    "CheckedAnswer",
    "Inbox",
    "InboxRequest",
    "RequestClosed",
    "RequestDraft",
    "RequestFilter",
    "RequestHandler",
    "RequestKind",
    "RequestNotFound",
    "RequestPending",
    "RequestState",
    "chosen_yes",
    "request_json",
]
