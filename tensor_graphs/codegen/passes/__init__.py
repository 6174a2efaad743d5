"""passes: a program of stages in, a program that means the same out, whose loops run faster or lose fewer digits."""
