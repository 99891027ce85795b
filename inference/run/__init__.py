"""One run: what is asked for, its four steps, and what is told of it."""
