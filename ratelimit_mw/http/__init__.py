"""HTTP for every adapter: client IP addresses, features, headers and rejections."""
