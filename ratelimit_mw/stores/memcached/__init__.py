"""The Memcached store: states behind compare-and-swap, and counters. It needs no library."""
