"""The `nightjar` command."""
