from pathlib import Path

Path("data").mkdir()
Path("data/a.csv").write_bytes(b'\xef\xbb\xbf"name\n(first, last)";c\r\n1;2\r\n3;4\r\n')
