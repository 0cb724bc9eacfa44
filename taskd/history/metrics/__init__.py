"""The metrics of a manager, for Prometheus: what they count (figures.py, with prometheus_client),
and how they are served (endpoint.py, in a thread of its own)."""
