"""The records of a rank, which outlive it: `store.py` and `start.py` (in the node's shared memory),
`sealed.py` (one record as bytes), `dumps.py` (on disk). `taskd.core.job.snapshots` decides which
records are kept."""
