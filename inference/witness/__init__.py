"""Notes what a process uses that the identity does not cover, while the model loads and scores.

These are files, libraries, environment variables, network addresses, databases and programs."""

from __future__ import annotations

from nightjar.inference.witness.collection import Collection
from nightjar.inference.witness.notes import Notes
from nightjar.inference.witness.records import Seen, sentences
from nightjar.inference.witness.watch import (
    lacking,
    news,
    note_names,
    refuse,
    seen,
    unwatch,
    watch,
    watching,
)

__all__ = [
    "Collection",
    "Notes",
    "Seen",
    "lacking",
    "news",
    "note_names",
    "refuse",
    "seen",
    "sentences",
    "unwatch",
    "watch",
    "watching",
]
