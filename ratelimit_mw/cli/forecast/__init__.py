"""``ratelimit-mw forecast``: the requests of the next day or week, from a log, and limits that fit below them."""
