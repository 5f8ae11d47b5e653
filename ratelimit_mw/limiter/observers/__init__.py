"""The events of concluded requests, and the observers that count, record and log them."""
