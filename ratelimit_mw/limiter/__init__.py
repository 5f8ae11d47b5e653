"""The limiter, and the links of the chain in front of its store."""

from .limiter import Limiter

__all__ = ["Limiter"]
