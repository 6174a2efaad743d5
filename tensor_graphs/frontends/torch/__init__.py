"""torch: functions of torch by name, as graphs of ours.

Read first: functions.py, a table from a torch function to what builds it.
"""
