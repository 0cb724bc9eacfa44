"""What people and settings ask of a running job: `requests.py` (operators' requests), `leaving.py`
and `saving.py` (the state is saved, because the job leaves or while it trains), `intervals.py`
(that, at intervals), `tasks.py` (work on devices while all ranks are paused), `profiling.py`."""
