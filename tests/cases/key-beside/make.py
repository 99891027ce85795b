"""A file with a password beside the job."""

from pathlib import Path

Path("data").mkdir()
Path("data/a.csv").write_text("id\n1\n")
Path(".env").write_text("TOKEN=3")
