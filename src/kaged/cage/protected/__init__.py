"""Protected paths in cages: what guests write there is taken back before anybody runs it.

`tree` finds the protected places below a writable folder, `saved` keeps what lay in them, `sweep`
puts it back, `guard` does that around and during the life of a cage.
"""
