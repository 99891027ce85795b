"""The `Job` model and its file."""
