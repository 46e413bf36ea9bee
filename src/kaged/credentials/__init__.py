"""Credentials that programs in cages use without holding them; the gate puts them in place.

`CredentialGate` serves the bound hosts of cages (`CageGate`), `CageKits` decides what a cage gets.
"""
