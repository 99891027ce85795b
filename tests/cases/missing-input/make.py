from pathlib import Path

Path("empty").mkdir()
