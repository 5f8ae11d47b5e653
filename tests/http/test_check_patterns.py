"""Patterns of real applications: checks after a form is valid, keys set by decorators, outcomes that a view finds."""

from __future__ import annotations
