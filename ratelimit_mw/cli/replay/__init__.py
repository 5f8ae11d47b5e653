"""Recorded requests, decided by rules at the times of the log: ``ratelimit-mw replay`` and ``ratelimit-mw diff``."""
