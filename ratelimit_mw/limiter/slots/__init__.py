"""The slots of requests that run at the same time: how to take them, wait for them and return them."""
