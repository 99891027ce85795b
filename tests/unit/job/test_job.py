"""The job file: what it says is taken at its word, what it says wrong is answered with one sentence a fault."""

from __future__ import annotations

import datetime as dt
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pydantic import BaseModel

from nightjar.inference.arrow_types import arrow_type
from nightjar.inference.errors import JobError
from nightjar.inference.job.checks import CHECKS
from nightjar.inference.job.file import load_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.model_sections import Model, NamedModel
from nightjar.inference.job.modeljob import scoring_keys
from nightjar.inference.job.seams import FRAMEWORKS, SOURCES

JOB: dict[str, Any] = {
    "name": "lake",
    "input": {"uri": "data/"},
    "model": {"uses": "model:score", "features": ["x"], "outputs": {"score": "float32"}},
    "carry": ["id"],
    "output": {"uri": "out/"},
}

NET: dict[str, Any] = {"name": "net", "uses": "model:net", "outputs": {"score": "float32"}}


def changed(**changes: Any) -> dict[str, Any]:
    """`JOB` with keys changed; `retry__attempts` is a nested one, None removes."""
    job = {key: dict(value) if isinstance(value, dict) else value for key, value in JOB.items()}
    for key, value in changes.items():
        *path, last = key.split("__")
        target: dict[str, Any] = job
        for part in path:
            target = target.setdefault(part, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return job


def load(folder: Path, **changes: Any) -> Job:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(changed(**changes), sort_keys=False))
    return load_job(path)


def refusal(folder: Path, **changes: Any) -> str:
    """What is said of a wrong job file, without the path of the file before each sentence."""
    with pytest.raises(JobError) as caught:
        load(folder, **changes)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{folder}/job.yaml: ") for line in lines), "each sentence names the file"
    return "\n".join(line.removeprefix(f"{folder}/job.yaml: ") for line in lines)


# ---- what is wrong ------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"modle": {}}, "unknown key 'modle'; did you mean 'model'?"),
    ({"model__bathc_size": 3}, "unknown key 'model.bathc_size'; did you mean 'model.batch_size'?"),
    (
        {"retry__zzz": 3},
        "unknown key 'retry.zzz'; known: attempts, backoff_s, max_quarantined, stall_s",
    ),
    ({"approval": {"deadline": 3}}, "unknown key 'approval.deadline'; did you mean 'approval.deadline_h'?"),
    ({"approval": {"deadline_h": 1e8}}, "approval.deadline_h: "),
    ({"cost": {"cpu_hour": 1, "gpu_h": 1}}, "unknown key 'cost.gpu_h'; did you mean 'cost.gpu_hour'?"),
    ({"profile": {"shares": 0.5}}, "unknown key 'profile.shares'; did you mean 'profile.share'?"),
    ({"resources__concurrency": 2}, "unknown key 'resources.concurrency'; write resources.actors"),
    ({"model__concurrency": 2}, "unknown key 'model.concurrency'; write resources.actors"),
    ({"num_gpus": 1}, "unknown key 'num_gpus'; write resources.gpus"),
    ({"resources__num_cpus": 1}, "unknown key 'resources.num_cpus'; write resources.cpus"),
    ({"model__allow_pickle": True}, "unknown key 'model.allow_pickle'; write model.trusted"),
    ({"model__batch_format": "pandas"}, "unknown key 'model.batch_format'; write model.options.batch_format"),
    ({"input__path": "x"}, "unknown key 'input.path'; write input.uri"),
    ({"batch_size": 9}, "unknown key 'batch_size'; write model.batch_size"),
    ({"uri": "x"}, "unknown key 'uri'; known: name, input, model"),
    ({"resources__actors": {"min": 1, "max": 2, "mix": 1}}, "unknown key 'resources.actors.mix'; did you mean"),
    (
        {"models": [{**NET, "preprocess": {"uses": "m:f", "workers": {"min": 1, "max": 2, "mix": 1}}}], "model": None},
        "unknown key 'models[0].preprocess.workers.mix'; did you mean",
    ),
    ({"kind": "delta"}, "unknown key 'kind'; known: name, input, model"),
    (
        {"checks": [{"files": {"min": 5, "on_fail": "warn"}}]},
        "unknown key 'checks[0].files.on_fail'; known: min, max",
    ),
    ({"anonymous": True}, "unknown key 'anonymous'; known: name, input, model"),
    ({"checks": [{"column": "score", "mim": 0}]}, "unknown key 'checks[0].mim'; did you mean 'checks[0].min'?"),
    ({"name": None}, "name: is required"),
    ({"model": None}, "model: is required"),
    ({"resources__actors": {"min": 1}}, "resources.actors.max: is required"),
    ({"name": "My Job"}, "name: 'My Job' must be lower case letters, digits and dashes: it names the artifacts"),
    (
        {"input": "data/"},
        "input: must be a mapping with the keys uri, list, format, options, shard_rows, wait, partitions, schema, "
        "where, anonymous, within, not 'data/'",
    ),
    ({"input__uri": ""}, "input.uri: must be a place, or a list of places, none of them empty"),
    (
        {"checks": ["score"]},
        f"checks[0]: must be a check on one of {', '.join(CHECKS)}, as {{column: score, min: 0}} or "
        "{rows: {min: 1000}}, not 'score'",
    ),
    ({"input__wait": "2h"}, "input.wait: must be a mapping with the keys for, until, not '2h'"),
    ({"input__wait": {"until": 5}}, "input.wait.for: is required"),
    ({"input__wait": {"for": 90}}, "input.wait.for: must be a duration, as 90s, 30min or 2h, not 90"),
    ({"input__wait": {"for": "2 hours"}}, "input.wait.for: must be a duration, as 90s, 30min or 2h, not '2 hours'"),
    (
        {"input__wait": {"for": "2h", "until": 0}},
        "input.wait.until: must be the name of a marker, as _SUCCESS, or a number of files, 1 or more, not 0",
    ),
    (
        {"input__wait": {"for": "2h", "until": "../x"}},
        "input.wait.until: '../x' is no name below the input; write one as _SUCCESS",
    ),
    (
        {"checks": [{"rwos": {"min": 5}}]},
        f"checks[0]: is on nothing: give one of {', '.join(CHECKS)}; did you mean 'rows'?",
    ),
    (
        {"checks": [{"column": "score", "min": 0, "fintie": True}]},
        "unknown key 'checks[0].fintie'; did you mean 'checks[0].finite'?",
    ),
    ({"checks": [{"rows": {"mni": 5}}]}, "unknown key 'checks[0].rows.mni'; did you mean 'checks[0].rows.min'?"),
    ({"checks": [{"rows": 5}]}, "checks[0].rows: must be a mapping with the keys min, max, against, change, not 5"),
    ({"checks": [{"files": {"min": -1}}]}, "checks[0].files.min: must be at least 0, not -1"),
    ({"checks": [{"column": "score", "min": 3, "max": 1}]}, "checks[0]: min 3 is more than max 1"),
    ({"checks": [{"files": {"min": 3, "max": 1}}]}, "checks[0].files: min 3 is more than max 1"),
    ({"checks": [{"files": {}}]}, "checks[0].files: asks nothing: give at least one of min, max"),
    (
        {"checks": [{"rows": {"against": "last"}}]},
        "checks[0].rows: against and change belong together: write {against: last, change: 0.3}",
    ),
    (
        {"checks": [{"rows": {"against": "last", "change": 0.3}}], "output__uri": "out/{date}/"},
        "checks[0].rows.against: output.uri has a {date}, so each night is published in a place of its own and none is "
        "the last; take the {date} out of it, or compare with min and max",
    ),
    ({"checks": [{"column": "score", "rows": {"min": 5}}]}, "checks[0]: is on column and rows; write a check for each"),
    ({"checks": {"score": 1}}, "checks: must be a list, not {'score': 1}"),
    ({"carry": "id"}, "carry: must be a list, not 'id'"),
    ({"carry": [1]}, "carry[0]: must be text, not 1; put it in quotes"),
    ({"carry": ["id", "id"]}, "carry: 'id' is listed twice"),
    ({"carry": ["_row"]}, "carry: '_row' is also a lineage column; rename one of the two, or leave it out"),
    ({"carry": ["_Row"]}, "carry: '_Row' and '_row' differ in case only, and DuckDB, Spark and Delta Lake would take"),
    ({"carry": ["id", "score"]}, "carry: 'score' is also an output of model; rename one of the two"),
    ({"carry": ["id", "Score"]}, "carry: 'Score' and 'score' differ in case only"),
    ({"carry": ["id", "ID"]}, "carry: 'ID' and 'id' differ in case only"),
    ({"model__outputs": {"p": "float32", "P": "float32"}}, "model.outputs: 'P' and 'p' differ in case only"),
    ({"model__outputs": {"_FILE": "string"}}, "model.outputs: '_FILE' and '_file' differ in case only"),
    ({"model__outputs": {"a": "struct<b: int8, B: int8>"}}, "model.outputs: a: of the fields of a struct 'b' and 'B'"),
    ({"model__features": "x"}, "model.features: must be a list, not 'x'"),
    ({"model__features": []}, "model.features: must not be empty"),
    ({"model__features": ["x", "x"]}, "model.features: 'x' is listed twice"),
    ({"model__version": 3}, "model.version: must be text, not 3; put it in quotes"),
    ({"model__version": dt.date(2026, 11, 1)}, "model.version: must be text, not 2026-11-01; put it in quotes"),
    ({"model__outputs": ["score"]}, "model.outputs: must be a mapping of name: type, not ['score']"),
    ({"model__outputs": {}}, "model.outputs: must not be empty"),
    ({"model__outputs": {"score": "flaot"}}, "model.outputs: score: 'flaot' is not an Arrow type; write float32"),
    ({"model__outputs": {"_file": "string"}}, "model.outputs: '_file' is the name of a lineage column; choose another"),
    ({"model__batch_size": 0}, "model.batch_size: must be auto or a number of rows, 1 or more, not 0"),
    ({"model__batch_size": "big"}, "model.batch_size: must be auto or a number of rows, 1 or more, not 'big'"),
    (
        {"model__uses": "paddle"},
        f"model.uses: 'paddle' is neither an adapter ({', '.join(FRAMEWORKS)}) nor \"module:Name\" of a class or",
    ),
    ({"model__uses": "net..model:score"}, "model.uses: 'net..model:score' is neither an adapter"),
    ({"model__uses": "torch"}, "model.path: the torch adapter needs the path of an exported program (.pt2)"),
    ({"preprocess": {"uses": "prep:decode", "columns": ["x", "x"]}}, "preprocess.columns: 'x' is listed twice"),
    ({"preprocess": "prep:2nd"}, "preprocess.uses: 'prep:2nd' must be \"module:name\" of a callable"),
    ({"preprocess": "prep"}, "preprocess.uses: 'prep' must be \"module:name\" of a callable"),
    (
        {"resources__actors": -1},
        "resources.actors: must be a number of actors, 1 or more, or {min: 1, max: 8}, not -1",
    ),
    ({"resources__actors": "two"}, "resources.actors: must be a number of actors, 1 or more, or {min: 1, max: 8}"),
    ({"resources__actors": {"min": 3, "max": 1}}, "resources.actors: min 3 is more than max 1"),
    ({"resources__custom": {"GPU": 1}}, "resources.custom: 'GPU' is a resource of Ray's own; write resources.gpus"),
    ({"resources__gpus": "one"}, "resources.gpus: must be a number, not 'one'"),
    ({"retry__attempts": 0}, "retry.attempts: must be at least 1, not 0"),
    ({"retry__attempts": "3"}, "retry.attempts: must be a whole number, not '3'"),
    ({"retry__max_quarantined": 1.5}, "retry.max_quarantined: must be at most 1, not 1.5"),
    ({"retry__stall_s": 0}, "retry.stall_s: must be more than 0, not 0"),
    ({"retry__backoff_s": float("inf")}, "retry.backoff_s: must be a finite number, not inf"),
    (
        {"input__format": "avro"},
        f"input.format: must be {' or '.join(map(repr, SOURCES))}, or \"module:Name\" of a class of yours, not 'avro'",
    ),
    ({"output__format": "delta"}, "output.format: must be 'parquet', not 'delta'"),
    ({"output__single_writer": "no"}, "output.single_writer: must be true or false, not 'no'"),
    ({"output__keep": {"nights": 0}}, "output.keep.nights: must be at least 1, not 0"),
    ({"output__keep": {"nights": 40000}}, "output.keep.nights: must be at most 36500, not 40000"),
    ({"output__keep": {"nights": "30"}}, "output.keep.nights: must be a whole number, not '30'"),
    ({"output__keep": {"days": 30}}, "unknown key 'output.keep.days'; known: nights"),
    ({"output__keep": {}}, "output.keep.nights: is required"),
    ({"output__keep": 30}, "output.keep: must be a mapping with the keys nights, not 30"),
    ({"checks": [{"column": "score"}]}, "checks[0]: asks nothing: give at least one of min, max, nulls, finite"),
    ({"checks": [{"column": "score", "finite": False}]}, "checks[0]: asks nothing: give at least one of min, max, nul"),
    *(
        (
            {"checks": [{"drift": "score", "against": night}]},
            f"checks[0].against: must be last, baseline, or the id of a run, not {night!r}",
        )
        for night in ("last:0", "last:7", "last:week", "last:-1", "", "a night")
    ),
    ({"checks": [{"column": "scor", "min": 0}]}, "checks[0].column: 'scor' is neither an output nor a carried column;"),
    ({"models": []}, "models: must not be empty"),
    ({"models": [NET]}, "models: model is there, too; write one of the two"),
    ({"model": None, "models": [NET, NET]}, "models: two are named 'net'"),
    ({"model": None, "models": [{**NET, "nme": "b"}]}, "unknown key 'models[0].nme'; did you mean 'models[0].name'?"),
    ({"model": None, "models": [{**NET, "name": "a-b"}]}, "models[0].name: 'a-b' must be letters, digits and under"),
    ({"model": None, "models": [{**NET, "name": None}]}, "models[0].name: is empty"),
    ({"model": None, "models": [NET, {**NET, "name": "b", "uses": "onnx"}]}, "models[1].path: the onnx adapter needs"),
    ({"model": None, "models": [NET], "carry": ["net_score"]}, "carry: 'net_score' is also an output of models[0]"),
    (
        {
            "model": None,
            "models": [
                {**NET, "name": "a", "outputs": {"b_c": "int8"}},
                {**NET, "name": "a_b", "outputs": {"c": "int8"}},
            ],
        },
        "models[1].outputs: 'a_b_c' is also an output of models[0]; rename one of the two",
    ),
    (
        {"model": None, "models": [{**NET, "name": "a"}, {**NET, "name": "A"}]},
        "models[1].outputs: 'A_score' and 'a_score' differ in case only",
    ),
    (
        {"model": None, "models": [{**NET, "batch_size": "many"}]},
        "models[0].batch_size: must be auto or a number of rows, 1 or more, not 'many'",
    ),
    (
        {"model": None, "models": [{**NET, "preprocess": "prep"}]},
        "models[0].preprocess.uses: 'prep' must be \"module:name\"",
    ),
    (
        {"model": None, "models": [NET], "checks": [{"column": "score", "nulls": 0.1}]},
        "checks[0].column: 'score' is neither an output nor a carried column; did you mean 'net_score'?",
    ),
    ({"output": {"uri": "out/", "rows": "most"}}, "output.rows: must be 'any' or 'all', not 'most'"),
    ({"schedule": "0 2 * * *"}, "schedule: must be a mapping with the keys cron, timezone, not '0 2 * * *'"),
    ({"schedule": {"timezone": "UTC"}}, "schedule.cron: is required"),
    ({"schedule__cron": "0 2 * *"}, "schedule.cron: '0 2 * *' is no cron expression (it has 4 fields); write five"),
    ({"schedule__cron": "0 0 2 * * *"}, "schedule.cron: '0 0 2 * * *' is no cron expression (it has 6 fields)"),
    ({"schedule__cron": "0 2 L * *"}, "schedule.cron: '0 2 L * *' is no cron expression (L, W, # and ? are not"),
    ({"schedule__cron": "0 2 1 * MON"}, "schedule.cron: '0 2 1 * MON' is no cron expression (day of month and day of"),
    ({"schedule__cron": "0 8-08 * * *"}, "schedule.cron: '0 8-08 * * *' is no cron expression (schedulers differ in"),
    ({"schedule__cron": "0 2 * * sat-Sat/2"}, "schedule.cron: '0 2 * * sat-Sat/2' is no cron expression (sch"),
    ({"schedule__cron": "0 2 * * mon/2"}, "schedule.cron: '0 2 * * mon/2' is no cron expression (schedulers"),
    ({"schedule__cron": "61 2 * * *"}, "schedule.cron: '61 2 * * *' is no cron expression (Bad minute); write five"),
    (
        {"schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berln"}},
        "schedule.timezone: 'Europe/Berln' is no time zone; write one as Europe/Berlin; did you mean 'Europe/Berlin'?",
    ),
    ({"input__uri": "s3a://b/x"}, "input.uri: 's3a://b/x' is no place; write a path, or s3://, gs:// or az:// with"),
    ({"output__uri": "s3:///x"}, "output.uri: 's3:///x' is no place"),
    ({"output__uri": "s3://my bucket/x"}, "output.uri: 's3://my bucket/x' is no place"),
    ({"model__path": "s3://a<b/x"}, "model.path: 's3://a<b/x' is no place"),
    ({"input__uri": "gs://ä/x"}, "input.uri: 'gs://ä/x' is no place"),
    ({"input__uri": "https://h:x/a.csv"}, "input.uri: 'https://h:x/a.csv' is no place"),
    ({"input__uri": "http://h:99999/a.csv"}, "input.uri: 'http://h:99999/a.csv' is no place: a port is at most 65535"),
    ({"input__uri": "https://münchen.example/a.csv"}, "input.uri: 'https://münchen.example/a.csv' is no place"),
    ({"input__uri": "https://host/part#1.csv"}, "input.uri: 'https://host/part#1.csv' has a #"),
    ({"input__uri": "data/{day}/"}, "input.uri: {day} is unknown; write {date} or {date:%Y/%m/%d}"),
    ({"model__path": "m/{}"}, "model.path: {} is unknown; write {date} or {date:%Y/%m/%d}"),
    ({"input__uri": "data/{date"}, "input.uri: expected '}' before end of string"),
    ({"input__uri": "data/{date:{x}}/"}, "input.uri: "),
    ({"input__partitions": ["country"]}, "input.partitions: must be a mapping of name: type, not ['country']"),
    ({"input__partitions": {"c": "strng"}}, "input.partitions: c: 'strng' is not an Arrow type; write float32"),
    (
        {"input__partitions": {"c": "list<int8>"}},
        "input.partitions: c: 'list<int8>' is no type of a folder's name; write",
    ),
    ({"input__schema": {"c": 1}}, "input.schema.c: must be text, not 1"),
    ({"input__schema": {"_row": "int64"}}, "input.schema: '_row' is the name of a lineage column; choose another"),
    ({"input__declared": {}}, "unknown key 'input.declared'"),
    (
        {"input": {"uri": "in", "schema": {"c": "int8"}, "partitions": {"c": "int8"}}},
        "input: 'c' is in partitions and in schema; a column comes from the path or from the files",
    ),
    ({"output__tables": [{"detla": "t"}]}, "output.tables[0]: 'detla' is no kind of table; did you mean 'delta'?"),
    ({"output__tables": [{"delta": "t"}, "t"]}, "output.tables[1]: is one key and the table's place, as {delta: "),
    ({"output__tables": [{"delta": "a", "b": "c"}]}, "output.tables[0]: is one key and the table's place, as {delta: "),
    ({"model__batch_tokens": 4096}, "unknown key 'model.batch_tokens'; write model.options.batch_tokens"),
    ({"retry__stall_s": "600"}, "retry.stall_s: must be a number, not '600'"),
    ({"resources__cpus": True}, "resources.cpus: must be a number, not true"),
    ({"checks": [{"column": "score", "min": "0"}]}, "checks[0].min: must be a number, not '0'"),
    (
        {"input__format": "parqet"},
        f'input.format: must be {" or ".join(map(repr, SOURCES))}, or "module:Name" of a class of yours, not '
        "'parqet'; did you mean 'parquet'?",
    ),
    ({"output__tables": [{"delta": None}]}, "output.tables[0]: delta: is the table's place, a path or s3://"),
    ({"output__tables": [{"delta": "s3a://b/x"}]}, "output.tables[0].delta: 's3a://b/x' is no place; write a path"),
    ({"output__tables": [{"delta": "{date}"}]}, "output.tables[0].delta: a table shows all nights of one place; take"),
    (
        {"output": {"uri": "out-{date}", "tables": [{"delta": "t"}]}},
        "output.tables[0].delta: a table shows all nights of one place; take the {date} out of output.uri",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=lambda case: str(case)[:50])
def test_a_wrong_key_is_answered_with_one_sentence_that_names_it(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    said = refusal(tmp_path, **changes)
    assert said.startswith(sentence)
    assert "\n" not in said


@pytest.mark.parametrize(
    "place",
    ["https://me:hush@h/a.csv", "http://hush@h/{x", "s3://me:hush@b/x", "ftp://me:hush@h/a", "az://hush@a/{date}"],
)
@pytest.mark.parametrize("key", ["input__uri", "output__uri", "model__path"])
def test_a_place_with_a_password_is_refused_and_the_password_is_not_shown(tmp_path: Path, key: str, place: str) -> None:
    """It would be published: the name of its file stands beside each row."""
    said = refusal(tmp_path, **{key: place})
    assert said.startswith(f"{key.replace('__', '.')}: a place has no name or password before an @")
    assert "hush" not in said


def test_every_fault_is_named_at_once_each_on_a_line_of_its_own(tmp_path: Path) -> None:
    """Nobody should mend a job file one run at a time."""
    said = refusal(tmp_path, carry="id", name="BAD", retry={"atempts": 5})
    assert [line.split(":")[0] for line in said.split("\n")] == [
        "name",
        "carry",
        "unknown key 'retry.atempts'; did you mean 'retry.attempts'?",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a job file is a mapping of keys; start with `name:`"),
        ("- a", "a job file is a mapping of keys; start with `name:`"),
        ("a: [1, 2", "line 1, column 9: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("a: 1\n\tb: 2", "line 2, column 1: not valid YAML: found character '\\t' that cannot start any token"),
        ("name: a\nname: b", "line 2, column 1: not valid YAML: key 'name' is written twice"),
        ("input:\n  uri: a\n  uri: b", "line 3, column 3: not valid YAML: key 'uri' is written twice"),
        ("1: a", "line 1, column 1: not valid YAML: key 1 must be text; write it in quotes"),
        ("a: !!python/object/apply:os.system [ls]", "line 1, column 4: not valid YAML: could not determine"),
        (
            "input: {uri: data/{date}/}",
            "line 1, column 19: not valid YAML: expected ',' or '}', but got '{'; text with braces, brackets, `: ` or "
            "` #` stands in quotes",
        ),
        ("a: \x00", "not valid YAML: unacceptable character #x0000"),
    ],
)
def test_a_file_that_is_no_yaml_says_where(tmp_path: Path, text: str, sentence: str) -> None:
    """And no YAML tag is ever executed."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")


def test_a_file_that_a_key_names_is_json_where_its_name_says_so(tmp_path: Path) -> None:
    """YAML 1.1 has other escapes and numbers than JSON, and no tabs."""
    path = tmp_path / "schema.json"
    model = {"uses": "openai", "json_schema": path.name, "outputs": {"a": "string"}}
    path.write_text('{\n\t"enum": ["\\ud83d\\ude00"], "maximum": 1e+20\n}')
    assert load(tmp_path, model=model).models[0].options["json_schema"] == {"enum": ["\U0001f600"], "maximum": 1e20}
    for text, said in (
        ('{\n"a": }', r"Expecting value: line 2 column 6 \(char 7\)"),
        ('{"b": {"a": 1, "a": 2}}', "key 'a' is written twice"),
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "Exceeds the limit"),
    ):
        path.write_text(text)
        with pytest.raises(JobError, match=rf"^{path}: .*{said}"):
            load(tmp_path, model=model)


def test_a_number_with_an_exponent_is_a_number(tmp_path: Path) -> None:
    """As in YAML 1.2; in quotes it is text, and so is what only begins so."""
    path = tmp_path / "job.yaml"
    options = '{a: 1e-3, b: 1e6, c: -.5E+2, d: 2.e3, e: "1e-3", f: 1e-3x, g: e3}'
    path.write_text(yaml.safe_dump(changed(model=None)) + "retry: {max_quarantined: 1e-4}\n")
    with path.open("a") as file:
        file.write(f"model: {{uses: 'm:f', outputs: {{score: float32}}, options: {options}}}\n")
    job = load_job(path)
    assert job.retry.max_quarantined == 1e-4
    assert [*job.models[0].options.values()] == [1e-3, 1e6, -50.0, 2000.0, "1e-3", "1e-3x", "e3"]


def test_an_empty_section_says_so(tmp_path: Path) -> None:
    """`retry:` with nothing under it is how a half-edited file looks."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB) + "retry:\n")
    with pytest.raises(JobError, match=r"job\.yaml: retry: is empty; give it a value or remove it$"):
        load_job(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, reason in [("no.yaml", "no such job file"), ("binary.yaml", "cannot be read"), ("", "cannot be read")]:
        with pytest.raises(JobError, match=reason) as caught:
            load_job(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))


# ---- what is right ------------------------------------------------------------------------------------------


def test_relative_places_are_looked_up_beside_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is started from; a slash at the end, which says "a folder", is kept for the input."""
    monkeypatch.chdir("/")
    job = load(tmp_path, model__path="../models/m.pt2", input__uri="./data/", output__uri="s3://lake/out/")
    assert job.folder == str(tmp_path)
    assert job.input.uri == f"{tmp_path}/data/"
    assert job.models[0].path == f"{tmp_path.parent}/models/m.pt2"
    assert job.output.uri == "s3://lake/out"
    assert load(tmp_path, input__uri=f"file://{tmp_path}/x").input.uri == f"{tmp_path}/x"


def test_a_tilde_is_the_home_of_a_user_who_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another one it is a name like any other, also to the other jobs of the folder."""
    monkeypatch.setenv("HOME", "/home/night")
    job = load(tmp_path, input__uri="~/data/", output__uri="~no-such-user/out")
    assert job.input.uri == "/home/night/data/"
    assert job.output.uri == f"{tmp_path}/~no-such-user/out"


def test_a_tables_place_is_looked_up_so_too(tmp_path: Path) -> None:
    folder = tmp_path / "{braces}"
    folder.mkdir()
    job = load(folder, output__tables=[{"delta": "t/{{x}}/"}, {"delta": "s3://lake/t/"}]).at("2026-03-09")
    assert [table.uri for table in job.output.tables] == [f"{folder}/t/{{x}}", "s3://lake/t"]


def test_dates_are_filled_into_every_place(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        input__uri="in/{date:%Y/%m/%d}/",
        output__uri="out-{date:%B}",
        model__path="models/{date}.pt2",
    ).at("2026-03-09")
    assert job.input.uri == f"{tmp_path}/in/2026/03/09/"
    assert job.output.uri == f"{tmp_path}/out-March"
    assert job.models[0].path == f"{tmp_path}/models/2026-03-09.pt2"


def test_a_brace_that_is_meant_is_written_twice(tmp_path: Path) -> None:
    job = load(tmp_path, input__uri="in/{{a}}/{date}").at("2026-03-09")
    assert job.input.uri == f"{tmp_path}/in/{{a}}/2026-03-09"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("float32", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("timestamp[us]", pa.timestamp("us")),
        ("timestamp[ms, Europe/Berlin]", pa.timestamp("ms", "Europe/Berlin")),
        ("list<float32>", pa.list_(pa.float32())),
        ("list<list<int8>>", pa.list_(pa.list_(pa.int8()))),
        ("float32[384]", pa.list_(pa.float32(), 384)),
        (" bool ", pa.bool_()),
    ],
)
def test_output_types_are_arrow_types(text: str, kind: pa.DataType) -> None:
    assert arrow_type(text) == kind


def test_a_job_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    job = load(tmp_path, resources__actors={"min": 1, "max": 3}, checks=[{"column": "score", "min": 0}])
    assert pickle.loads(pickle.dumps(job)) == job


# ---- identity (promise 4) -----------------------------------------------------------------------------------

ALTERS: dict[str, Any] = {
    "input.options": {"size": [8, 8]},
    "input.where": "x > 1",
    "input.partitions": {"country": "string"},
    "input.schema": {"zip": "string"},
    "model.uses": "model:other",
    "model.version": "2",
    "model.features": ["y"],
    "model.outputs": {"score": "float64"},
    "model.batch_size": 7,
    "model.options": {"scale": 2},
    "preprocess": "prep:decode",
    "carry": ["other"],
    "label": "late",
    "profile.columns": ["x"],
    "resources.gpus": 1,
    "resources.runtime_env.pip": ["a==1"],
    "resources.runtime_env.env_vars": {"A": "1"},
    "checks": [{"column": "id", "nulls": 0}],
}
"""Keys that can change what a part holds (values, columns, or the metric states in its footer)."""

CANNOT: dict[str, Any] = {
    "name": "other",
    "input.uri": "elsewhere/",
    "input.anonymous": True,
    "input.within": ["elsewhere/"],
    "input.format": "parquet",
    "input.shard_rows": 3,
    "input.wait": {"for": "2h", "until": "_SUCCESS"},
    "model.path": "elsewhere.bin",
    "model.trusted": True,
    "model.rows": "independent",
    "model.code": ["*.py"],
    "output.uri": "elsewhere/",
    "output.format": "parquet",
    "output.rows": "all",
    "output.single_writer": True,
    "output.tables": [{"delta": "table"}],
    "output.keep": {"nights": 30},
    "reuse": "rows",
    "resources.actors": {"min": 2, "max": 9},
    "resources.cpus": 3,
    "resources.memory_gb": 3,
    "resources.custom": {"licence": 1},
    "resources.labels": {"zone": "eu"},
    "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
    "retry.attempts": 9,
    "retry.backoff_s": 9,
    "retry.max_quarantined": 0.9,
    "retry.stall_s": 9,
    "retry.shard_s": 9,
    "accumulators": {"lift": "mymetrics:Lift"},
    "checks": [{"column": "score", "min": 0}],
    "rescore.share": 0.5,
    "rescore.tolerance": 0.5,
    "rescore.differing": 0.5,
    "approval.deadline_h": 12,
    "cost": {"cpu_hour": 0.05},
    "late_labels": {"key": "id", "label": "late", "input": {"uri": "truth/"}},
    "notify": {"on": ["failed"], "webhook": "${WEBHOOK}"},
    "identity.strict": True,
    "identity.packages": ["torch"],
}
"""Keys that cannot. Where files and model lie is no identity of theirs: their content is, and is hashed itself; so
is what `model.code` and `identity.packages` choose."""


@pytest.mark.parametrize("key", ALTERS)
def test_what_can_alter_an_output_is_identity(tmp_path: Path, key: str) -> None:
    before = scoring_keys(load(tmp_path))
    assert scoring_keys(load(tmp_path, **{key.replace(".", "__"): ALTERS[key]})) != before


@pytest.mark.parametrize("key", CANNOT)
def test_what_cannot_alter_an_output_is_no_identity(tmp_path: Path, key: str) -> None:
    before = scoring_keys(load(tmp_path))
    assert scoring_keys(load(tmp_path, **{key.replace(".", "__"): CANNOT[key]})) == before


RANKED: dict[str, Any] = {"task": "ranking", "group": "id"}
EVALUATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "task": ({}, {"task": "regression"}),
    "prediction": ({}, {"prediction": "score"}),
    "slices": ({}, {"slices": ["id"]}),
    "group": (RANKED, {**RANKED, "group": "score"}),
    "k": (RANKED, {**RANKED, "k": 3}),
}
"""How labels are compared, before and after a change; all of it changes the states of a part. Without a label it is
refused."""


@pytest.mark.parametrize("key", EVALUATED)
def test_how_labels_are_compared_is_identity(tmp_path: Path, key: str) -> None:
    before, after = (scoring_keys(load(tmp_path, label="late", evaluation=each)) for each in EVALUATED[key])
    assert before != after


@pytest.mark.parametrize("key", EVALUATED)
def test_how_labels_are_compared_that_come_later_is_no_identity(tmp_path: Path, key: str) -> None:
    """The states of a part have none of them."""
    late = {"key": "id", "label": "late"}
    before, after = (scoring_keys(load(tmp_path, late_labels=late, evaluation=each)) for each in EVALUATED[key])
    assert before == after


def test_slices_that_a_check_names_are_identity_and_its_limits_are_not(tmp_path: Path) -> None:
    named = scoring_keys(load(tmp_path, label="late", evaluation={"slices": ["id"]}))
    check = {"metric": "auroc", "min": 0.5, "min_rows": 7, "slices": ["id"]}
    assert scoring_keys(load(tmp_path, label="late", checks=[check])) == named


def test_the_share_of_the_rows_that_is_described_is_identity_where_columns_are(tmp_path: Path) -> None:
    """Part states are of these rows. In short or at length, all rows of the same columns are the same."""
    whole = scoring_keys(load(tmp_path, profile="all"))
    every = scoring_keys(load(tmp_path, profile={"columns": "all", "share": 1}))
    assert every != whole, "without a share, the size of the night decides"
    assert scoring_keys(load(tmp_path, profile={"columns": "all", "share": 0.5})) not in (whole, every)
    assert scoring_keys(load(tmp_path, profile={"share": 0.5})) == scoring_keys(load(tmp_path))


@pytest.mark.parametrize(("own", "share"), [(None, 0.25), (0.5, 0.5), (1, 1)])
def test_a_share_that_the_job_names_stays(tmp_path: Path, own: float | None, share: float) -> None:
    """Also where a ledger of an earlier version says nothing of it."""
    job = load(tmp_path, profile={"columns": "all", **({"share": own} if own else {})})
    assert job.describing(0.25).profile.share == share


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"columns": "some"}, "profile.columns: must be all, outputs or a list of columns, not 'some'"),
        ({"columns": "all", "share": 0}, "profile.share: "),
        ({"columns": "all", "share": 1.5}, "profile.share: "),
        ({"column": ["x"]}, "profile.column"),
        (3, "profile: must be all, outputs or a list of columns, not 3"),
    ],
)
def test_a_wrong_profile_is_named(tmp_path: Path, profile: Any, said: str) -> None:
    with pytest.raises(JobError, match=re.escape(said)):
        load(tmp_path, profile=profile)


def test_where_the_input_is_listed_is_no_identity(tmp_path: Path) -> None:
    assert scoring_keys(load(tmp_path, input={"list": "names.txt"})) == scoring_keys(load(tmp_path))


def test_the_limits_of_checks_are_no_identity_their_columns_are(tmp_path: Path) -> None:
    """The metric states in a part's footer are of the checked columns: their limits are compared later."""
    one = scoring_keys(load(tmp_path, checks=[{"column": "score", "min": 0}]))
    assert scoring_keys(load(tmp_path, checks=[{"column": "score", "max": 5, "nulls": 0.5}])) == one
    assert scoring_keys(load(tmp_path, checks=[{"column": "id", "min": 0}])) != one
    own = [{"call": "mine:f"}, {"unique": ["id"]}]
    assert scoring_keys(load(tmp_path, checks=own)) == scoring_keys(load(tmp_path))


@pytest.mark.parametrize("key", ["model__features", "carry"])
def test_the_order_of_columns_is_identity(tmp_path: Path, key: str) -> None:
    """Features in another order are another input to the model; readers see that of carried columns."""
    assert scoring_keys(load(tmp_path, **{key: ["a", "b"]})) != scoring_keys(load(tmp_path, **{key: ["b", "a"]}))


def test_the_order_of_outputs_is_identity(tmp_path: Path) -> None:
    """A program's results are named by position."""
    ab = load(tmp_path, model__outputs={"a": "float32", "b": "float32"})
    ba = load(tmp_path, model__outputs={"b": "float32", "a": "float32"})
    assert scoring_keys(ab) != scoring_keys(ba)


def test_every_key_of_the_job_is_known_to_these_tests() -> None:
    """Whoever adds a key decides whether it is identity, and says so here."""
    evaluation = {f"evaluation.{key}" for key in EVALUATED}
    assert set(_leaves(Job, "")) == set(ALTERS) | set(CANNOT) | evaluation | {"models", "input.list", "profile.share"}
    assert set(NamedModel.model_fields) == set(ONE_OF_SEVERAL) | {
        "name",
        "path",
        "trusted",
        "rows",
        "code",
    }


def test_that_rows_depend_on_each_other_is_no_identity(tmp_path: Path) -> None:
    """Their batches are: the key needs a fixed size."""
    fixed = load(tmp_path, model__batch_size=7)
    assert scoring_keys(load(tmp_path, model__batch_size=7, model__rows="dependent")) == scoring_keys(fixed)


ONE_OF_SEVERAL = {
    "uses": "model:other",
    "version": "2",
    "features": ["y"],
    "outputs": {"score": "float64"},
    "batch_size": 7,
    "options": {"scale": 2},
    "preprocess": "prep:decode",
}


def test_what_can_alter_an_output_of_one_of_several_models_is_identity(tmp_path: Path) -> None:
    two = [NET, {**NET, "name": "tree"}]

    def keys(models: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return scoring_keys(load(tmp_path, model=None, models=models, **more))

    for key, value in ONE_OF_SEVERAL.items():
        for index in range(2):
            other = [{**each, key: value} if at == index else each for at, each in enumerate(two)]
            assert keys(other) != keys(two), key
    assert keys(two[::-1]) != keys(two), "their order is that of the columns"
    assert keys([NET, {**NET, "name": "trees"}]) != keys(two)
    assert keys(two, output__rows="all") != keys(two)
    assert keys(two[:1]) != scoring_keys(load(tmp_path))
    for key, value in {"path": "elsewhere.bin", "trusted": True, "code": ["*.py"]}.items():
        assert keys([{**NET, key: value}, two[1]]) == keys(two), key


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        kind = Model if name == "only" else field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _leaves(kind, f"{prefix}{field.alias or name}.")
        else:
            yield prefix + (field.alias or name)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30 min", 1800), ("2h", 7200)])
def test_a_wait_is_a_duration_with_its_unit(tmp_path: Path, text: str, seconds: int) -> None:
    wait = load(tmp_path, input__wait={"for": text, "until": "_SUCCESS"}).input.wait
    assert wait is not None
    assert (wait.seconds, wait.until) == (seconds, "_SUCCESS")


def test_a_module_may_have_a_name_that_no_import_statement_takes(tmp_path: Path) -> None:
    """Its file can be imported all the same."""
    job = load(tmp_path, model__uses="nights.01_net:score", checks=[{"call": "02_checks:enough"}])
    assert [model.uses for model in job.models] == ["nights.01_net:score"]
