"""The limiter, and the parts of a process in front of a store that it shares."""
