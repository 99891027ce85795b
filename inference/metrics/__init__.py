"""Metrics as states that are measured where the rows are, and merge exactly."""
