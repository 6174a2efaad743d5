"""onnx: ONNX files as graphs: `tg.from_onnx("model.onnx")` returns the graph and its weights, ready for `tg.compile` and `tg.bind`.

In: a file, or a ModelProto.  Out: an OnnxModel.  Read first: importer.py (the walk over nodes), then ops.py (the table: an op and
the opset from which a row counts -> the function that builds its nodes), with the rows of the files in importer.TABLES; values.py
has values that are known while the graph is built (shapes), tensor_data.py reads stored tensors. An op without a row is computed by
the function that its ONNX schema defines; one that has neither is refused by name.
The package `onnx` is imported when a file is read (the extra `onnx`).
"""
