"""triton: kernels for a GPU that are written in Triton, and the backend of those that others write in it.

Read first: backend.py (the table of kernels), then rows.py, products.py, attention.py, each with what it accepts, the tiles it
chooses and the launch. programs.py holds the functions that Triton compiles; it imports triton, and the first launch imports it.
"""
