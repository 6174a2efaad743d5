"""passes: transformations of stage programs that keep the meaning, for faster loops or fewer lost digits."""
