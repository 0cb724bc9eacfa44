"""What a rank leaves behind: `store.py` (in the node's shared memory), `sealed.py` (one record as
bytes), `dumps.py` (on disk). Which record is kept when is decided in `taskd.core.snapshots`."""
