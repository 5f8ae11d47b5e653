"""The Redis store: one script call for all hits of a request, in the server's own time. Valkey speaks the same."""
