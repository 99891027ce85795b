def numpy(batch):
    batch["x"] *= 2
    batch["v"][:, 0] = 9
    batch["s"][:] = "z"
    return {"score": batch["x"], "first": batch["v"][:, 0], "text": batch["s"]}


def pandas(batch):
    batch["x"] *= 2
    batch["s"] = "z"
    batch["v"] = [[9.0, second] for _, second in batch["v"]]
    return {"score": batch["x"], "first": batch["v"].str[0], "text": batch["s"]}


def torch(batch):
    batch["x"] *= 2
    batch["v"][:, 0] = 9
    return {"score": batch["x"], "first": batch["v"][:, 0], "text": ["z"] * len(batch["x"])}
