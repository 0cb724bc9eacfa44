"""What has happened to a job: the reader's side of its journal, and everything made from it.

`files.py` finds and names the files, `reading.py` turns lines into records, `model.py` folds them
into one `Job` with its incidents, and `goodput.py` says what its time went to. The rest are views
of that job: `status/` and `report/` for who asks, `metrics/` and `notices/` for who watches.
taskd/manager/history/journal.py writes the files; docs/journal.md describes every kind of entry.
"""
