"""`taskd demo`: a small GPT is trained twice, once undisturbed and once with kill -9 of a rank, and every number is compared.

`train.py` is the training script, a model of what one looks like; `records.py` what the ranks write down and how it is compared (pure);
`stage.py` starts, kills and watches the jobs. What is printed is in `taskd/cli/demo.py`. May import `protocol`, `manager.journal` and torch (`train` only).
"""
