"""The parts of `scripts/mutate.py`: copies of the tree, measuring, choosing, breaking, running."""
