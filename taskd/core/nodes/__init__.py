"""Which agent has which node: `admission.py` (agents and standbys that come, and their loss),
`switch.py` (a node that still works moves to another agent), `growth.py` (an absent node comes
back), `pods.py` (waiting for the pod that replaces a lost node), `fencing.py` (agents that leave by
order), `succession.py` and `claims.py` (what a new manager finds)."""
