"""What is declared or written in `src` must be reached by the program, and not by tests alone."""
