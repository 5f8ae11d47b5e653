"""Finds the route of an ASGI request, and the marks on its view."""
