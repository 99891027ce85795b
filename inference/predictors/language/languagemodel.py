"""What the adapters of language models share: how a row is asked, and what its answer is to be."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import AnswersCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.options import Option, choice, flag, keywords, text, texts
from nightjar.inference.predictors.batches import BATCH_FORMAT
from nightjar.inference.predictors.language.answers import check_schema
from nightjar.inference.predictors.language.apis import CHAT, COMPLETIONS, EMBEDDINGS, reader_of
from nightjar.inference.predictors.language.prompts import prompt_of

_MESSAGE = {
    "type": "object",
    "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
    "required": ["role", "content"],
}
PROMPT = text("prompt", "the prompt, with columns in braces: `Is this positive? {text}`", "none; this or `messages`")
MESSAGES = Option(
    "messages",
    {"anyOf": [{"type": "string"}, {"type": "array", "items": _MESSAGE, "minItems": 1}]},
    "none; this or `prompt`",
    "a list of `{role, content}` with columns in braces, or the name of a column that has such lists, or JSON",
    "a list of {role: …, content: …}, or the name of a column",
)
SAMPLING = keywords(
    "sampling", "how answers are chosen, as `{max_tokens: 32, temperature: 0}`", "the model's own", "a mapping"
)
JSON_SCHEMA = Option(
    "json_schema",
    {"anyOf": [{"type": "string"}, {"type": "object"}]},
    "none",
    "the JSON Schema that each answer follows, or its file beside the job; outputs are its properties",
    "a JSON Schema, or the name of its file",
)
CHOICE = texts("choice", "each answer is one of these", "none", "a list of texts, each once", least=2)
ASKED = (
    choice("api", (CHAT, COMPLETIONS, EMBEDDINGS), "asks for an answer, for what follows, or for a vector"),
    PROMPT,
    MESSAGES,
    SAMPLING,
    JSON_SCHEMA,
    CHOICE,
    flag("journal", "answers of shards that are not written yet are kept, so that none is asked for twice"),
    BATCH_FORMAT,
)
"""The options of every adapter of language models."""

FORMS = ("json_schema", "regex", "choice")
"""Options that say which form an answer has. One of them at most."""


class LanguageModel:
    """Base of these adapters. See `adapter.Adapter`.

    probabilities: whether the probability of each choice is known.
    """

    reads_arrow = True
    probabilities = False

    def check_keys(self, job: Job) -> None:
        """As `Adapter.check_keys`."""
        options = job.model.options
        prompt = prompt_of(job)
        api = options.get("api", CHAT)
        if api != CHAT and prompt.is_chat:
            raise JobError(f"model.messages: are for api: {CHAT}; write model.prompt for {api}")
        if api == EMBEDDINGS and (key := next((key for key in ("sampling", *FORMS) if key in options), "")):
            raise JobError(f"model.{key}: is for answers, and a vector is none; leave it out with api: {EMBEDDINGS}")
        if api == EMBEDDINGS and any(isinstance(check, AnswersCheck) for check in job.checks):
            raise JobError(f"checks: a vector is no answer that is cut; leave out the check on answers with api: {api}")
        if len(forms := [key for key in FORMS if key in options]) > 1:
            raise JobError(f"model.{forms[0]}: model.{forms[1]} is there, too; keep one of the two")
        if isinstance(schema := options.get("json_schema"), Mapping):
            check_schema(schema)
        reader_of(job, probabilities=self.probabilities)
        check_rescored(job)

    def check_columns(self, job: Job, schema: pa.Schema) -> None:
        """As `Adapter.check_columns`."""

    def named(self, job: Job) -> tuple[str, tuple[str, ...]]:
        """As `adapter.NamesColumns`."""
        prompt = prompt_of(job)
        return f"model.{prompt.key}", prompt.columns


def check_rescored(job: Job) -> None:
    """Check that a job with a second scoring says how many of its answers may differ.

    Raises:
        JobError: It does not.
    """
    if job.rescore.share > 0 and "differing" not in job.rescore.model_fields_set:
        raise JobError(
            "rescore.differing: is required, as a language model may answer otherwise the second time; write the "
            "share of the compared rows that may differ, as 0.1, or 0 if none may"
        )
