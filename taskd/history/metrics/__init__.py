"""The metrics of a manager, for Prometheus: their values (figures.py, with prometheus_client), and
their HTTP server (endpoint.py, in a separate thread)."""
