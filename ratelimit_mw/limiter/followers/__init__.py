"""Followers look for the changes that an operator or another process makes: settings, and overrides of clients."""
