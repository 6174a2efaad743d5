"""print: a program of loops as text, C for a processor and CUDA C for a GPU."""
