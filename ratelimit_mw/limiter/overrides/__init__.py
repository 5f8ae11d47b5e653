"""Other limits for single clients, kept in the store, which all processes follow."""
