import io
import tarfile
from pathlib import Path

Path("data").mkdir()
with tarfile.open("data/a.tar", "w") as archive:
    # 0 and 1 interleave, 2 is whole, and a file of 3 comes at the end.
    for name in ("0.a", "1.a", "0.b", "1.b", "2.a", "2.b", "3.a", "4.a", "4.b", "3.b"):
        member = tarfile.TarInfo(name)
        member.size = len(name)
        archive.addfile(member, io.BytesIO(name.encode()))
