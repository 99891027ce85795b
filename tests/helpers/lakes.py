"""Lays tables around given data files, for the tests of table formats as inputs."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config

from nightjar.inference.identity.identity import NO_CODE, identify
from nightjar.inference.job.model import Job

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Of Z85, in which the log has a short deletion vector."""


def known_by(job: Job, schema: pa.Schema, *features: str) -> str:
    """What a result is known by for which the model sees these columns of an input. schema: of the input."""
    model = job.models[0].model_copy(update={"features": features})
    return identify(job.model_copy(update={"models": (model,)}), NO_CODE, schema).fingerprint


def lay_delta(file: Path, schema: pa.Schema, deleted: Sequence[int] = ()) -> None:
    """Make the folder of a Parquet file a Delta table of this one file, without these rows of it."""
    shutil.rmtree(file.parent / "_delta_log", ignore_errors=True)
    stats = json.dumps({"numRecords": pq.read_metadata(file).num_rows})
    add = AddAction(file.name, file.stat().st_size, {}, 1, True, stats)
    create_table_with_add_actions(str(file.parent), Schema.from_arrow(schema), [add])
    if deleted:
        delete_rows(file.parent, file.name, deleted)


def delete_rows(table: Path, path: str, rows: Sequence[int]) -> None:
    """Delete rows of a file of a Delta table by a deletion vector, as Spark does; delta-rs writes none."""
    log = table / "_delta_log"
    versions = sorted(log.glob("*.json"))
    actions = [json.loads(line) for version in versions for line in version.read_text().splitlines()]
    (add,) = (action["add"] for action in actions if action.get("add", {}).get("path") == path)
    vector = _vector(rows)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    commit = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}},
        {
            "add": add
            | {
                "deletionVector": {
                    "storageType": "i",
                    "pathOrInlineDv": _z85(vector),
                    "sizeInBytes": len(vector),
                    "cardinality": len(rows),
                }
            }
        },
    ]
    name = f"{len(versions):020d}.json"
    (log / name).write_text("".join(json.dumps(line) + "\n" for line in commit))


def catalog_of(folder: Path) -> SqlCatalog:
    """A catalog in a SQLite file, as pyiceberg's settings may name it."""
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


def name_catalog(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Put this catalog into the settings, which pyiceberg reads when it is imported."""
    patch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{folder}/catalog.db")
    patch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def lay_iceberg(file: Path, schema: pa.Schema, deleted: Sequence[int] = ()) -> None:
    """Make the folder of a Parquet file an Iceberg table of this one file, without these rows of it."""
    catalog = catalog_of(file.parent)
    catalog.create_namespace_if_not_exists("shop")
    if catalog.table_exists("shop.sales"):
        catalog.drop_table("shop.sales")
    table = catalog.create_table("shop.sales", schema, location=f"file://{file.parent}")
    table.add_files([f"file://{file}"])
    if deleted:
        delete_iceberg_rows(table, f"file://{file}", deleted)


def delete_iceberg_rows(table: Table, data_file: str, rows: Sequence[int], *, by_value: bool = False) -> None:
    """Delete rows of a file by their positions, or say that they are deleted by value, as Spark and Flink do.

    pyiceberg writes neither.
    """
    before = table.current_snapshot()
    assert before is not None
    number, name = before.snapshot_id + 1, f"{table.location()}/deleted-{before.snapshot_id}"
    local = Path(f"{name}.parquet".removeprefix("file://"))
    pq.write_table(pa.table({"file_path": [data_file] * len(rows), "pos": pa.array(rows, pa.int64())}), local)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if by_value else DataFileContent.POSITION_DELETES,
        equality_ids=[1] if by_value else None,
        file_path=f"{name}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=local.stat().st_size,
    )
    file.spec_id = table.spec().spec_id
    to = table.io.new_output(f"{name}.avro")
    with _Deletes(table.spec(), table.schema(), to, number, "null") as manifest:
        entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
        manifest.add_entry(entry)
    order = table.metadata.last_sequence_number + 1
    listed = table.io.new_output(f"{name}-list.avro")
    with write_manifest_list(2, listed, number, before.snapshot_id, order, "null") as writer:
        writer.add_manifests([manifest.to_manifest_file(), *before.manifests(table.io)])
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=before.snapshot_id,
        sequence_number=order,
        manifest_list=listed.location,
        summary=Summary(Operation.DELETE),
        schema_id=table.metadata.current_schema_id,
    )
    updates = (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=number),
    )
    table.catalog.commit_table(table, (), updates)


def as_lance(table: pa.Table) -> bytes:
    """A data file of Lance; nothing for a table without rows, of which Lance writes no file."""
    lance = pytest.importorskip("lance", reason="needs pylance, of the extra `lance`")
    with TemporaryDirectory() as folder:
        found = lance.write_dataset(table, folder).get_fragments()
        return b"".join(Path(folder, "data", file.path).read_bytes() for each in found for file in each.data_files())


def lay_lance(file: Path, table: pa.Table, deleted: Sequence[int] = ()) -> None:
    """Make the folder two levels above a data file of Lance a dataset of this one file, without these rows of it.

    table: all that the file has.
    """
    lance = pytest.importorskip("lance", reason="needs pylance, of the extra `lance`")
    place = file.parent.parent
    for name in ("_versions", "_transactions", "_deletions"):
        shutil.rmtree(place / name, ignore_errors=True)
    with TemporaryDirectory() as folder:
        made = lance.write_dataset(table, folder)
        fragments = [each.metadata for each in made.get_fragments()]
    for each in fragments:
        (own,) = each.files
        own._path = file.name
    laid = lance.LanceDataset.commit(place, lance.LanceOperation.Overwrite(made.lance_schema, fragments))
    if deleted:
        laid.delete(f"_rowid IN ({', '.join(map(str, deleted))})")


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return super()._meta | {"content": "deletes"}


def _vector(rows: Sequence[int]) -> bytes:
    """One array container of a 64-bit roaring bitmap, behind the magic number that the protocol asks for."""
    head = struct.pack("<IQI", 1681511377, 1, 0) + struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16)
    return head + b"".join(struct.pack("<H", row) for row in sorted(rows))


def _z85(raw: bytes) -> str:
    raw += bytes(-len(raw) % 4)
    out = ""
    for (word,) in struct.iter_unpack(">I", raw):
        out += "".join(_DIGITS[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return out
