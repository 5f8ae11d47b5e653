"""The LMDB store: all worker processes of one machine count together, exactly, without a server, across restarts."""
