"""cuda: hand-written CUDA kernels for NVIDIA's GPUs, in addition to those that codegen generates."""
