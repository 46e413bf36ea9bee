"""Two policies that tests of labels share: one labels what names a customer, one keeps it in."""

from __future__ import annotations

from whole.harness.policies import POST, PRE, gives

CLASSIFIER = gives(
    "change(ext, security=grown(ext, 'pii')) if 'ada@' in str(payload.result) else None",
    "append_labels",
    hooks=[POST],
    name="classifier",
)
GUARD = {
    "name": "egress",
    "kind": "kaged.pipeline.policies.EgressGuard",
    "hooks": [PRE],
    "capabilities": ["read_labels"],
    "config": {"labels": ["pii"]},
}
