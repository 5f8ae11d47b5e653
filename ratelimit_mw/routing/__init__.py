"""The routes of a Starlette or FastAPI application, read once: which view answers a request, and what it is marked."""
