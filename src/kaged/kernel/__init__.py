"""The capability kernel: vocabularies, `CagePolicy`, `Decision`. Pure; alone says yes or no."""

from kaged.kernel.decision import CapabilityDenied, Decision
from kaged.kernel.policy import CagePolicy, FsGrant, FsMode

__all__ = ["CagePolicy", "CapabilityDenied", "Decision", "FsGrant", "FsMode"]
