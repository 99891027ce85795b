"""A folder of input with a link to a file that lies elsewhere."""

from pathlib import Path

for name, rows in {"data/a.csv": "id\n1\n", "shared/b.csv": "id\n2\n"}.items():
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(rows)
Path("data/b.csv").symlink_to("../shared/b.csv")
