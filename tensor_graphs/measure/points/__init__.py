"""points: chooses a kernel's inputs for a comparison: sizes, values, layout of operands; and how much of the range they cover.

Read first: inputs.py, point_plan.py (which points a verdict covers), extremes.py (values), input_descriptors.py (real values)."""
