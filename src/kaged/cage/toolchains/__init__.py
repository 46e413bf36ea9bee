"""Toolchains in a person's home: where they lie, which are there, and what of them a cage gets."""
