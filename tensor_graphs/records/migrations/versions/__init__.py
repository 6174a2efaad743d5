"""versions: vNNNN_what_changes.py, in order; a file that has been released is never edited."""
