"""costs: what a call takes: under which key that is filed where it was measured, and a guess where it was not.

In: a signature at concrete sizes, a backend, device constants (measured, or stated priors).  Out: the keys of rows; seconds, which
are guesses and always marked so.
May import: language, meaning, devices, kernels, codegen, records.
"""
