"""Scheduled nights: deployments, `serve`, and its runner."""
