"""The vendor's terms: fault codes and levels of devices (`faults/`, `levels.py`), and ClusterD's
signals and reports (`clusterd/`). `core` has its own: demands on a job (core/demand.py) and an
external advisor (core/advice.py)."""
