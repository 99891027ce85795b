from pathlib import Path

Path("data").mkdir()
Path("data/a.csv").write_text('id,text\n1,"say \\"hi\\""\n2,"say ""hi"""\n3,plain\n')
