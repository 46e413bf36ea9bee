"""Credentials that programs in cages use without holding them; the gate puts them in place."""
