"""huggingface: reads model folders in the format of transformers.

In: a folder (config.json, *.safetensors).  Out: facts of a model family, its graph, and weights that share the file's bytes.
Read first: families.py (one row per model family), then config.py, names.py (names of tensors) and load.py.
"""
