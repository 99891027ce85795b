"""What is written beside a part: the states of its rows that `metrics.states.BESIDE` names, too large for its footer.

A worker writes them before the part, whose footer names the size and checksum of each. So the receipt, which has the
part's checksum, vouches for them, too: they are committed, audited, published and taken back together with their part,
and neither the ledger nor a snapshot knows them.

    data/<base>.parquet
    states/profile/<base>.profile
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import xxhash

from nightjar.inference.jsonform import of_json, to_json
from nightjar.inference.storage.protocol import Storage, join

FOLDER = "states"
"""The folder of what lies beside a revision's parts; each kind has a folder of its own in it."""

FOOTER_KEY = b"nightjar.beside"


@dataclass(frozen=True, slots=True)
class Beside:
    """One file beside a part. size: in bytes. checksum: as of a part."""

    size: int
    checksum: str


def name_of(part: str, kind: str) -> str:
    """The name of a file beside a part, from that of the part; both relative to the revision."""
    base = part.rpartition("/")[2].removesuffix(".parquet")
    return f"{FOLDER}/{kind}/{base}.{kind}"


def names_of(part: str, kinds: Iterable[str]) -> list[str]:
    """The names of the files beside a part; a quarantine has none."""
    return [] if part.startswith("quarantine/") else [name_of(part, kind) for kind in kinds]


def write(storage: Storage, revision: str, part: str, states: Mapping[str, bytes]) -> dict[bytes, bytes]:
    """Write what lies beside a part, by kind, and return what the part's footer must say of it."""
    found = {}
    for kind, data in states.items():
        storage.write(join(revision, name_of(part, kind)), data)
        found[kind] = to_json(Beside(len(data), xxhash.xxh3_128_hexdigest(data)))
    return {FOOTER_KEY: json.dumps(found).encode("ascii")} if found else {}


def named_in(footer: Mapping[bytes, bytes]) -> dict[str, Beside]:
    """The files beside a part that its footer names, by kind."""
    return {kind: of_json(Beside, found) for kind, found in json.loads(footer.get(FOOTER_KEY, b"{}")).items()}
