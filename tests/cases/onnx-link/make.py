from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper, numpy_helper

Path("data").mkdir()
pq.write_table(pa.table({"x": pa.array([1.0, 2.0], pa.float32())}), "data/a.parquet")
Path("model").mkdir()
weights = numpy_helper.from_array(np.ones((1, 1), "f4"), "w")
takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1])
gives = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["score"])], "g", [takes], [gives], [weights])
made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
onnx.save(made, "model/model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
Path("secret").write_bytes(b"abcd")
Path("model/weights").unlink()
Path("model/weights").symlink_to("../secret")
