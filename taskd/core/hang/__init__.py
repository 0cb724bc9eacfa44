"""Ranks that are alive and make no progress: `hang_detector.py` asks them twice and judges by
`progress_probe.py` (which rank is at fault), `standstill.py` (whether the whole job is stuck)
and `evenness.py` (whose collectives are behind)."""
