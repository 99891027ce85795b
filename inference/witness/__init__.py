"""Notes what a process uses that the identity does not cover, while the model loads and scores.

These are files, libraries, environment variables, network addresses, databases and programs."""

from __future__ import annotations

from nightjar.inference.witness.audit import lacking, news, note_names, refuse, seen, unwatch, watch
from nightjar.inference.witness.seen import Collection, sentences

__all__ = [
    "Collection",
    "lacking",
    "news",
    "note_names",
    "refuse",
    "seen",
    "sentences",
    "unwatch",
    "watch",
]
