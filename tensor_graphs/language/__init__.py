"""language: how a program is written down. Tensors, the 27 atomic ops, composites, graphs, their text and JSON forms, gradients.

In: calls of the user (`tg.input`, operators, composites) or a `.tg` text.  Out: an immutable, hash-consed `Graph`.
Nothing in this package computes a value: `meaning` computes what a graph means, and `kernels` lists the code that can run it.
May import: nothing but numpy, ml_dtypes and (lazily) sympy.
Read first: node.py (what a node is), atomic.py (the op table), composite.py (how named ops are defined), then composites/.
Words: node = one application of an op; leaf = input, parameter, state or constant; attribute = what is part of an op's identity.
"""
