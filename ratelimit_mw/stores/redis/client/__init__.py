"""Connections to Redis servers."""
