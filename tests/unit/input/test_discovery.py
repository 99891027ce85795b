"""Discovery: the files an input uri means, all of them, in order; and what is said when there are none."""

from __future__ import annotations

import glob
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar.inference.errors import JobError
from nightjar.inference.input import listing
from nightjar.inference.input.files import input_files
from nightjar.inference.input.listing import takes_in
from nightjar.inference.input.plan import BEGINNING, discover, make_plan
from nightjar.inference.input.schemas import UsualSchema
from nightjar.inference.input.sources.reading import read_piece
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry, Storage

STORAGE = LakeStorage()


def first_schema(storage: Storage, of: Job) -> pa.Schema:
    """What a command looks at before a run."""
    return discover(storage, of, BEGINNING).schema


def job(folder: Path, uri: str | list[str], **input_keys: Any) -> Job:
    content = {
        "name": "t",
        "input": {"uri": uri, **input_keys},
        "model": {"uses": "m:f", "outputs": {"score": "float32"}},
        "output": {"uri": "out"},
    }
    return parse_job(content, folder / "job.yaml")


def write(path: Path, rows: int = 3, kind: pa.DataType | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": pa.array(range(rows), kind or pa.int64())}), path)
    return path


Found = Callable[..., list[str]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """The files below `tmp_path` that an input uri means."""

    def names(uri: str, **input_keys: Any) -> list[str]:
        files = input_files(STORAGE, job(tmp_path, uri, **input_keys))
        return [entry.uri.removeprefix(f"{tmp_path}/") for entry in files]

    return names


def test_a_folder_means_all_parquet_files_below_it(tmp_path: Path, found: Found) -> None:
    for name in ("b.parquet", "a.PARQUET", "deep/er/c.pq", "day=2026-11-19/d.parquet", "notes.md", "e.parquet.crc"):
        write(tmp_path / "in" / name)
    wanted = ["in/a.PARQUET", "in/b.parquet", "in/day=2026-11-19/d.parquet", "in/deep/er/c.pq"]
    assert found("in/") == found("in") == wanted


def test_text_is_input_by_its_name_and_beside_other_files_only_where_the_job_says_so(tmp_path: Path) -> None:
    """With a format, a file whose name tells text may hold it."""
    (tmp_path / "in").mkdir()
    for name in ("a.txt", "b.TXT.gz", "c.bin"):
        (tmp_path / "in" / name).write_bytes(b"")

    def names(**keys: Any) -> list[str]:
        return [Path(entry.uri).name for entry in input_files(STORAGE, job(tmp_path, "in/", **keys))]

    assert names() == ["a.txt", "b.TXT.gz"]
    (tmp_path / "in" / "d.csv").write_text("x\n1\n")
    with pytest.raises(
        JobError, match=r"a\.txt \(text\) and .*d\.csv \(CSV\)\. Set input\.format to csv or text; files of"
    ):
        names()
    assert names(format="text") == ["a.txt", "b.TXT.gz", "c.bin"]
    assert names(format="csv") == ["a.txt", "b.TXT.gz", "c.bin", "d.csv"]
    assert names(format="jsonl") == ["a.txt", "b.TXT.gz", "c.bin"]
    for no_text in ("parquet", "arrow", "image", "audio", "tar"):
        assert names(format=no_text) == ["c.bin"], "a text beside such files is a note"


@pytest.mark.parametrize(
    ("kinds", "usual"),
    [
        ({"int64": 5, "double": 1}, "double"),
        ({"int64": 50, "double": 1}, "int64"),
        ({"double": 50, "int64": 1}, "double"),
        ({"null": 9, "int64": 1}, "int64"),
        ({"null": 9}, "string"),
        ({"string": 2, "int64": 1, "double": 2}, "double"),
        ({"string": 3, "int64": 1, "double": 1}, "string"),
        ({"date32": 1, "timestamp[us]": 1}, "timestamp[us]"),
        ({"date32": 1, "int64": 1}, "date32[day]"),
        ({"list<int64>": 1, "list<double>": 1}, "list<item: double>"),
        ({"struct<a: int64>": 5, "struct<a: double, b>": 5}, "struct<a: double, b: string>"),
        ({"struct<a: int64>": 5, "struct<b>": 5}, "struct<a: int64, b: string>"),
        ({"struct<a: int64>": 2000, "struct<b>": 1}, "struct<a: int64>"),
        ({"struct<a: int64>": 2, "struct<a: bool>": 3}, "struct<a: bool>"),
        ({"list<struct<a: int64>>": 1, "list<struct<b>>": 1}, "list<item: struct<a: int64, b: string>>"),
    ],
)
def test_types_that_were_inferred_are_decided_by_all_files(kinds: dict[str, int], usual: str) -> None:
    """Column by column. One file in a thousand does not make floats of a column of whole numbers."""
    a, b = pa.struct({"a": pa.int64()}), pa.struct({"b": pa.string()})
    nested = {
        "list<int64>": pa.list_(pa.int64()),
        "list<double>": pa.list_(pa.float64()),
        "struct<a: int64>": a,
        "struct<a: double, b>": pa.struct({"a": pa.float64(), "b": pa.string()}),
        "struct<a: bool>": pa.struct({"a": pa.bool_()}),
        "struct<b>": b,
        "list<struct<a: int64>>": pa.list_(a),
        "list<struct<b>>": pa.list_(b),
    }
    found = UsualSchema()
    for kind, files in kinds.items():
        for index in range(files):
            fields = [pa.field("x", nested.get(kind) or pa.type_for_alias(kind)), pa.field("y", pa.bool_())]
            found.add(pa.schema(fields[:: 1 if index % 2 else -1]), pa.string())
    schema = found.schema()
    assert schema is not None
    assert (str(schema.field("x").type), str(schema.field("y").type)) == (usual, "bool")


def test_hidden_files_and_folders_are_no_input(tmp_path: Path, found: Found) -> None:
    """What Spark, Delta, editors and file systems leave beside the data."""
    for name in ("_temporary/0/a.parquet", "_delta_log/b.parquet", ".c.parquet", ".snap/d.parquet", "_e.parquet"):
        write(tmp_path / "in" / name)
    write(tmp_path / "in" / "f_.parquet")
    assert found("in/") == found("in/**/*.parquet") == ["in/f_.parquet"]


def test_a_folder_of_a_partition_is_input_whatever_its_key(tmp_path: Path, found: Found) -> None:
    """As to Spark. A file is hidden whatever is in its name, and so is what a hidden folder has."""
    for name in ("_day=1/_of=2/a", "_temporary/_day=1/b", "_day=1/_c=d", ".day=1/e", "_day=1/.f", "_log/g"):
        write(tmp_path / "in" / f"{name}.parquet")
    assert found("in/") == found("in/**/*.parquet") == ["in/_day=1/_of=2/a.parquet"]
    lake = discover(STORAGE, job(tmp_path, "in/", partitions={"_day": "int32", "_of": "int32"}))
    assert (lake.files.num_rows, lake.schema.names) == (1, ["x", "_day", "_of"])


def test_a_hidden_folder_that_is_named_is_input(tmp_path: Path, found: Found) -> None:
    write(tmp_path / "_staging" / "a.parquet")
    assert found("_staging/") == ["_staging/a.parquet"]


def test_a_file_that_is_named_is_taken_whatever_its_name(tmp_path: Path, found: Found) -> None:
    write(tmp_path / "part-0")
    write(tmp_path / "data[1]?.bin")
    assert found("part-0") == ["part-0"]
    assert found("data[1]?.bin") == ["data[1]?.bin"]


def test_files_without_the_suffix_are_taken_when_the_job_says_they_are_parquet(tmp_path: Path, found: Found) -> None:
    write(tmp_path / "in" / "part-0")
    with pytest.raises(JobError, match=r"only other files, as .*; input\.format says what they hold: parquet, "):
        found("in/")
    assert found("in/", format="parquet") == ["in/part-0"]


GLOBS = [
    ("in/*.parquet", ["a.parquet", "b1.parquet"]),
    ("in/?1.parquet", ["b1.parquet"]),
    ("in/[a-c]*.parquet", ["a.parquet", "b1.parquet"]),
    ("in/[!a]*.parquet", ["b1.parquet"]),
    ("in/*/*.parquet", ["d=1/c.parquet"]),
    ("in/*/", ["d=1/c.parquet", "d=1/e/f.parquet"]),
    ("in/d=*/", ["d=1/c.parquet", "d=1/e/f.parquet"]),
    ("in/**", ["a.parquet", "b1.parquet", "d=1/c.parquet", "d=1/e/f.parquet"]),
    ("in/**/*.parquet", ["a.parquet", "b1.parquet", "d=1/c.parquet", "d=1/e/f.parquet"]),
    ("in/**/f.parquet", ["d=1/e/f.parquet"]),
    ("i?/a.parquet", ["a.parquet"]),
    ("*/a.parquet", ["a.parquet"]),
]


@pytest.mark.parametrize(("pattern", "names"), GLOBS)
def test_globs_mean_what_they_mean_in_a_shell(tmp_path: Path, found: Found, pattern: str, names: list[str]) -> None:
    """`*` stays in one folder, `**` crosses them, and a slash at the end names folders with all they hold."""
    for name in ("a.parquet", "b1.parquet", "d=1/c.parquet", "d=1/e/f.parquet"):
        write(tmp_path / "in" / name)
    assert found(pattern) == [f"in/{name}" for name in names]


TREE = ["a", "b", "ab", "a/a", "a/b", "b/a", "b/ab", "a/b/a", "b/a/ab"]


SEGMENTS = st.sampled_from(["*", "**", "a", "b", "a*", "*b", "?", "??", "[ab]", "[!a]", "[a-b]*"])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in TREE:
        write(folder / f"{name}.parquet")
    return folder


@given(st.lists(SEGMENTS, min_size=1, max_size=3), st.sampled_from(["*.parquet", "a.parquet", "?b.parquet"]))
def test_globs_agree_with_the_standard_library(tree: Path, folders: list[str], last: str) -> None:
    pattern = "/".join([*folders, last])
    wanted = sorted({str(tree / name) for name in glob.glob(pattern, root_dir=tree, recursive=True)})  # noqa: PTH207 (Path.glob takes hidden files and links otherwise)
    try:
        files = [entry.uri for entry in input_files(STORAGE, job(tree, pattern))]
    except JobError:
        files = []
    assert files == wanted
    for name in TREE:
        file = str(tree / f"{name}.parquet")
        assert takes_in(str(tree / pattern), file) == (file in wanted)


def test_a_pattern_that_is_none_says_so(found: Found) -> None:
    with pytest.raises(JobError, match=r"^input\.uri: '.*\[z-a\].*' is not a valid pattern: bad character range z-a"):
        found("in/[z-a].parquet")


ODD = [
    "with space.parquet",
    "per%20cent.parquet",
    "per%cent.parquet",
    "hash#1?.parquet",
    "plus+and&=.parquet",
    "quote'\".parquet",
    "back\\slash.parquet",
    "ünïcode-東京-🐦.parquet",
    "star*.parquet",
    "bracket[1].parquet",
    "brace{date}.parquet",
    "colon:.parquet",
    "new\nline.parquet",
    "~tilde.parquet",
    "-dash.parquet",
    "dot..dot.parquet",
]


def test_odd_names_are_listed_planned_and_read(tmp_path: Path) -> None:
    """A name is a name: nothing in it is decoded, expanded or taken for a pattern."""
    for index, name in enumerate(ODD):
        write(tmp_path / "in" / f"day={name}" / name, rows=index + 1)
    here = job(tmp_path, "in/", shard_rows=len(ODD))
    lake = discover(STORAGE, here)
    assert lake.files["uri"].to_pylist() == sorted(str(tmp_path / "in" / f"day={name}" / name) for name in ODD)
    plan = make_plan(lake, here, "m")
    read = {
        piece.uri.rsplit("/", 1)[-1]: read_piece(STORAGE, here, piece, lake.schema).table.num_rows
        for shard in plan.shards()
        for piece in shard.pieces
    }
    assert read == {name: index + 1 for index, name in enumerate(ODD)}


def test_a_bracket_is_escaped_in_a_pattern(tmp_path: Path, found: Found) -> None:
    write(tmp_path / "in [old]" / "a.parquet")
    with pytest.raises(JobError, match=r"no input files at "):
        found("in [old]/")
    assert found("in [[]old]/") == ["in [old]/a.parquet"]


def test_files_are_in_order_of_their_uri(tmp_path: Path) -> None:
    """The order of the plan, the parts and the reports: bytes, not locale, and the same on every storage."""
    names = ["a.parquet", "a/b.parquet", "a-b.parquet", "B.parquet", "ä.parquet", "a0.parquet"]
    for name in names:
        write(tmp_path / "in" / name)
    uris = discover(STORAGE, job(tmp_path, "in/")).files["uri"].to_pylist()
    assert uris == sorted(str(tmp_path / "in" / name) for name in names)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, r"^input\.uri: no input files at .*/in/: the folder is empty$"),
        ({"_SUCCESS": b"", ".a.parquet": b"x"}, r"^input\.uri: no input files at .*/in/$"),
        (
            {"_SUCCESS": b"", "a.dbf": b"x"},
            r"^input\.uri: no input files at .*/in/, only other files, as a\.dbf; input",
        ),
        (
            {"a.dbf": b"x", "b.DBF": b"x", "LICENSE": b"x"},
            r"^input\.uri: no input files at .*/in/, only other files, as LICENSE; input\.format says",
        ),
        ({"a.parquet": None}, r"^input\.uri: no rows in 1 file at .*/in/$"),
        ({"a.parquet": None, "b.parquet": None}, r"^input\.uri: no rows in 2 files at .*/in/$"),
        ({"a.parquet": b"junk"}, r"^input\.uri: .* can be read; the first: .*/in/a\.parquet: not a readable Parquet"),
    ],
)
def test_nothing_to_score_is_said_before_anything_starts(
    tmp_path: Path, files: dict[str, bytes | None], sentence: str
) -> None:
    """By the quick look before a run, and by discovery itself, in the same words."""
    (tmp_path / "in").mkdir()
    for name, content in files.items():
        if content is None:
            write(tmp_path / "in" / name, rows=0)
        else:
            (tmp_path / "in" / name).write_bytes(content)
    for look in (discover, first_schema):
        with pytest.raises(JobError, match=sentence):
            look(STORAGE, job(tmp_path, "in/"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, r"no input files at .*/b/, one of 3 inputs, only other files, as b\.json; take it out, or mend it$"),
        (
            {"format": "csv"},
            r"no input files at .*/c/, one of 3 inputs, only other files, as c\.pq; take it out, or mend it$",
        ),
    ],
)
def test_a_place_of_which_no_file_is_input_is_told_with_what_it_holds(
    tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    """Else its rows would be missing, and nobody would know."""
    for name in ("a/a.csv", "a/note.md", "b/b.json", "c/c.pq", "c/d.pq", "d/_d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n1\n")
    last = "c/" if keys else "a/a.csv"
    with pytest.raises(JobError, match=rf"^input\.uri: {said}"):
        list(input_files(STORAGE, job(tmp_path, ["a/", "b/", last], **keys)))
    with pytest.raises(JobError, match=r"no files at .*/d/, one of 2 inputs; take it out"):
        list(input_files(STORAGE, job(tmp_path, ["a/", "d/"])))
    uris = [entry.uri for entry in input_files(STORAGE, job(tmp_path, ["a/", "a/*.csv", "a/a.csv"]))]
    assert uris == [f"{tmp_path}/a/a.csv"], "each of these places has a file, and all have the same"


def test_a_linked_folder_is_followed_once(tmp_path: Path, found: Found) -> None:
    """A link back to a folder above does not go round for ever."""
    write(tmp_path / "real" / "a.parquet")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "back").symlink_to(tmp_path / "in")
    assert found("in/", within=["real/"]) == ["in/link/a.parquet"]


def test_files_of_a_linked_folder_that_are_input_themselves_are_input_once(tmp_path: Path, found: Found) -> None:
    """As in the output of another job, where `latest/data` leads to a night: under the name where they lie."""
    for night in ("18", "19"):
        write(tmp_path / "in" / "runs" / night / "data" / "a.parquet")
        write(tmp_path / "in" / "_kept" / night / "b.parquet")
    for place in ("dates/18", "latest"):
        (tmp_path / "in" / place).mkdir(parents=True)
    (tmp_path / "in" / "dates/18/data").symlink_to("../../runs/18/data")
    (tmp_path / "in" / "latest" / "data").symlink_to("../runs/19/data")
    (tmp_path / "in" / "latest" / "hidden").symlink_to("../_kept/19")
    both = ["in/runs/18/data/a.parquet", "in/runs/19/data/a.parquet"]
    assert found("in/") == ["in/latest/hidden/b.parquet", *both]
    assert found("in/**/data/*.parquet") == both
    assert found("in/runs/*/data/") == both
    # What only the link leads to stays input.
    assert found("in/latest/data/") == ["in/latest/data/a.parquet"]
    assert found("in/l*/data/*.parquet", within=["in/runs"]) == ["in/latest/data/a.parquet"]
    assert found("in/dates/*/data/*.parquet", within=["in/runs"]) == ["in/dates/18/data/a.parquet"]
    (tmp_path / "through").symlink_to(tmp_path / "in")
    assert found("through/**/data/*.parquet") == [name.replace("in/", "through/") for name in both]


def test_a_folder_that_several_links_lead_to_is_input_once(tmp_path: Path, found: Found) -> None:
    """Also if it is no input by itself, or a link leads to a folder above or below it. Nothing is lost."""
    for name in ("ext/f", "ext/a/f", "ext/a/g", "ext/b/h", "in/_kept/k"):
        write(tmp_path / f"{name}.parquet")
    links = {"l2": "ext", "l1": "ext/a", "l3": "ext", "l4": "ext/b", "k1": "in/_kept", "k2": "in/_kept"}
    for link, to in links.items():
        (tmp_path / "in" / link).symlink_to(tmp_path / to)
    kept, inner = "in/k1/k.parquet", ["in/l1/f.parquet", "in/l1/g.parquet"]
    assert found("in/", within=["ext/"]) == [kept, *inner, "in/l2/b/h.parquet", "in/l2/f.parquet"]
    assert found("in/l[34]/", within=["ext/"]) == [f"in/l3/{name}.parquet" for name in ("a/f", "a/g", "b/h", "f")]
    # What matches only by the name of one of the links is found by that name.
    assert found("in/*/f.parquet", within=["ext/"]) == ["in/l1/f.parquet", "in/l2/f.parquet"]
    by_2 = [f"in/{name}.parquet" for name in ("k2/k", "l1/g", "l2/a/f", "l2/b/h", "l2/f")]
    assert found("in/**[2g]**.parquet", within=["ext/"]) == by_2


def test_the_files_below_a_link_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "real")
    entries = (Entry(f"{tmp_path}/in/link/{number:06d}", 1, "v") for number in range(20_000))
    monkeypatch.setattr(listing, "_listed", lambda *_: entries)
    tracemalloc.start()
    try:
        assert sum(1 for _ in listing.matching(LakeStorage(), f"{tmp_path}/in/")) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("uri", "file", "taken"),
    [
        ("/lake/in/", "/lake/in/out/runs/x.parquet", True),
        ("/lake/in", "/lake/in/out/x.parquet", True),
        ("/lake/in", "/lake/inside/x.parquet", False),
        ("/lake/in/*.parquet", "/lake/in/out/x.parquet", False),
        ("/lake/in/**/*.parquet", "/lake/in/out/x.parquet", True),
        ("/lake/**", "/lake/out/x.parquet", True),
        ("s3://b/in/*", "s3://b/in/x.parquet", True),
        ("s3://b/in/part-*", "s3://b/in/part-ition/x.parquet", False),
        ("s3://b/in/", "s3://c/in/x.parquet", False),
        ("/", "/x.parquet", True),
    ],
)
def test_whether_an_input_would_take_a_file_in_is_known_without_looking(uri: str, file: str, taken: bool) -> None:
    """From this a job is refused that would score its own predictions the next night."""
    assert takes_in(uri, file) == taken


REQUIRED = pa.field("item", pa.float32(), nullable=False)
NESTED = [
    (pa.list_(pa.float32()), pa.list_(REQUIRED), [[1.0], []]),
    (pa.list_(pa.float32(), 2), pa.list_(REQUIRED, 2), [[1.0, 2.0], [3.0, 4.0]]),
    (pa.struct({"item": pa.float32()}), pa.struct([REQUIRED]), [{"item": 1.0}, {"item": 2.0}]),
    (pa.map_(pa.string(), pa.float32()), pa.map_(pa.string(), REQUIRED), [[("a", 1.0)], []]),
]


@pytest.mark.parametrize(("loose", "strict", "values"), NESTED)
@pytest.mark.parametrize("first", ["loose", "strict"])
def test_files_may_differ_in_whether_they_allow_nulls_inside_of_a_column(
    tmp_path: Path, loose: pa.DataType, strict: pa.DataType, values: list[Any], first: str
) -> None:
    """As Spark writes `containsNull = false` where a file happens to have none."""
    kinds = [loose, strict] if first == "loose" else [strict, loose]
    for name, kind in zip("abc", [kinds[0], kinds[0], kinds[1]], strict=True):
        table = pa.table({"v": pa.array(values if kind is strict else [*values, None], kind)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    asked = job(tmp_path, str(tmp_path))
    found = discover(STORAGE, asked)
    for shard in make_plan(found, asked, "").shards():
        for piece in shard.pieces:
            read = read_piece(STORAGE, asked, piece, found.schema)
            assert read.failures == {}
            assert read.table["v"].to_pylist()[: len(values)] == values


def usual_of(kinds: list[tuple[pa.DataType, int]], *, last: bool = False) -> str:
    """The type of a column that this many files have in each of these types; the last column of each file, or not."""
    found = UsualSchema()
    fields = [pa.field("y", pa.bool_())]
    for kind, files in kinds:
        for _ in range(files):
            found.add(pa.schema([*fields, ("x", kind)] if last else [("x", kind), *fields]))
    schema = found.schema()
    assert schema is not None
    assert schema.names == (["y", "x"] if last else ["x", "y"])
    return str(schema.field("x").type)


NULL = pa.null()
INT, TEXT = pa.int64(), pa.large_string()


@pytest.mark.parametrize(
    ("kinds", "usual"),
    [
        ([(NULL, 1), (INT, 1)], "int64"),
        ([(NULL, 9), (TEXT, 1)], "large_string"),
        ([(TEXT, 1), (NULL, 9), (INT, 2)], "int64"),
        ([(TEXT, 2), (NULL, 9), (INT, 1)], "large_string"),
        ([(NULL, 9)], "null"),
        ([(NULL, 1), (pa.dictionary(pa.int32(), pa.string()), 1)], str(pa.dictionary(pa.int32(), pa.string()))),
        ([(pa.dictionary(pa.int32(), NULL), 2), (pa.string(), 1)], "string"),
        ([(pa.list_(NULL), 2), (pa.list_(INT), 1), (NULL, 3)], "list<item: int64>"),
        ([(pa.list_(NULL), 2), (NULL, 3)], "list<item: null>"),
        ([(pa.list_(NULL), 1), (INT, 2), (TEXT, 1)], "int64"),
        (
            [(pa.struct({"a": NULL, "b": INT}), 2), (pa.struct({"a": TEXT, "b": NULL}), 1)],
            "struct<a: large_string, b: int64>",
        ),
        (
            [(pa.struct({"a": NULL}), 3), (pa.struct({"a": INT}), 1), (pa.struct({"b": INT}), 2)],
            "struct<a: int64>",
        ),
        ([(pa.map_(TEXT, NULL), 2), (pa.map_(TEXT, INT), 1)], "map<large_string, int64>"),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_file_without_a_value_in_a_column_says_nothing_of_its_type(
    kinds: list[tuple[pa.DataType, int]], usual: str, last: bool
) -> None:
    """As pandas writes a column of nulls alone, or of empty lists: its type is null, in however many files."""
    assert usual_of(kinds, last=last) == usual


@pytest.mark.parametrize("full", [0, 1])
def test_files_that_lack_values_in_different_columns_have_the_same_columns(full: int) -> None:
    """However many ways there are to lack them; they outvote files that have one column less."""
    names = [f"c{index}" for index in range(8)]
    found = UsualSchema()
    for number in range(200):
        found.add(pa.schema([(name, INT if number >> index & 1 else NULL) for index, name in enumerate(names)]))
    for files, columns in ((full, names), (150, names[1:])):
        for _ in range(files):
            found.add(pa.schema([(name, INT) for name in columns]))
    schema = found.schema()
    assert schema is not None
    assert (schema.names, set(schema.types)) == (names, {INT})


def test_what_a_writer_said_of_a_file_stays_where_others_have_no_value() -> None:
    found = UsualSchema()
    found.add(pa.schema([pa.field("x", INT)], {"by": "a writer"}))
    found.add(pa.schema([pa.field("x", NULL)]))
    schema = found.schema()
    assert schema is not None
    assert schema.field("x") == pa.field("x", INT)
    assert schema.metadata == {b"by": b"a writer"}


VALUES = {
    "text": pa.array(["a", None, "b"]),
    "category": pa.array(["a", None, "b"]).dictionary_encode(),
    "list": pa.array([[1.5], None, []]),
    "struct": pa.array([{"a": 1, "b": "c"}, None, {"a": None, "b": None}]),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "view": pa.array([[1], None, []], pa.list_view(pa.int64())),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int64(), [2]), pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))
    ),
}


@pytest.mark.parametrize("ending", ["parquet", "feather"])
@pytest.mark.parametrize("name", VALUES)
def test_a_file_without_a_value_in_a_column_is_read_with_nulls(tmp_path: Path, name: str, ending: str) -> None:
    """The first of three, and the last: no file fails for a column in which it has nothing, which pandas types null."""
    lacking = {
        "list": pa.array([[], None, []], pa.list_(NULL)),
        "struct": pa.array([{"a": None, "b": "c"}, None, None], pa.struct({"a": NULL, "b": pa.string()})),
        "map": pa.array([[("a", None)], None, []], pa.map_(pa.string(), NULL)),
    }.get(name, pa.nulls(3))
    (tmp_path / "in").mkdir()
    for file, column in (("a", lacking), ("b", VALUES[name]), ("c", pa.nulls(3))):
        table = pa.table({"v": column, "id": [1, 2, 3]})
        if ending == "parquet":
            pq.write_table(table, tmp_path / "in" / f"{file}.parquet")
        else:
            feather.write_feather(table, tmp_path / "in" / f"{file}.feather")
    asked = job(tmp_path, "in/")
    found = discover(STORAGE, asked)
    assert first_schema(STORAGE, asked) == found.schema
    read = [
        read_piece(STORAGE, asked, piece, found.schema).table["v"]
        for shard in make_plan(found, asked, "").shards()
        for piece in shard.pieces
    ]
    assert [str(each) for each in read[1].to_pylist()] == [str(each) for each in VALUES[name].to_pylist()]
    assert {each.type for each in read} == {found.schema.field("v").type}
    assert [each.to_pylist() for each in read[::2]] == [lacking.to_pylist(), [None] * 3]


def ordered(*columns: str) -> pa.Schema:
    return pa.schema([pa.field(name[0], TEXT if name.endswith("!") else INT) for name in columns])


@pytest.mark.parametrize(
    ("files", "usual"),
    [
        ([(3, ordered("a", "b")), (2, ordered("a", "b", "z")), (2, ordered("z", "a", "b"))], ["a", "b", "z"]),
        ([(1, ordered("z", "a", "b")), (2, ordered("a", "b", "z")), (3, ordered("a", "b"))], ["a", "b", "z"]),
        ([(2, ordered("z", "a", "b")), (2, ordered("a", "b", "z"))], ["z", "a", "b"]),
        ([(2, ordered("z", "a", "b")), (2, ordered("a", "b", "z!")), (3, ordered("a", "b"))], ["a", "b"]),
    ],
)
def test_a_column_that_most_files_have_stays_whatever_the_order_of_their_columns(
    files: list[tuple[int, pa.Schema]], usual: list[str]
) -> None:
    """Files of Parquet, as those of CSV. The order is the one that most of these files have, and in a tie the first."""
    found = UsualSchema()
    for count, schema in files:
        for _ in range(count):
            found.add(schema)
    schema = found.schema()
    assert schema is not None
    assert schema == ordered(*usual)


def test_files_with_columns_in_another_order_are_read_whole_and_in_parts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, order in {"a": "ab", "b": "ab", "c": "abz", "d": "abz", "e": "zab", "f": "bza"}.items():
        table = pa.table({"a": [1, 2, 3, 4], "b": ["5", "6", "7", "8"], "z": [0.5, 1.5, 2.5, None]})
        pq.write_table(table.select(list(order)), tmp_path / "in" / f"{name}.parquet", row_group_size=4)
    for keys in ({}, {"shard_rows": 3}, {"where": "a > 2"}):
        asked = job(tmp_path, "in/", **keys)
        found = discover(STORAGE, asked)
        assert found.schema.names == ["a", "b", "z"]
        pieces = [piece for shard in make_plan(found, asked, "").shards() for piece in shard.pieces]
        whole = [piece for piece in pieces if Path(piece.uri).stem not in "ab"]
        read = pa.concat_tables([read_piece(STORAGE, asked, piece, found.schema).table for piece in whole])
        assert read["a"].to_pylist() == ([3, 4] if "where" in keys else [1, 2, 3, 4]) * 4
        assert read["b"].to_pylist() == (["7", "8"] if "where" in keys else ["5", "6", "7", "8"]) * 4
