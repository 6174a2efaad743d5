"""triton: GPU kernels written in Triton, and the backend of user-registered Triton kernels.

Read first: backend.py (the table of kernels), then rows.py, products.py, attention.py, each with its checks of specs, its choice of
tiles and its launches. programs.py has the functions that Triton compiles; it imports triton, and the first launch imports it."""
