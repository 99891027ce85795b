from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch


class Twice(torch.nn.Module):
    def forward(self, x):
        return x[:, 0] * 2


Path("data").mkdir()
pq.write_table(pa.table({"x": pa.array([1.0, 2.0], pa.float32())}), "data/a.parquet")
program = torch.export.export(Twice(), (torch.ones(4, 1),), dynamic_shapes=({0: torch.export.Dim("n")},))
torch.export.save(program, "model.pt2")
