"""gguf: models in one GGUF file, read and written.

Read first: architectures.py (metadata and names of tensors as those of a model family), then model.py (the file as a model),
tokenizer.py (text to ids by its metadata), write.py (a folder as a file).
"""
