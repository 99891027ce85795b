from pathlib import Path

import pyarrow as pa

Path("data").mkdir()
schema = pa.schema([("x", pa.float64()), ("kind", pa.dictionary(pa.int8(), pa.string()))])


def batch(first, values):
    codes = pa.array([0, len(values) - 1], pa.int8())
    columns = [pa.array([first, first + 1]), pa.DictionaryArray.from_arrays(codes, pa.array(values))]
    return pa.record_batch(columns, schema=schema)


with pa.ipc.new_stream("data/replaced.arrow", schema) as writer:
    writer.write_batch(batch(0.0, ["a", "b"]))
    writer.write_batch(batch(2.0, ["b", "c"]))
    writer.write_batch(batch(4.0, ["c", "a", "b"]))
options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
with pa.ipc.new_stream("data/extended.arrow", schema, options=options) as writer:
    writer.write_batch(batch(0.0, ["a", "b"]))
    writer.write_batch(batch(2.0, ["a", "b", "c"]))
