"""points: a kernel's inputs where it is compared: sizes, values, layout of operands, and how much of the range that covers.

Read first: inputs.py; extreme values are in extremes.py, real ones in descriptors.py, the coverage of a verdict in coverage.py."""
