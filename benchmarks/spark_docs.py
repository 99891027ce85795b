"""Peer f: batch inference as Spark's documentation writes it: `predict_batch_udf` over a DataFrame.

read.parquet → a pandas UDF whose model is loaded once per Python worker → write.parquet, on a local Spark of as many
cores as the others have actors. Prints one JSON line. Spark is in the environment of the peers (`peers.txt`), and needs
Java 17.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import peer
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col
from pyspark.sql.types import FloatType

MEMORY = "6g"
"""Memory of the driver, which in local mode is the executor; the default of 1 GB does not hold the rows of two
tasks.
"""


def model_of(job: peer.Asked) -> Callable[[], Callable[[np.ndarray], np.ndarray]]:
    """The function that Spark calls once per Python worker."""
    path, ready = job.model, job.ready

    def load() -> Callable[[np.ndarray], np.ndarray]:
        import torch

        torch.set_num_threads(1)
        model = torch.export.load(path).module()
        peer.is_ready(ready)

        def predict(features: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                found: np.ndarray = model(torch.from_numpy(features.astype(np.float32, copy=False))).numpy()
                return found

        return predict

    return load


def score(job: peer.Asked, spark: SparkSession) -> None:
    """The documentation's pipeline: scalar columns become one tensor column by `array`."""
    features = job.spec["features"]
    predict = predict_batch_udf(
        model_of(job), return_type=FloatType(), batch_size=job.batch_size, input_tensor_shapes=[[len(features)]]
    )
    rows = spark.read.parquet(str(job.data / "rows"))
    scored = rows.withColumn("score", predict(array(*(col(name) for name in features))))
    scored.select(*job.spec["carry"], "score").write.option("compression", "zstd").parquet(str(job.out))


def main() -> None:
    """Score the data and print the one line."""
    job, _ = peer.asked(__doc__)
    spark = (
        SparkSession.builder.master(f"local[{job.actors}]")
        .config("spark.driver.memory", MEMORY)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", job.batch_size)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    executed_at = time.time()
    score(job, spark)
    ended_at, ready_at = time.time(), peer.ready_times(job.ready)
    spark.stop()
    peer.tell("spark_docs", job, ready_at[0], ended_at, engine_s=ready_at[0] - executed_at)


if __name__ == "__main__":
    main()
