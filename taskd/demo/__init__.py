"""`taskd demo`: trains a small GPT twice, once undisturbed and once with kill -9 of a rank, and
compares every number.

`train.py` is the training script and an example of one; `records.py` has the ranks' records and
their comparison (standard library only); `stage.py` starts, watches and kills the jobs.
`taskd/cli/demo.py` has the output. May import `manager.journal` for its file's name; only
`train.py` imports torch.
"""
