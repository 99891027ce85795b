import io
import tarfile
from pathlib import Path

Path("data").mkdir()
with tarfile.open("data/a.tar", "w") as archive:

    def add(name: str, content: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))

    for key in range(8):
        add(f"{key}.jpg", b"%d" % key)
        if key == 2:
            add("2.jpg", b"again")
        if key == 3:
            add("3.JPG", b"again")
        if key == 5:
            add("5.__key__", b"9")
        add(f"{key}.json", b"{}")
