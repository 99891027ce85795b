"""The Prefect API: reached, started, and told."""
