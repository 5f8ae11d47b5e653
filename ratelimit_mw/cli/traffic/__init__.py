"""``ratelimit-mw traffic``: show the counts of a traffic log, and import access logs."""
