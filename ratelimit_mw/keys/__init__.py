"""Features and keys: the values that a rule counts by."""
