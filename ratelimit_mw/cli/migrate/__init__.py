"""``ratelimit-mw migrate``: the settings and decorators that replace those of another package."""
