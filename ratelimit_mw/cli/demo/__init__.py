"""``ratelimit-mw demo``: a real server, real traffic, and a table of the allowed and rejected requests."""
