"""proof: verdicts on two programs being the same function: proved, refuted by inputs, tested only, or unknown.

In: two Graphs.  Out: a Verdict; a fingerprint.  Not needed to compile: rules and recipes are proved before they are used.
May import: language, meaning.
Read first: equality.py (verdict), sizes.py (sizes compared), fingerprint.py (points), finite_field.py (residues); docs/equality.md.
Words: point, lane, choice = docs/glossary.md.
"""
