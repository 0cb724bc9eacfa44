"""Uses the Kubernetes API, if TASKD_KUBERNETES is on: follows the labels of the job
(`following.py`), publishes the address of the manager in charge in a Lease (`lease.py`), and
requests a pod beside that of a node that is to move (`standbys.py`). If TASKD_DEVICE_INFO asks for
it, it follows device-info (`configmaps.py`) and writes devices that taskd has separated there
(`separations.py`).

Nothing waits for the API: each user has its own thread, calls have a time limit, and an unreachable
API costs one warning. The rights that are needed are in examples/kubernetes/role.yaml,
role-standbys.yaml and role-device-info.yaml, and no others are used. Needs the official client.
"""
