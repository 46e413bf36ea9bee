"""Policies that come with the product.

They are filtered and merged like everybody's plugins.
"""

from kaged.pipeline.policies.budget import CostBudget, TokenBudget
from kaged.pipeline.policies.cedar import CedarPolicy
from kaged.pipeline.policies.commands import CommandAllowlist
from kaged.pipeline.policies.deny import DenyRules
from kaged.pipeline.policies.egress import EgressGuard
from kaged.pipeline.policies.exchange import TokenExchange
from kaged.pipeline.policies.headers import HeaderAllowlist
from kaged.pipeline.policies.hours import ToolAllowlist
from kaged.pipeline.policies.injection import InjectionHeuristics
from kaged.pipeline.policies.opa import OpaPolicy
from kaged.pipeline.policies.ratelimit import SubjectRateLimit
from kaged.pipeline.policies.redaction import SecretRedaction
from kaged.pipeline.policies.second_person import SecondPerson
from kaged.pipeline.policies.secrets import SecretEgress
from kaged.pipeline.policies.untrusted import UntrustedContentGuard

__all__ = [
    "CedarPolicy",
    "CommandAllowlist",
    "CostBudget",
    "DenyRules",
    "EgressGuard",
    "HeaderAllowlist",
    "InjectionHeuristics",
    "OpaPolicy",
    "SecondPerson",
    "SecretEgress",
    "SecretRedaction",
    "SubjectRateLimit",
    "TokenBudget",
    "TokenExchange",
    "ToolAllowlist",
    "UntrustedContentGuard",
]
