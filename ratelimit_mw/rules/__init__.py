"""Which limits apply to a request."""
