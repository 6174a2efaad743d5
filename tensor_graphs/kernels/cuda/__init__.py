"""cuda: kernels that are written by hand for NVIDIA's GPUs, in addition to those that codegen writes."""
