"""Providers of account capabilities: bridges (programs of the operator) and first-party ones."""
