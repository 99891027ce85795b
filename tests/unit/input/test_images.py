"""Images and other files of which each is one row: values as Pillow has them, and what is wrong costs its row."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import ExifTags, Image, ImageOps

from lazily import lazily
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError
from nightjar.inference.input.files import input_files
from nightjar.inference.input.plan import PACKED_FILES, discover
from nightjar.inference.input.sources.image import eight_bits
from nightjar.inference.input.sources.reading import describe, read_piece
from nightjar.inference.input.sources.rows import RowsRead
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.records import Piece
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry
from nightjar.inference.tensors import VariableShapedTensor, to_arrays
from support import HELPERS, Lake

pictures = lazily("nightjar.inference.predictors.transformers.mediapredictors", "pictures")

STORAGE = LakeStorage()
FORMATS = ["JPEG", "PNG", "WEBP"]


def picture(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(values.squeeze(axis=2) if channels == 1 else values, mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def job(folder: Path, uri: str, **keys: Any) -> Job:
    model = {"uses": "m:f", "outputs": {"y": "float64"}}
    given = {"name": "t", "input": {"uri": uri, **keys}, "model": model, "output": {"uri": "out"}}
    return parse_job(given, folder / "job.yaml")


def read(path: Path, *columns: str, **keys: Any) -> RowsRead:
    """The file's row, with these columns, or all."""
    here, entry = job(path.parent, str(path), **keys), STORAGE.stat(str(path))
    schema = describe(STORAGE, here, entry).schema
    wanted = pa.schema([schema.field(name) for name in columns or schema.names])
    return read_piece(STORAGE, here, Piece(entry.uri, entry.size, entry.version, 0, 1, (0, 1)), wanted)


def array(found: RowsRead) -> np.ndarray:
    assert not found.failures
    return np.asarray(to_arrays(found.table["image"].chunk(0))[0])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1"])
def test_an_image_is_what_pillow_makes_of_it(tmp_path: Path, kind: str, mode: str) -> None:
    path = tmp_path / f"a.{kind.lower()}"
    try:
        path.write_bytes(encoded(picture(5, 7).convert(mode), kind))
    except OSError:
        return  # the format cannot have it
    theirs = Image.open(path)
    assert np.array_equal(array(read(path)), np.asarray(theirs.convert("RGB")))
    for asked, channels in (("RGB", 3), ("RGBA", 4), ("L", 1)):
        found = array(read(path, options={"mode": asked}))
        assert found.shape == (5, 7, channels)
        assert found.dtype == np.uint8
        assert np.array_equal(found.squeeze(), np.asarray(theirs.convert(asked)))
    scaled = read(path, options={"size": [4, 3]})
    assert scaled.table.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), (4, 3, 3))
    assert np.array_equal(array(scaled), np.asarray(theirs.convert("RGB").resize((3, 4), Image.Resampling.BILINEAR)))


def test_a_grey_image_of_16_bits_is_the_higher_8_of_them(tmp_path: Path) -> None:
    """As of a coloured one, in each mode that a Pillow may give it; and as a picture for a model."""
    values = np.arange(0, 65536, 1024, np.uint16).reshape(8, 8)
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(values), "PNG"))
    assert np.array_equal(array(read(path, options={"mode": "L"})).squeeze(), values >> 8)
    assert np.array_equal(eight_bits(Image.fromarray(values.astype(np.int32))), values >> 8)
    (picture,) = pictures(pa.table({"bytes": [path.read_bytes()]}), "t")
    assert np.array_equal(picture, array(read(path)))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_stands_upright_wherever_it_is_decoded(tmp_path: Path, kind: str, orientation: int) -> None:
    """As the camera noted in EXIF: as arrays, and as bytes for a model. `upright: false` leaves it as it is stored."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / f"a.{kind.lower()}"
    path.write_bytes(encoded(picture(5, 7), kind, exif=exif))
    stored = Image.open(path)
    turned = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
    assert np.array_equal(array(read(path)), turned)
    assert np.array_equal(array(read(path, options={"upright": False})), np.asarray(stored.convert("RGB")))
    assert array(read(path, options={"size": [14, 10]})).shape == (14, 10, 3)
    for column in (read(path).table["image"], pa.chunked_array([pa.array([path.read_bytes()])])):
        assert np.array_equal(pictures(pa.table({"x": column}), "t")[0], turned)


def test_path_and_label_come_with_it_and_without_the_image_nothing_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "cats" / "a.png"
    path.parent.mkdir()
    path.write_bytes(encoded(picture(2, 3)))
    found = read(path, options={"label": "folder"}).table
    assert found.schema.names == ["image", "path", "label"]
    assert found.schema.field("image").type == VariableShapedTensor(pa.uint8())
    assert found.select(["path", "label"]).to_pylist() == [{"path": str(path), "label": "cats"}]
    path.write_bytes(b"no image")
    assert read(path, "label", "path", options={"label": "folder"}).table.to_pylist() == [
        {"label": "cats", "path": str(path)}
    ]


def png_of(height: int, width: int, bits: int = 8, colour: int = 2, data: int = 1000) -> bytes:
    """A file of a few bytes that claims to be so large. data: the bytes that it really has, unpacked."""

    def chunk(kind: bytes, held: bytes) -> bytes:
        return len(held).to_bytes(4, "big") + kind + held + zlib.crc32(kind + held).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([bits, colour, 0, 0, 0])
    body = chunk(b"IDAT", zlib.compress(b"\0" * data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body


WHOLE = encoded(picture(60, 50, seed=1))
UNKNOWN, BROKEN = "not a JPEG, PNG or WebP image", "an image that cannot be decoded: "
BAD = [
    (b"", "an empty file, not an image"),
    (b"x" * 500, UNKNOWN),
    (b"GIF89a" + b"\0" * 50, UNKNOWN),
    (WHOLE[: len(WHOLE) // 2], BROKEN),
    (WHOLE[:20], BROKEN),
    (encoded(picture(60, 50), "JPEG")[:1500], BROKEN),
    (encoded(picture(60, 50), "WEBP")[:900], BROKEN),
    (png_of(30_000, 30_000), f"{BROKEN}Image size (900000000 pixels) exceeds limit of 178956970 pixels"),
    (WHOLE.replace(b"IHDR", b"IDHR"), UNKNOWN),
]


@pytest.mark.parametrize(("content", "said"), BAD)
def test_a_bad_image_is_the_failure_of_its_row(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    for options in ({}, {"size": [8, 9]}):
        found = read(path, options=options)
        assert (found.table.num_rows, found.readable, found.table["image"].null_count) == (1, 0, 1)
        assert found.failures[0].message.startswith(f"{path}: {said}")
        assert found.failures[0].error == "InputCorrupt"


def test_a_bomb_is_refused_without_its_pixels_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    # One bit a pixel, and nothing is wrong with it: a decoder would make gigabytes of its 50 KB.
    path.write_bytes(png_of(20_000, 20_000, bits=1, colour=0, data=20_000 * 2501))
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), str(HELPERS)]!r}\n"
        "from test_images import read\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"found = read(Path({str(path)!r}))\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "assert found.readable == 0\n"
        "assert grown < 300_000, grown\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr


def test_images_are_not_opened_before_they_are_read(tmp_path: Path) -> None:
    """With `size` the bytes in memory are known, else they are guessed by the file's size."""
    path = tmp_path / "a.jpg"
    path.write_bytes(b"?" * 100)
    for options, size in (({}, 1600), ({"size": [9, 8]}, 9 * 8 * 3 + 100)):
        found = describe(STORAGE, job(tmp_path, str(path), options=options), STORAGE.stat(str(path)))
        assert (found.rows, found.sizes) == ((1,), (size,))


@pytest.mark.parametrize(("format_", "name"), [("image", "a.png"), ("audio", "a.wav")])
def test_the_query_of_a_url_is_no_part_of_the_name_that_tells_the_size(tmp_path: Path, format_: str, name: str) -> None:
    uri = f"https://host/{name}"
    sizes = [
        describe(STORAGE, job(tmp_path, uri, format=format_), Entry(each, 1000, "v")).sizes
        for each in (uri, f"{uri}?sha256=ab")
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"sise": [1, 2]},
            "input.options.sise: the image format knows only the options size, mode, label, upright; did",
        ),
        ({"x": 1}, "input.options.x: the image format knows only the options size, mode, label, upright"),
        ({"size": 32}, "input.options.size: write [height, width] in pixels, not 32"),
        ({"size": [32, 0]}, "input.options.size: write [height, width] in pixels, not [32, 0]"),
        ({"mode": "rgb"}, "input.options.mode: 'rgb' is not one of RGB, RGBA, L"),
        ({"label": "file"}, "input.options.label: 'file' is not one of folder"),
    ],
)
def test_a_wrong_option_is_told_before_anything_starts(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(WHOLE)
    with pytest.raises(JobError) as caught:
        discover(STORAGE, job(tmp_path, "in/", options=options))
    assert str(caught.value).startswith(said)
    with pytest.raises(JobError, match=r"^input\.options: the binary format has no options; leave it out$"):
        discover(STORAGE, job(tmp_path, "in/", format="binary", options=options))


def names(here: Job) -> list[str]:
    return sorted(Path(entry.uri).name for entry in input_files(STORAGE, here))


def test_images_are_input_by_their_names_and_beside_other_files_only_where_the_job_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.PNG", "b.jpeg", "c.webp", "d.jpg"):
        (folder / name).write_bytes(WHOLE)
    assert names(job(tmp_path, "in/")) == ["a.PNG", "b.jpeg", "c.webp", "d.jpg"]
    (folder / "notes.txt").write_text("a note")
    with pytest.raises(
        JobError, match=r"several formats: .*\(image\) and .*\(text\)\. Set input.format to text or image"
    ):
        names(job(tmp_path, "in/"))
    assert names(job(tmp_path, "in/", format="image")) == ["a.PNG", "b.jpeg", "c.webp", "d.jpg"]
    (folder / "table.csv").write_text("x\n1\n")
    with pytest.raises(JobError, match="several formats"):
        names(job(tmp_path, "in/"))
    assert names(job(tmp_path, "in/", format="csv")) == ["notes.txt", "table.csv"]
    assert names(job(tmp_path, "in/", format="image")) == ["a.PNG", "b.jpeg", "c.webp", "d.jpg"]
    everything = ["a.PNG", "b.jpeg", "c.webp", "d.jpg", "notes.txt", "table.csv"]
    assert names(job(tmp_path, "in/", format="binary")) == everything


def test_a_file_of_any_kind_is_a_row_of_its_bytes(tmp_path: Path) -> None:
    for name, content in (("a.bin", bytes(range(256))), ("b", b"")):
        (tmp_path / name).write_bytes(content)
        found = read(tmp_path / name, format="binary")
        assert found.table.to_pylist() == [{"bytes": content, "path": str(tmp_path / name)}]


MODEL = """
import numpy as np

def score(batch):
    return {"score": np.array([float(image.mean()) for image in batch["image"]], np.float32)}
"""


def test_a_lake_of_images_is_scored_in_few_shards_and_bad_files_cost_their_rows(lake: Lake) -> None:
    """Folders of small files, some of which are no images: they are quarantined, each under its name."""
    expected, lost = {}, set()
    for index in range(1200):
        path = lake.folder / "data" / ("cats" if index % 2 else "dogs") / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if index in (7, 600):
            path.write_bytes(BAD[index % 3][0])
            lost.add(str(path))
            continue
        image = picture(index % 5 + 1, index % 7 + 2, seed=index)
        path.write_bytes(encoded(image))
        expected[str(path)] = np.float32(np.asarray(image).mean())
    lake.write_model(MODEL)
    lake.write_job(
        input={"uri": "data/", "options": {"label": "folder"}},
        model__features=["image"],
        carry=["path", "label"],
        retry__max_quarantined=0.01,
    )
    assert 1200 / PACKED_FILES < len(lake.planned()) < 60
    lake.run(engine=LOCAL)
    found = lake.published()
    assert dict(zip(found["path"], found["score"], strict=True)) == pytest.approx(expected)
    assert (found["label"] == [Path(path).parent.name for path in found["path"]]).all()
    assert set(lake.quarantined()["_file"]) == lost
    assert set(lake.quarantined()["error"]) == {"InputCorrupt"}


def test_options_are_part_of_the_identity_and_none_leaves_it_as_it_was(tmp_path: Path) -> None:
    plain, small, other = (
        scoring_keys(job(tmp_path, "in/", **({"options": options} if options else {})))
        for options in ({}, {"size": [8, 8], "mode": "L"}, {"mode": "L", "size": [8, 8]})
    )
    assert "input.options" not in plain
    assert small == other == plain | {"input.options": {"mode": "L", "size": [8, 8]}}


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(WHOLE)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(JobError, match=r"another package .*; install it: pip install 'nightjar-batch\[images\]'$"):
        read(path)
