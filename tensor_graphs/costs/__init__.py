"""costs: the time of a call: under which key it is filed where it was measured, and an estimate where it was not.

In: a signature at concrete sizes, a backend, device constants (measured, or stated priors).  Out: the keys of rows; seconds, which
are estimates and always marked so.
May import: language, meaning, devices, kernels, codegen, records.
"""
