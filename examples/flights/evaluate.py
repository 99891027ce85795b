"""Measure the published predictions: AUC on the months the model learned from, and on the other months.

python evaluate.py                                 asks `nightjar files` for the published part files
nightjar files job.yaml | python evaluate.py -     or reads their paths, one per line
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike
from prepare import HERE, MONTHS, ROWS, TRAIN_MONTHS

JOB = HERE / "job.yaml"


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Area under the ROC curve; NaN unless both classes occur.

    It is the chance that a late flight scores above a flight on time; a tie counts half. Computed as the Mann-Whitney U
    of the late flights' mid-ranks, divided by late × on time (Hanley and McNeil, 1982).
    """
    positive = np.asarray(labels, dtype=bool)
    _, value, count = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True, return_counts=True)
    mid_rank = np.cumsum(count) - (count - 1) / 2
    late = int(positive.sum())
    pairs = late * (len(positive) - late)
    if pairs == 0:
        return float("nan")
    return float((mid_rank[value[positive]].sum() - late * (late + 1) / 2) / pairs)


def published_parts() -> list[Path]:
    """The part files of the newest publication.

    Raises:
        SystemExit: Nothing is published yet, or the command line is not installed.
    """
    nightjar = Path(sys.executable).with_name("nightjar")
    try:
        done = subprocess.run([nightjar, "files", JOB], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(f"{nightjar} is not there: use the Python that Nightjar is installed in") from None
    if done.returncode:
        raise SystemExit(f"`nightjar files {JOB}` failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return [Path(line) for line in done.stdout.splitlines() if line]


def read_scores(parts: Sequence[Path]) -> pd.DataFrame:
    """Columns `_file`, `_row` and `score` of all parts.

    Raises:
        SystemExit: There are no parts, or an input row is in them twice.
    """
    if not parts:
        raise SystemExit(f"nothing is published yet; score it first: nightjar run {JOB}")
    tables = [pq.ParquetFile(part).read(columns=["_file", "_row", "score"]) for part in parts]
    scores: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    if doubled := int(scores.duplicated(["_file", "_row"]).sum()):
        raise SystemExit(f"{doubled:,} rows of the input are in the output more than once")
    return scores


def with_labels(scores: pd.DataFrame) -> pd.DataFrame:
    """Add `month` and `late` of its source row to each score; `late` is null where unknown.

    Raises:
        SystemExit: A source file does not exist any more.
    """
    joined = []
    for file, rows in scores.groupby("_file", sort=True):
        try:
            source = pq.ParquetFile(str(file)).read(columns=["month", "late"]).to_pandas()
        except FileNotFoundError:
            raise SystemExit(f"{file} was scored but is not there any more: run prepare.py") from None
        labels = source.iloc[rows["_row"]].set_axis(rows.index)
        joined.append(rows.assign(month=labels["month"], late=labels["late"]))
    return pd.concat(joined)


def report(flights: pd.DataFrame) -> str:
    """Format the figures as plain, aligned text."""
    known = flights.dropna(subset=["late"])
    new_months = [month for month in MONTHS if month not in TRAIN_MONTHS]
    lines = [
        f"rows scored          {len(flights):>9,} of {ROWS:,}",
        f"rows with a label    {len(known):>9,}",
        f"AUC, months {_span(list(TRAIN_MONTHS)):<8} {_auc_of(known, list(TRAIN_MONTHS)):>9.4f}  learned from",
        f"AUC, months {_span(new_months):<8} {_auc_of(known, new_months):>9.4f}  new to the model",
        "",
        "month       rows     AUC",
    ]
    for month in MONTHS:
        rows = int((flights["month"] == month).sum())
        lines.append(f"{month:>5}  {rows:>9,}  {_auc_of(known, [month]):.4f}")
    return "\n".join(lines)


def _span(months: list[int]) -> str:
    return f"{months[0]}-{months[-1]}"


def _auc_of(known: pd.DataFrame, months: list[int]) -> float:
    chosen = known[known["month"].isin(months)]
    return auc(chosen["score"], chosen["late"])


def main() -> None:
    """Report on the parts named on standard input, or else on the published parts."""
    match sys.argv[1:]:
        case []:
            parts = published_parts()
        case ["-"]:
            parts = [Path(line.strip()) for line in sys.stdin if line.strip()]
        case _:
            raise SystemExit(__doc__)
    print(report(with_labels(read_scores(parts))))


if __name__ == "__main__":
    main()
