"""`taskd demo`: a small GPT is trained twice, once undisturbed and once with kill -9 of a rank, and
every number is compared.

`train.py` is the training script, a model of what one looks like; `records.py` what the ranks write
down and how it is compared (standard library only); `stage.py` starts, watches and kills the jobs.
What is shown is in `taskd/cli/demo.py`. May import `manager.journal` for its file's name; only
`train.py` imports torch.
"""
