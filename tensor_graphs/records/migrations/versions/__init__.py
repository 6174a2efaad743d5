"""versions: migrations vNNNN_what_changes.py, in order; a released file is never edited."""
