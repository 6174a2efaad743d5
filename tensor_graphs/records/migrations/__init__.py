"""migrations: the history of the schema, a file for each step in versions/; `database.open_database` runs them, nobody else."""
