"""meaning: what a program means: the float64 interpreter, the measure of errors against it, and whether two programs are equal.

In: a Graph, arrays, sizes of dims; two Graphs.  Out: reference values; a Verdict.  The oracle is never a candidate, and no
backend calls it.
May import: language.
Read first: interpreter.py (a graph's value), algebra.py (one op's value), error_measure.py (how far off a result is),
running_error.py (how far rounding alone moves it). Of
equality: equality.py (the verdict), fingerprint.py (agreement at points), finite_field.py (one op's residues), then
counterexample.py, sizes.py, selections.py, degree.py, lanes.py, atoms.py, literals.py, residues.py; docs/equality.md.
Words: real mode = floats are real numbers (float64, never rounded to their dtype); as written = rounded to the dtype at every
node; point, lane, choice = docs/glossary.md.
"""
