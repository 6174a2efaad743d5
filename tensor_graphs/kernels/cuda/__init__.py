"""cuda: kernels that are written by hand for NVIDIA's GPUs, beside those that codegen writes."""
