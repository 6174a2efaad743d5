"""huggingface: model folders as transformers writes them.

In: a folder (config.json, *.safetensors).  Out: facts of a model family, its graph, and weights that share the file's bytes.
Read first: families.py (a row for each family), then config.py, names.py (names of tensors) and load.py.
"""
