"""The account of a job: what happened, what it cost, and which node or rank is to blame.

`figures.py` has every definition (goodput, cost, MTTR, MTBF) with its formula, `causes.py` says
what a fault's text names, and `account.py` puts the figures together. From that account
`words.py` makes the first sentences, `table.py` the terminal's tables, `plain.py` JSON, `trace.py`
a trace for Perfetto, and `page.py` the HTML page, with the files in `web/`. All of it is pure:
taskd/cli/report.py reads and writes.
"""
