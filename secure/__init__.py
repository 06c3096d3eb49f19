"""Secure aggregation, sans-IO. The only door for outsiders is ``secure.api``; the promise is in ``README.md``."""
