"""Decides requests: the limiter, and the stores that stand in front of the store."""

from .limiter import Limiter

__all__ = ["Limiter"]
