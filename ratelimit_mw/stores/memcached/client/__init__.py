"""Connections to Memcached servers and their protocol."""
