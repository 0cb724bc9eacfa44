"""What people and settings ask of a running job: `requests.py` (operators' requests), `leaving.py`
and `saving.py` (save the state, before the job leaves or while it trains), `intervals.py` (save it
periodically), `tasks.py` (work on devices while all ranks are paused), `profiling.py`."""
