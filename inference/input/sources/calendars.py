"""Dates and times of Parquet files in the calendar that Spark before 3.0 and Hive used: Julian until 1582-10-04.

Their numbers mean other days than in the proleptic Gregorian calendar of Arrow: 1001-01-01 would be read as 1001-01-07.
So a file with such a mark is refused where a column that is read holds old values. Times are old before 1900 already:
Spark computed their time zones in another way, too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as is_

from nightjar.inference.arrow_types import is_list
from nightjar.inference.errors import InputCorrupt

_SPARK = b"org.apache.spark."


def legacy(metadata: pq.FileMetaData) -> tuple[bool, bool]:
    """Whether plain dates and times, and whether INT96 times, may be in the old calendar.

    As Spark decides it, in `DataSourceUtils.datetimeRebaseSpec` and `int96RebaseSpec`.
    """
    marks = metadata.metadata or {}
    # A file of Spark before 2.4.6 has no version.
    by_spark = any(name.startswith(_SPARK) for name in marks)
    version = marks.get(_SPARK + b"version", b"")
    hive = marks.get(b"writer.date.proleptic") == b"false"
    return (
        hive or _SPARK + b"legacyDateTime" in marks or (by_spark and version < b"3.0.0"),
        hive or _SPARK + b"legacyINT96" in marks or (by_spark and version < b"3.1.0"),
    )


def checked(uri: str, file: pq.ParquetFile, table: pa.Table) -> pa.Table:
    """The table that was read of a file.

    Raises:
        InputCorrupt: A column holds a date before 1582-10-15, or a time before 1900, in the old calendar.
    """
    plain, int96 = legacy(file.metadata)
    if not (plain or int96):
        return table
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    stored = {each.path.partition(".")[0] for each in columns if each.physical_type == "INT96"}
    for name in table.column_names:
        chunks = table[name].chunks if (int96 if name in stored else plain) else ()
        for moments in (each for chunk in chunks for each in _moments(chunk)):
            old = dt.date(1582, 10, 15) if is_.is_date(moments.type) else dt.datetime(1900, 1, 1)
            if pc.less(pc.min(moments), pa.scalar(old, moments.type)).as_py():
                raise InputCorrupt(
                    f"{uri}: column {name!r} holds values before {old:%Y-%m-%d} in the calendar of Spark before 3.0, "
                    "in which they are other days: write the file again with Spark 3 or newer and "
                    "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED (int96RebaseModeInWrite for INT96), or "
                    "leave the column out of the job"
                )
    return table


def _moments(array: pa.Array) -> Iterator[pa.Array]:
    """The dates and times in an array, those inside lists and structs, too."""
    kind = array.type
    if is_.is_date(kind) or is_.is_timestamp(kind):
        yield array
    elif is_.is_dictionary(kind):
        yield from _moments(array.dictionary)
    elif is_list(kind):
        yield from _moments(array.flatten())
    elif is_.is_map(kind) or is_.is_struct(kind):
        for inner in (array.keys, array.items) if is_.is_map(kind) else array.flatten():
            yield from _moments(inner)
