"""Inbound edges: each parses what came in, calls one function and formats the answer."""
