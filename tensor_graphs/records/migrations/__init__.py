"""migrations: the history of the schema, one file per step in versions/, run by `database.open_database`, never by
hand."""
