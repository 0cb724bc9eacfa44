"""The account of a job: what happened, what it cost, and which node or rank is to blame.

`figures.py` has every definition (goodput, cost, MTTR, MTBF) with its formula, `causes.py` reads
causes from a fault's text, `step_times.py` says how long steps take, and `account.py` computes the
account. From it `words.py` makes the
first sentences, `table.py` the terminal's tables, `plain.py` JSON, `trace.py` a trace for Perfetto,
and `page.py` the HTML page, with the files in `web/`. All of it is pure: taskd/cli/report.py reads
and writes, taskd/cli/serve.py serves.
"""
