from pathlib import Path

job = Path("job.yaml")
job.write_text(job.read_text().replace("path: model.pt2", "path: model.pt2, trusted: true"))
