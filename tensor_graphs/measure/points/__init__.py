"""points: chooses a kernel's inputs for a comparison: sizes, values, layout of operands; and how much of the range they cover.

Read first: inputs.py; extreme values are in extremes.py, real ones in descriptors.py, the coverage of a verdict in coverage.py."""
