"""The LMDB store: all processes of one machine count together in one file, without a server."""
