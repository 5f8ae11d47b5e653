"""The stores in front of a store: each link of the chain decides what it can, and asks the next one."""
