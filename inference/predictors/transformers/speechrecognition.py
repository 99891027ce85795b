"""`uses: speech-recognition`: what is said in each recording, by a Hugging Face model in a folder."""

from __future__ import annotations

import pyarrow as pa

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, text, whole
from nightjar.inference.predictors.adapter import Adapter, Predictor
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.tabular.features import is_number_or_list
from nightjar.inference.predictors.transformers.folderadapter import DTYPE, FolderAdapter
from nightjar.inference.predictors.transformers.modelfolder import PROCESSOR, TOKENISER, ModelFolder

_OPTIONS = (
    DTYPE,
    whole("sampling_rate", "samples a second of the recordings; the model's own is needed", "the model's", "a number"),
    text("language", "the language that is spoken (Whisper)", "the model finds it"),
    choice("task", ("transcribe", "translate"), "or `translate` into English (Whisper)"),
    BATCH_FORMAT,
)


class SpeechRecognition(FolderAdapter):
    """The `Adapter` of models that write down what is said."""

    options: tuple[Option, ...] | None = _OPTIONS
    takes = "sound"
    readers = (PROCESSOR, TOKENISER)
    computes = "transcriber"

    def check_values(self, job: Job) -> None:
        (name, kind), *others = job.model.output_types().items()
        if others or not is_text(kind):
            raise JobError(
                f"model.outputs: the speech-recognition adapter makes one output, a text; write {{{name}: string}}"
            )

    def check_column(self, name: str, kind: pa.DataType, uses: str) -> None:
        if not is_number_or_list(kind) or pa.types.is_primitive(kind):
            raise JobError(
                f"model.features: {name!r} is {kind}, and the {uses} adapter takes lists of samples, numbers from -1 "
                "to 1; convert this one in a preprocess"
            )

    def loaded(self, job: Job, folder: ModelFolder) -> Predictor:
        from nightjar.inference.predictors.transformers.transcriber import Transcriber

        return Transcriber(job, folder)


ADAPTER: Adapter = SpeechRecognition()
