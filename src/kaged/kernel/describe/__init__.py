"""What the kernel knows, in sentences: grants, policies, asks, changes and denials.

One renderer for every surface, so that a fact has the same words in CLI, HTTP, MCP and docs. Pure.
"""

from kaged.kernel.describe.access import SCOPE_WORDS, describe_access, describe_named_grant
from kaged.kernel.describe.asks import (
    AskedCapability,
    ask_lines,
    change_lines,
    consent_question,
    describe_ask,
    describe_changes,
)
from kaged.kernel.describe.credentials import describe_credential, describe_missing_credential
from kaged.kernel.describe.decisions import (
    describe_denial,
    describe_policy_refusal,
    not_allowed,
    operator_fix,
    require,
)
from kaged.kernel.describe.grants import describe_grant, describe_operation
from kaged.kernel.describe.policies import (
    UNCAGED,
    brief_policy,
    describe_policy,
    describe_protected,
)
from kaged.kernel.describe.sentence import Sentence, SentenceSeverity
from kaged.kernel.describe.toolchains import describe_found_toolchain, describe_toolchain

__all__ = [
    "SCOPE_WORDS",
    "UNCAGED",
    "AskedCapability",
    "Sentence",
    "SentenceSeverity",
    "ask_lines",
    "brief_policy",
    "change_lines",
    "consent_question",
    "describe_access",
    "describe_ask",
    "describe_changes",
    "describe_credential",
    "describe_denial",
    "describe_found_toolchain",
    "describe_grant",
    "describe_missing_credential",
    "describe_named_grant",
    "describe_operation",
    "describe_policy",
    "describe_policy_refusal",
    "describe_protected",
    "describe_toolchain",
    "not_allowed",
    "operator_fix",
    "require",
]
