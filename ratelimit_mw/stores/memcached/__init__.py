"""The Memcached store: any number of servers, no library needed, states behind compare-and-swap and plain counters."""
