"""``ratelimit-mw demo``: a real server, real traffic, and a report."""
