"""`kaged_sdk`: the name that the SDK has as a package of its own, for plugins in a cage.

Shown there as `kaged_sdk/__init__.py`; whoever imports it gets `kaged.sdk` itself.
"""

from __future__ import annotations

import sys

import kaged.sdk

sys.modules[__name__] = kaged.sdk
