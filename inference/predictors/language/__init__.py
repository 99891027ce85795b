"""Adapters of language models: in the actor, or behind an endpoint; prompts and answers."""
