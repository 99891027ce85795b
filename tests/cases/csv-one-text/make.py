from pathlib import Path

Path("data").mkdir()
amounts = [f"{row}.5" for row in range(12)]
amounts[7] = "n.a."
Path("data/a.csv").write_text("id,amount\n" + "".join(f"{row},{value}\n" for row, value in enumerate(amounts)))
