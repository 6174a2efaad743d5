"""costs: what a call will probably take, where nothing was measured. Guesses are always marked as guesses.

In: a signature at concrete sizes, a backend, device constants (measured, or stated priors).  Out: seconds.
May import: language, meaning, devices, kernels, codegen, records.
"""
