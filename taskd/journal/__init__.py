"""The journal of a job, as a reader sees it: where its files are, and what its lines say.

`files.py` finds and names the files, `reading.py` turns lines into records and tolerates what it
does not know, `phases.py` and `goodput.py` work out what the time went to. taskd/manager/journal.py
writes them; docs/journal.md describes every kind.
"""
