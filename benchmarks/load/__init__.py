"""Limits that follow the load, in simulated time."""
