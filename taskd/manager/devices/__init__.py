"""The devices of the manager's job: what is known of them and what follows (`state.py`), and
device-info by the Kubernetes API (`node_info.py`)."""
