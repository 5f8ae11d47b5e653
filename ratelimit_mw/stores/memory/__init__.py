"""The memory store. It counts for the threads of one process."""
