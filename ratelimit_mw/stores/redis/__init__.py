"""The Redis store. Valkey works the same."""
