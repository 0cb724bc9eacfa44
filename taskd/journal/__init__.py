"""The journal of a job, as a reader sees it: where its files are, and what its lines say.

`files.py` finds and names the files, `reading.py` turns lines into records and tolerates what it
does not know. taskd/manager/journal.py writes them; docs/journal.md describes every kind.
"""
