"""The history of a job: the reader's side of its journal, and everything made from it.

`files.py` finds and names the files, `reading.py` turns lines into records, `model.py` folds them
into one `Job` with its incidents, and `goodput.py` accounts for its time; `log_files.py` reads the
logs beside it. The rest are views of
that job: `status/` and `report/` on request, `metrics/` and `notices/` for monitoring.
taskd/manager/history/journal.py writes the files; docs/journal.md describes every kind of entry.
"""
