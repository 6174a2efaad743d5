"""measure: one kernel is run on drawn inputs, compared with the oracle and timed; what comes out is a verdict.

In: a kernel, a signature, sizes.  Out: a Verdict, traces; what the device itself delivers.
Read first: inputs.py (what kernels are fed; extreme values are extremes.py's, real ones descriptors.py's, what a verdict has to
cover is cover.py's; of a cache that was written to only rows are kept, by updated_rows.py), bench.py (how a kernel is run and
timed), judge.py (verdicts), comparison.py (on many kernels at once), blocks.py and weighing.py (what claimed times say), clock.py
(which clock), reference_stream.py (which runs count: those that no neighbour slowed), deployed.py (whole paths), speeds.py and
calibration.py (how fast the device itself is).
"""
