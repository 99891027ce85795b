"""Programs with inputs of all kinds."""

from __future__ import annotations

import torch


class Positional(torch.nn.Module):
    def forward(self, age: torch.Tensor, income: torch.Tensor) -> torch.Tensor:
        return age - income


class Keyword(torch.nn.Module):
    def forward(self, *, age: torch.Tensor, income: torch.Tensor) -> torch.Tensor:
        return age - income


class OfDict(torch.nn.Module):
    def forward(self, columns: dict[str, torch.Tensor]) -> torch.Tensor:
        return columns["age"] - columns["income"]


class UpperCase(torch.nn.Module):
    def forward(self, Age: torch.Tensor, Income: torch.Tensor) -> torch.Tensor:  # noqa: N803
        return Age - Income


class Other(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


class ByCase(torch.nn.Module):
    def forward(self, columns: dict[str, torch.Tensor]) -> torch.Tensor:
        return columns["T"] - columns["t"]


class Stacked(torch.nn.Module):
    def forward(self, age: torch.Tensor) -> torch.Tensor:
        return age[:, 0] - age[:, 1]


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).sum(1)


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(1) + y.reshape(-1)
