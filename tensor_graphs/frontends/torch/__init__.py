"""torch: functions of torch by name, converted to graphs.

Read first: functions.py, a table from the name of a torch function to the function that builds its nodes.
"""
