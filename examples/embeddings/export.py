"""Export the model of `job.yaml` to one ONNX file for `onnx.yaml`: texts' tokens in, vectors of length 1 out.

What sentence-transformers' files say of pooling (the mean of a text's tokens) and length (1) is inside the graph. It
takes any number of texts, of any number of tokens. What is there is left untouched, so a second run does nothing.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import torch
from prepare import MODEL
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ONNX = MODEL.with_name("minilm.onnx")


class SentenceModel(nn.Module):
    """A model of tokens, and how their vectors become one for each text."""

    def __init__(self, tokens: PreTrainedModel) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors of shape (n, width), from ids and mask of shape (n, longest). The mask is 0 for what is padding."""
        vectors = self.tokens(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        counts = attention_mask.unsqueeze(2).to(vectors.dtype)
        mean = (vectors * counts).sum(1) / counts.sum(1)
        return nn.functional.normalize(mean, dim=1)


def export(module: nn.Module) -> torch.onnx.ONNXProgram:
    """The module as a graph. The example has more than one text and more than one token, so that both may vary."""
    ids = torch.tensor([[101, 4937, 102], [101, 102, 0]])
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.onnx.export(
        module,
        (ids, (ids != 0).long()),
        input_names=["input_ids", "attention_mask"],
        output_names=["sentence_embedding"],
        dynamic_shapes=(free, free),
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # it is None for the older exporter alone
    return program


def main() -> None:
    """Export the model, whole or not at all."""
    if not ONNX.is_file():
        from transformers import AutoModel
        from transformers import logging as loading

        loading.disable_progress_bar()
        # These warn of torchvision, which is not used here, and of torch's own use of what is deprecated in torch.
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        warnings.simplefilter("ignore", FutureWarning)
        unfinished = ONNX.with_suffix(".unfinished")
        # Weights of up to 2 GB may lie in the file itself, and then `model.path` is that file.
        export(SentenceModel(AutoModel.from_pretrained(MODEL)).eval()).save(unfinished, external_data=False)
        unfinished.replace(ONNX)
    print(f"{ONNX}: {ONNX.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
