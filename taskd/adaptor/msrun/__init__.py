"""msrun with taskd inside. msrun registers four functions that control its workers; from then on
taskd's agent (`agent.py`) starts, watches, kills and restarts them (`workers.py`), and replaces the
scheduler (`scheduler.py`). `in_worker` runs in each worker.

Imports neither torch nor mindspore.
"""
