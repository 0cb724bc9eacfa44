"""The metrics of a manager, for Prometheus: which there are (table.py), what they count
(figures.py, plain numbers), how they are written (exposition.py, with prometheus_client) and served
(endpoint.py, in a thread of its own)."""
