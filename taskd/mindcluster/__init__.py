"""The vendor's terms: fault codes and levels of devices (`faults/`, `levels.py`), and ClusterD's
signals and reports (`clusterd/`). `core` has its own: what is asked of a job (core/demand.py), and
that somebody else may decide (core/advice.py)."""
