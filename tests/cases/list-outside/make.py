"""A list with a file of the machine, and one of a folder that only the second job allows."""

from pathlib import Path

for name, rows in {"data/a.csv": "id\n1\n", "shared/b.csv": "id\n2\n"}.items():
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(rows)
Path("data/names.txt").write_text("data/a.csv\nshared/b.csv\n")
