"""The stable codes of capability calls, for tests that want every one of them provoked."""

from __future__ import annotations

from typing import Final

CAPABILITY_CODES: Final = (
    "capability_invalid_input",
    "capability_not_found",
    "capability_access_denied",
    "capability_auth_required",
    "capability_account_ambiguous",
    "capability_auth_flow_invalid",
    "capability_auth_flow_expired",
    "capability_auth_flow_denied",
    "capability_auth_flow_ambiguous",
    "capability_auth_callback_invalid",
    "capability_auth_code_missing",
    "capability_auth_code_conflict",
    "capability_auth_state_mismatch",
    "capability_invalid_output",
    "capability_backend_unavailable",
    "capability_mutation_not_confirmed",
    "capability_mutation_plan_mismatch",
    "capability_rate_limited",
    "capability_idempotency_conflict",
    "capability_outcome_unknown",
    "capability_internal_error",
)
"""Every stable code (SC-AMB-02)."""
