"""frontends: readers of data from other libraries: their files of weights, configurations and tokenizers.

In: a model folder (config.json, *.safetensors, a tokenizer), an ONNX file, or arguments of a request.  Out: read-only numpy arrays
that share the file's bytes, frozen configurations, token ids, text.  A fault in a file raises a FileError that names
the file. From FlashInfer (flashinfer/): definitions, kernels and measurements, as graphs and rows of the database.
May import: every room above, records for flashinfer alone.  Never: cli.  Nothing here reaches the network or runs code found in a
folder (chat templates run in a sandbox).
Read first: huggingface/ (model folders), onnx/, text/ (tokenizers and chat templates), flashinfer/, torch/ (modules of PyTorch);
json_settings.py reads JSON files with errors that name the key.
Words: prefix = the common beginning of a checkpoint's tensor names; shard = one file of a set; end ids = token ids that end a text.
"""
