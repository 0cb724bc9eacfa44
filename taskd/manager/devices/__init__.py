"""The devices of the job: their state and its consequences (`state.py`), and device-info from the
Kubernetes API (`node_info.py`)."""
