"""devices: where things live and what builds for them: the fingerprint of this machine, and its C compiler.

In: nothing but the machine.  Out: an `Environment` under which measurements are valid; compiled libraries in a private folder.
May import: language, meaning.  Nothing heavy is imported here.
Read first: environment.py (what makes two machines different), toolchain.py (compiling, caching, refusing what is not ours).
"""
