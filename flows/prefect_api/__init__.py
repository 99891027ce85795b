"""The Prefect API: reaches it, starts a server, and reports to it."""
