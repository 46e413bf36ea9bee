"""The story that `make demo` plays: its texts, its stage and its scenes."""
