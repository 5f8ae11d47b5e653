"""The PostgreSQL store: all machines of an application count together in one table."""
