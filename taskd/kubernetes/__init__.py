"""What taskd does with the Kubernetes API, if TASKD_KUBERNETES is on: it follows the labels of the
job (`following.py`), the manager in charge has a Lease that says where it is (`lease.py`), and asks
for a pod beside that of a node that is to move (`standbys.py`). If TASKD_DEVICE_INFO asks for it,
it follows device-info (`configmaps.py`) and writes devices that taskd has separated there
(`separations.py`).

Nothing waits for the API: a thread for each, calls with a limit, and an API that is away costs one
warning. The rights that are needed are in examples/kubernetes/role.yaml, role-standbys.yaml and
role-device-info.yaml, and no others are used.
Needs the official client.
"""
