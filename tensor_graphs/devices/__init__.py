"""devices: where memory is and what compiles for it: memory behind interfaces, the fingerprint of this machine, its C compiler,
tensors in files.

In: nothing but the machine, and files of tensors.  Out: an `Environment` under which measurements are valid; compiled libraries in
a private folder; arrays that share a file's bytes.
May import: language, meaning.  Nothing heavy is imported here.
Read first: device.py (the interface), device_registry.py (the registry of devices), environment.py (what makes two machines
different), toolchain.py (compiling), checksummed_files.py (refusing damaged files), safetensors.py (weights in files, mapped).
"""
