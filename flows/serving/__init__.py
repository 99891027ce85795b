"""Nights that come by themselves: deployments, `serve`, and its runner."""
