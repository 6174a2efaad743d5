"""torch: an optional second CPU backend. Tensors are views of the arrays (no copies); results are copied into the outputs.

torch is imported only when a plan or a listing requests the backend by name, as that takes 1.7 s."""
