"""Requests and tokens per second of a language model: Nightjar beside vLLM's own loop and Ray Data's own processor.

    make bench-language

All have the same model, the same prompts, the same settings of vLLM and the same machine; each reads Parquet and writes
Parquet, in a process of its own. Each runs twice, with some rows and with more; the difference of the two is the time
that the further rows take, so the time to start is in none of the rates. Lengths are skewed, as they are in a lake: one
prompt in eight asks for a long answer, the others for a word.

    nightjar   `nightjar run`, with ledger, audit and publication; rows of several shards are underway at once
    shards     `vllm.LLM.chat` for one shard after the other, as in vLLM's documentation: each waits for its slowest row
    ray        `ray.data.llm`'s processor, as Ray's documentation has it, with batches of as many rows as a shard has
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "llm"
MODEL = EXAMPLE / "models" / "smollm2"
LONG_EVERY = 8
ENGINE = {"max_model_len": 512, "dtype": "bfloat16", "enforce_eager": True, "max_num_seqs": 16, "seed": 0}
SAMPLING = {"max_tokens": 128, "temperature": 0}
CORES = 2
STAGES = 8
"""Logical CPUs for the stages of Ray Data's processor, which share the same cores as all else."""

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": str(CORES),
    "VLLM_LOGGING_LEVEL": "ERROR",
}
WAYS = ("nightjar", "shards", "ray")


def write_prompts(path: Path, rows: int) -> None:
    """Write so many prompts, made of the example's glosses, over and over."""
    held = pq.read_table(EXAMPLE / "data" / "glosses.parquet").to_pylist()
    texts = []
    for row in range(rows):
        words, gloss = held[row % len(held)]["words"], held[row % len(held)]["gloss"]
        if row % LONG_EVERY == 0:
            texts.append(f"Write a long story number {row} about {words}: {gloss}")
        else:
            texts.append(f"Answer with one word, yes or no. Number {row}: is {words} an animal?")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": list(range(rows)), "text": texts}), path)


def nightjar(data: Path, out: Path, shard: int) -> None:
    """A job, by the command."""
    job = {
        "name": "language",
        "input": {"uri": f"{data.parent}/", "shard_rows": shard},
        "model": {
            "uses": "vllm",
            "path": f"{MODEL}/",
            "prompt": "{text}",
            "sampling": SAMPLING,
            "engine": ENGINE,
            "outputs": {"answer": "string", "output_tokens": "int32"},
        },
        "carry": ["id"],
        "output": {"uri": f"{out}/"},
        "resources": {"actors": 1, "cpus": CORES},
    }
    path = out.parent / "job.yaml"
    path.write_text(json.dumps(job))
    command = Path(sys.executable).with_name("nightjar")
    subprocess.run([command, "run", path], check=True, stdout=subprocess.DEVNULL)


def shards(data: Path, out: Path, shard: int) -> None:
    """vLLM's offline API."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    model, params = LLM(str(MODEL), **ENGINE), SamplingParams(**SAMPLING)
    table = pq.read_table(data)
    out.mkdir(parents=True)
    for first in range(0, table.num_rows, shard):
        rows = table.slice(first, shard)
        asked = [[{"role": "user", "content": text}] for text in rows["text"].to_pylist()]
        said = [each.outputs[0] for each in model.chat(asked, params, use_tqdm=False)]
        answers = {"answer": [each.text for each in said], "output_tokens": [len(each.token_ids) for each in said]}
        pq.write_table(pa.table({"id": rows["id"], **answers}), out / f"{first}.parquet")


def ray(data: Path, out: Path, shard: int) -> None:
    """Ray Data's processor."""
    import ray as cluster
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    # Each of its stages has an actor that asks for a CPU of its own, and with fewer of them it never begins.
    cluster.init(address="local", log_to_driver=False, num_cpus=STAGES)
    config = vLLMEngineProcessorConfig(
        model_source=str(MODEL),
        engine_kwargs=ENGINE,
        batch_size=shard,
        concurrency=1,
        placement_group_config={"bundles": [{"CPU": 1}]},
        log_engine_metrics=False,
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {
            "messages": [{"role": "user", "content": row["text"]}],
            "sampling_params": dict(SAMPLING),
        },
        postprocess=lambda row: {
            "id": row["id"],
            "answer": row["generated_text"],
            "output_tokens": row["num_generated_tokens"],
        },
    )
    processor(cluster.data.read_parquet(str(data))).write_parquet(str(out))


def timed(way: str, folder: Path, rows: int, shard: int) -> tuple[float, int]:
    """Seconds from the start of the process to its end, and the tokens of all answers."""
    data, out = folder / "data" / "prompts.parquet", folder / "out"
    write_prompts(data, rows)
    began = time.monotonic()
    command = [sys.executable, __file__, "--one", way, "--data", str(data), "--out", str(out), "--shard", str(shard)]
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way} failed:\n{done.stderr[-4000:]}")
    seconds = time.monotonic() - began
    parts = [path for path in out.rglob("*.parquet") if {"answer", "output_tokens"} <= set(pq.read_schema(path).names)]
    answers = pa.concat_tables(pq.read_table(path, columns=["id", "output_tokens"]) for path in parts)
    if sorted(answers["id"].to_pylist()) != list(range(rows)):
        raise SystemExit(f"{way} has {answers.num_rows} of {rows} rows")
    return seconds, sum(answers["output_tokens"].to_pylist())


def beside(rates: dict[str, list[dict[str, Any]]], way: str) -> str:
    """Nightjar's requests per second as a multiple of another way's in the same repeat: median, least and most."""
    pairs = zip(rates.get("nightjar", []), rates[way], strict=False)
    found = [ours["requests_s"] / theirs["requests_s"] for ours, theirs in pairs]
    return f"{statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f})" if found else ""


def main() -> None:
    """Run all, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--more", type=int, default=256)
    parser.add_argument("--shard", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        {"nightjar": nightjar, "shards": shards, "ray": ray}[asked.one](asked.data, asked.out, asked.shard)
        return
    rates: dict[str, list[dict[str, Any]]] = {}
    for repeat in range(asked.repeat):
        for way in asked.ways.split(","):
            with tempfile.TemporaryDirectory() as few, tempfile.TemporaryDirectory() as many:
                short, fewer = timed(way, Path(few), asked.rows, asked.shard)
                long, more = timed(way, Path(many), asked.rows + asked.more, asked.shard)
            found = {
                "start_s": round(short - asked.rows * (long - short) / asked.more, 1),
                "requests_s": asked.more / (long - short),
                "tokens_s": (more - fewer) / (long - short),
            }
            rates.setdefault(way, []).append(found)
            print(repeat, way, json.dumps({name: round(value, 2) for name, value in found.items()}), flush=True)
    print(f"{'':10} {'requests/s':>10} {'tokens/s':>9} {'start, s':>9} {'Nightjar beside it, in a repeat':>31}")
    middle = {
        way: {name: statistics.median(each[name] for each in found) for name in found[0]}
        for way, found in rates.items()
    }
    for way, found in middle.items():
        print(
            f"{way:10} {found['requests_s']:10.2f} {found['tokens_s']:9.0f} {found['start_s']:9.1f} "
            f"{beside(rates, way):>31}"
        )


if __name__ == "__main__":
    main()
