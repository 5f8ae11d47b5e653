"""``ratelimit-mw capacity``."""
