"""Threads, event loops, forks and files, as all parts of the package use them. Knows nothing of limits."""
