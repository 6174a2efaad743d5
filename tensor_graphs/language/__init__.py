"""language: what a program says. Tensors, the 27 atomic ops, composites made of them, graphs, their text and JSON forms, gradients.

In: calls of the user (`tg.input`, operators, composites) or a `.tg` text.  Out: an immutable, hash-consed `Graph`.
Nothing here computes a value: what a graph means is `meaning`'s business, who can run it is `kernels`'.
May import: nothing but numpy, ml_dtypes and (lazily) sympy.
Read first: node.py (what a node is), atomic.py (the op table), composite.py (how named ops are defined), then composites/.
Words: node = one application of an op; leaf = input, parameter, state or constant; attribute = what is part of an op's identity.
"""
