import torch


class Reusing:
    def __init__(self):
        self.scores = torch.empty(100, dtype=torch.float64).share_memory_()
        self.pairs = torch.empty(100, 2)
        self.batches = []

    def __call__(self, batch):
        for before in self.batches:
            before[:] = -1
        self.batches.append(batch["x"])
        rows = len(batch["x"])
        self.scores[:rows] = torch.tensor(batch["x"])
        self.pairs[:rows] = torch.tensor(batch["x"])[:, None]
        return {"score": self.scores[:rows], "pair": self.pairs[:rows], "same": batch["x"]}
