"""kernels: implementations of ops and pieces of graphs, one folder per backend. A kernel declares its op and the specs it accepts.

In: a `Spec` (op, attributes, types).  Out: a `Call`: plain data for the runtime (a native symbol, or a Python function on arrays).
This package makes no choice: `measure` decides whether a kernel may run, `choice` decides whether it does.
May import: language, meaning, devices.
Read first: kernel.py (the class Kernel), registry.py (the list of kernels), then numpy/ (the plainest backend).
Words: spec = op, attributes and types that a kernel is built for; call = a kernel bound to a spec."""
