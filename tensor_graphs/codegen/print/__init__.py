"""print: printers of stage programs as source code, C for a processor and CUDA C for a GPU."""
