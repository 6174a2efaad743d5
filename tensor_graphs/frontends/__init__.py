"""frontends: what comes from elsewhere — weights, configurations and tokenizers in files that other libraries write.

In: a model folder (config.json, *.safetensors, a tokenizer), or arguments of a request.  Out: read-only numpy arrays
that share the file's bytes, frozen configurations, token ids, text.  Whatever is wrong with a file is a FileError that
names it. From FlashInfer (flashinfer/): definitions, kernels and measurements, as graphs and rows of the database.
May import: every room above, records for flashinfer alone.  Never: cli.  Nothing here reaches the network or runs code found in a
folder (chat templates run in a sandbox).
Read first: families.py (the rows: one for each family of models, names of its tensors included), checkpoint_names.py (how such
names are looked up in files), huggingface_folder.py (what a folder says), huggingface.py (weights), tokenizer.py (text),
sampling.py (next token, and the options for it).
Words: prefix = what stands before a checkpoint's tensor names; shard = one file of a set; end ids = token ids that end a text.
"""
