"""Tensor columns keep their shapes: Arrow's own, and those that Ray Data writes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import ShardsFailed
from nightjar.inference.input.sources.reading import describe, read_piece, read_sample
from nightjar.inference.predictors.batches import own_table, to_batch
from nightjar.inference.records import Piece
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.tensors import VariableShapedTensor, shaped, to_arrays
from support import Lake

ROWS = 6
RGB = np.arange(ROWS * 4 * 2 * 3, dtype=np.uint8).reshape(ROWS, 4, 2, 3)
FLAGS = RGB[..., 0] % 3 == 0
SIZES = [np.arange(n * 2 * 3, dtype=np.float32).reshape(n, 2, 3) + n for n in range(ROWS)]
"""Of several shapes, the first without a value."""

VARIABLE = pa.struct([("data", pa.large_list(pa.float32())), ("shape", pa.list_(pa.int64()))])


def as_ray_writes(name: str, kind: pa.DataType, extension: str, shape: Any) -> pa.Field:
    """A field of a Parquet file that Ray wrote, as pyarrow gives it where Ray's types are not registered."""
    told = {"ARROW:extension:name": f"ray.data.{extension}", "ARROW:extension:metadata": json.dumps(shape)}
    return pa.field(name, kind, metadata=told)


def ray_table(**more: Any) -> pa.Table:
    flat = [image.ravel().tolist() for image in RGB]
    fields = {
        as_ray_writes("rgb", pa.large_list(pa.uint8()), "arrow_tensor_v2", [4, 2, 3]): flat,
        as_ray_writes("old", pa.list_(pa.uint8()), "arrow_tensor", [4, 2, 3]): flat,
        as_ray_writes("flags", pa.large_list(pa.bool_()), "arrow_tensor_v2", [4, 2]): [
            image.ravel().tolist() for image in FLAGS
        ],
        as_ray_writes("sizes", VARIABLE, "arrow_variable_shaped_tensor", 3): [
            {"data": image.ravel().tolist(), "shape": image.shape} for image in SIZES
        ],
        pa.field("id", pa.int64()): range(ROWS),
    }
    arrays = [pa.array(values, field.type) for field, values in fields.items()]
    return pa.Table.from_arrays(arrays, schema=pa.schema(list(fields)))


@pytest.fixture
def lake(lake: Lake) -> Iterator[Lake]:
    """A file with two row groups."""
    path = lake.folder / "data" / "images.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(ray_table(), path, row_group_size=4)
    yield lake


def read(lake: Lake) -> pa.Table:
    """All rows, as a worker reads them."""
    lake.write_model()
    lake.write_job(carry=["id"], model__features=["rgb"])
    storage, job = LakeStorage(), lake.request().job
    (entry,) = storage.list(str(lake.folder / "data"))
    found = describe(storage, job, entry)
    piece = Piece(entry.uri, entry.size, entry.version, 0, ROWS, (0, 2))
    sample = read_sample(storage, job, piece, found.schema, 1)
    table = read_piece(storage, job, piece, found.schema).table
    assert sample.table.equals(table.slice(0, 1))
    return table


def same(found: Any, wanted: Any) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("form", ["numpy", "pandas", "torch"])
def test_tensors_of_ray_have_their_shapes_in_a_batch(lake: Lake, form: str) -> None:
    """As arrays (n, …) if they are of one shape, else one array for each row; in a DataFrame always so."""
    batch = to_batch(read(lake), form)
    assert list(batch) == ["rgb", "old", "flags", "sizes", "id"]
    for name, wanted in {"rgb": RGB, "old": RGB, "flags": FLAGS, "sizes": SIZES}.items():
        found = batch[name]
        assert same(found, wanted), name
        if form != "pandas" and name != "sizes":
            assert tuple(found.shape) == np.asarray(wanted).shape
            assert str(found.dtype).removeprefix("torch.") == str(np.asarray(wanted).dtype)
    assert [each.shape for each in batch["sizes"]] == [each.shape for each in SIZES]


def test_tensors_are_carried_in_types_that_keep_their_shapes(lake: Lake) -> None:
    """Whoever reads the parts gets Arrow's fixed-shape tensors; those of several shapes stand beside their shapes."""
    lake.write_model(
        "def score(batch):\n    pairs = zip(batch['rgb'], batch['sizes'])\n"
        "    return {'score': [image[0, 0, 0] + len(size) for image, size in pairs]}\n"
    )
    lake.write_job(model__features=["rgb", "sizes"], carry=["rgb", "sizes"])
    lake.run(engine="local")
    (part,) = (lake.revision() / "data").glob("*.parquet")
    table = pq.read_table(part)
    assert table["score"].to_pylist() == [float(image[0, 0, 0]) + index for index, image in enumerate(RGB)]
    assert table.schema.field("rgb").type == pa.fixed_shape_tensor(pa.uint8(), [4, 2, 3])
    assert same(table["rgb"].combine_chunks().to_numpy_ndarray(), RGB)
    assert same(to_arrays(table["sizes"].combine_chunks()), SIZES)
    stored = table["sizes"].combine_chunks().storage
    assert stored.field("shape").to_pylist() == [list(each.shape) for each in SIZES]


def test_a_row_that_cannot_be_scored_keeps_its_tensors_in_the_quarantine(lake: Lake) -> None:
    lake.write_model(
        "def score(batch):\n    if 7 in batch['rgb'][:, 0, 0, 0] // 10:\n        raise ValueError('too bright')\n"
        "    return {'score': [len(each) for each in batch['sizes']]}\n"
    )
    lake.write_job(model__features=["rgb", "sizes"], carry=["id"], retry__max_quarantined=0.5)
    lake.run(engine="local")
    (part,) = (lake.revision() / "quarantine").glob("*.parquet")
    lost = pq.read_table(part)
    assert lost["_row"].to_pylist() == [3]
    kept = lost["input"].combine_chunks()
    assert kept.field("sizes").storage.to_pylist() == [
        {"data": SIZES[3].ravel().tolist(), "shape": list(SIZES[3].shape)}
    ]


def test_nulls_are_no_tensors() -> None:
    """Of several shapes it is None; an array of one shape has no place for it."""
    stored = pa.array([{"data": [1.0, 2.0], "shape": [2, 1]}, None], VARIABLE)
    column = pa.ExtensionArray.from_storage(VariableShapedTensor(pa.float32()), stored)
    assert to_arrays(column)[0].tolist() == [[1.0], [2.0]]
    assert to_arrays(column)[1] is None
    assert to_arrays(column.slice(1)).tolist() == [None]
    for kind in (pa.int8(), pa.bool_()):
        for rows in ([[1, 0], None], [[1, 0], [1, None]]):
            flat = pa.array(rows, pa.list_(pa.int8(), 2)).cast(pa.list_(kind, 2))
            with pytest.raises(ValueError, match="is null or has a null inside"):
                to_arrays(pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(kind, [2]), flat))


def test_a_copy_of_tensors_is_equal() -> None:
    table = shaped(ray_table())
    assert own_table(table).equals(table)


def test_another_table_is_left_as_it_is(tmp_path: Path) -> None:
    """Also with lists, and with metadata of somebody else."""
    other = pa.field("x", pa.list_(pa.int8()), metadata={"ARROW:extension:name": "somebody.else", "more": "1"})
    table = pa.Table.from_arrays([pa.array([[1]], pa.list_(pa.int8()))], schema=pa.schema([other]))
    assert shaped(table) is table


def test_tensors_of_several_shapes_are_named_in_plain_words() -> None:
    """Where a message says what type a column has."""
    assert f"{VariableShapedTensor(pa.float32())}" == "tensors of float, each of its own shape"


def test_a_file_whose_tensors_have_another_shape_fails_alone_and_names_the_column(lake: Lake) -> None:
    lake.write_model("def score(batch):\n    return {'score': batch['rgb'][:, 0, 0, 0]}\n")
    lake.write_job(model__features=["rgb"], carry=["id"])
    data = lake.folder / "data"
    pq.write_table(ray_table(), data / "more.parquet")
    other = ray_table().select(["rgb", "id"])
    field = as_ray_writes("rgb", other.schema.field("rgb").type, "arrow_tensor_v2", [2, 4, 3])
    pq.write_table(other.set_column(0, field, other["rgb"]), data / "other.parquet")
    said = r"other\.parquet: column 'rgb' is uint8\[2, 4, 3\], in most of the input it is uint8\[4, 2, 3\]"
    with pytest.raises(ShardsFailed, match=rf"^1 of 3 shards has no result.*{said}"):
        lake.run(engine="local")


PICKLED = """
import sys
from pathlib import Path
from nightjar.inference.errors import InputCorrupt
from nightjar.inference.input.sources.reading import describe
from nightjar.inference.job.file import load_job
from nightjar.inference.storage.lake import LakeStorage

storage, folder = LakeStorage(), Path(sys.argv[1])
for entry in storage.list(str(folder / "data")):
    try:
        describe(storage, load_job(folder / "job.yaml"), entry)
        print(Path(entry.uri).name, "described")
    except InputCorrupt as error:
        print(Path(entry.uri).name, error)
"""


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("", "column 'rgb' is a pickle, as Ray 2.49 to 2.54 wrote it, and pickles of files are not loaded; write the"),
        ("import ray.data; from ray.data.extensions import ArrowTensorTypeV2\n", "written by Ray 2.49-2.54"),
    ],
    ids=["without Ray", "with Ray's types"],
)
def test_a_file_whose_shapes_are_pickles_is_bad_alone(lake: Lake, first: str, said: str) -> None:
    """As Ray 2.49 to 2.54 wrote it. Where Ray's types are registered, Arrow raises what Ray does."""
    lake.write_model()
    lake.write_job(model__features=["rgb"])
    table = ray_table().select(["rgb", "id"])
    told = {**table.schema.field("rgb").metadata, b"ARROW:extension:metadata": pickle.dumps((4, 2, 3))}
    table = table.set_column(0, table.schema.field("rgb").with_metadata(told), table["rgb"])
    path = lake.folder / "data" / "pickled.parquet"
    pq.write_table(table, path)
    done = subprocess.run(
        [sys.executable, "-c", first + PICKLED, str(lake.folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, bad = done.stdout.splitlines()
    assert whole == "images.parquet described"
    assert bad.startswith(f"pickled.parquet {path}: not a readable Parquet file: ") and said in bad
