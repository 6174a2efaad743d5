"""costs: estimates of the time of a call, and the keys under which measured times are filed.

In: a signature at concrete sizes, a backend, device constants (measured or assumed).  Out: keys of rows in the database, and
seconds that are always marked as estimates.
May import: language, meaning, devices, kernels, codegen, records.
"""
