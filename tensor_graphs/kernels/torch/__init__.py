"""torch: an optional second CPU backend. Tensors are views of our buffers (no copies); results are copied into given outputs.

Imported only when a plan or a listing asks for it by name: importing torch takes 1.7 s.
"""
