"""devices: where things live and what builds for them: memory behind doors, the fingerprint of this machine, its C compiler,
tensors in files.

In: nothing but the machine, and files of tensors.  Out: an `Environment` under which measurements are valid; compiled libraries in
a private folder; arrays that share a file's bytes.
May import: language, meaning.  Nothing heavy is imported here.
Read first: device.py (the doors), known.py (which devices there are), environment.py (what makes two machines different),
toolchain.py (compiling), sealed_files.py (refusing what is damaged), safetensors.py (weights in files, mapped).
"""
