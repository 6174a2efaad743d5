"""numpy: the plainest backend. Every atomic op, and the composites that have a short numpy form; always available.

In: array views of any strides.  Out: the outputs it is given, written.  Runs on the CPU, with numpy's own threads for products.
"""
