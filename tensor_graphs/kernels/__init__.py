"""kernels: who can run one piece of a graph. One folder per backend; a kernel declares what it computes and what it accepts.

In: a `Spec` (op, attributes, types).  Out: a `Call`: plain data for the runtime (a native symbol, or a Python function on arrays).
Nothing here chooses: whether a kernel may run is `measure`'s verdict, whether it does is `choice`'s decision.
May import: language, meaning, devices.
Read first: kernel.py (what a kernel is), registry.py (which there are), then numpy/ (the plainest backend).
Words: spec = what a kernel is built for; call = a kernel bound to a spec.
"""
