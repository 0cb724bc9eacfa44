"""One job as every part of the coordinator sees it, and the parts that need no incident.

Start with `state.py` (what is known of the job and its ranks). `topology.py` has the nodes, their
ranks and agents; `ladder.py` the strategies for a fault; `elastic.py` who stands in for ranks that
leave; `pause.py` stops all ranks before the same step. What the shells count and keep by: progress
from heartbeats, durations of attempts, the slots of a rank's snapshots, sets of replicas.
"""
