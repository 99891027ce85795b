"""Links to themselves, to nothing and back, and pipes, among code and input."""

import os
from pathlib import Path

Path("data").mkdir()
Path("data/a.csv").write_text("id\n1\n")
for folder in (Path(), Path("data")):
    for link, to in {"itself": "itself", "one": "two", "two": "one", "nothing": "gone", "round": "."}.items():
        (folder / link).symlink_to(to)
    os.mkfifo(folder / "pipe.csv")
