"""triton: GPU kernels written in Triton, and the backend of user-registered Triton kernels.

Read first: backend.py (the table of kernels), then rows.py, products.py, attention.py, each with its checks of specs, its choice of
tiles and its launches. jit_functions.py has the functions that Triton compiles; only a launch imports it, as it imports triton."""
