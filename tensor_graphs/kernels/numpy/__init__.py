"""numpy: the plainest backend. It has every atomic op, and the composites with a short numpy form; it is always available.

In: array views of any strides.  Out: preallocated outputs, written.  Runs on the CPU; numpy's own threads do matrix products."""
