"""Train a small model on January to June and export it to `models/delay.pt2`.

The exported program takes one float32 tensor of shape (n, len(FEATURES)), its columns in the order of
FEATURES, and returns the probability of arriving late, float32 of shape (n,). Scaling and embeddings are
inside it, so the job needs no preprocessing. If the model is newer than the data and the code, a run does nothing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from evaluate import auc
from prepare import HERE, MONTHS, TRAIN_MONTHS, is_trained, month_file
from torch import Tensor, nn

MODEL = HERE / "models" / "delay.pt2"

NUMBERS = ("dep_hour", "dep_minute", "arr_hour", "distance", "departures")
CODES = {"day_of_week": 3, "carrier_code": 8, "origin_code": 2, "dest_code": 8}
"""Columns of codes → width of their embedding."""
FEATURES = (*NUMBERS, *CODES)
"""The model's input columns, in order; `model.features` of job.yaml is the same list."""

SEED = 2013
EPOCHS = 6
BATCH_ROWS = 1024
LEARNING_RATE = 3e-3


class DelayModel(nn.Module):
    """Scaled numbers and embedded codes, through two hidden layers, to one probability."""

    mean: Tensor
    scale: Tensor

    def __init__(self, examples: Tensor) -> None:
        """Take the scale of the numbers and the range of the codes from `examples`, (n, len(FEATURES))."""
        super().__init__()
        numbers, codes = examples[:, : len(NUMBERS)], examples[:, len(NUMBERS) :]
        self.register_buffer("mean", numbers.mean(0))
        self.register_buffer("scale", numbers.std(0))
        self.sizes = [int(largest) + 1 for largest in codes.amax(0)]
        embeddings = list(map(nn.Embedding, self.sizes, CODES.values()))
        for embedding in embeddings:
            # A code that never occurred in training keeps the embedding zero, and so has no effect.
            nn.init.zeros_(embedding.weight)
        self.embeddings = nn.ModuleList(embeddings)
        self.layers = nn.Sequential(
            nn.Linear(len(NUMBERS) + sum(CODES.values()), 32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 1),
        )

    def logits(self, batch: Tensor) -> Tensor:
        """Log odds of arriving late, shape (n,), from float32 features, shape (n, len(FEATURES))."""
        columns = [(batch[:, : len(NUMBERS)] - self.mean) / self.scale]
        for index, (embedding, size) in enumerate(zip(self.embeddings, self.sizes, strict=True)):
            code = batch[:, len(NUMBERS) + index].long()
            # A code beyond those of the training counts as unknown. On a GPU an index out of range would end the
            # process.
            columns.append(embedding(torch.where((code >= 0) & (code < size), code, 0)))
        log_odds: Tensor = self.layers(torch.cat(columns, dim=1))
        return log_odds.squeeze(1)

    def forward(self, batch: Tensor) -> Tensor:
        """Probability of arriving late, shape (n,)."""
        return torch.sigmoid(self.logits(batch))


def read(months: Iterable[int]) -> tuple[Tensor, Tensor]:
    """Features, (n, len(FEATURES)) float32, and `late`, (n,) float32, of the flights that arrived."""
    table = pa.concat_tables(pq.read_table(month_file(month), columns=[*FEATURES, "late"]) for month in months)
    flights = table.to_pandas().dropna(subset=["late"])
    features = flights[list(FEATURES)].to_numpy("float32")
    return torch.from_numpy(features), torch.from_numpy(flights["late"].to_numpy("float32"))


def fit(features: Tensor, late: Tensor) -> DelayModel:
    """Train a model on these flights; the same flights give the same model."""
    # Such small batches gain nothing from more threads, and become much slower with them on a busy machine.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = DelayModel(features)
    batches = EPOCHS * math.ceil(len(late) / BATCH_ROWS)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=batches)
    for _ in range(EPOCHS):
        for rows in torch.split(torch.randperm(len(late)), BATCH_ROWS):
            loss = nn.functional.binary_cross_entropy_with_logits(model.logits(features[rows]), late[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimizer.step()
            schedule.step()
    return model.eval()


def export(model: DelayModel, example: Tensor) -> None:
    """Write the program, whole or not at all. It takes any number of rows; `example` needs two or more."""
    # A clone, because torch saves the example with all the memory that it is a view of.
    program = torch.export.export(model, (example.clone(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    content = io.BytesIO()
    torch.export.save(program, content)
    MODEL.parent.mkdir(exist_ok=True)
    unfinished = MODEL.with_suffix(".unfinished")
    unfinished.write_bytes(content.getvalue())
    unfinished.replace(MODEL)


def main() -> None:
    """Train, export and measure."""
    if is_trained(MODEL, Path(__file__)):
        return
    features, late = read(TRAIN_MONTHS)
    model = fit(features, late)
    export(model, features[:4])
    new_features, new_late = read(set(MONTHS) - set(TRAIN_MONTHS))
    with torch.inference_mode():
        learned, new = auc(model(features), late), auc(model(new_features), new_late)
    print(f"AUC {learned:.4f} on {len(late):,} flights learned from, {new:.4f} on {len(new_late):,} new ones")
    print(f"wrote {MODEL}")


if __name__ == "__main__":
    main()
