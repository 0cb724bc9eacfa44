#!/bin/sh
# How often an optimizer's step hooks run depends on which other optimizers the process has made.
#
# torch 2.13.0. A class derived from torch.optim.SGD whose step() calls SGD's, with one pre-hook and
# one post-hook of an instance. One call of step()
#   - runs each hook once in a fresh process,
#   - runs each hook twice once anything in the process, such as a library's warm-up, has made one
#     plain SGD, before or after: making an optimizer wraps the `step` of its exact class, for good,
#     and the wrapper of the base class runs the hooks of whatever instance it is given.
# A hook that scales, clips or counts then does so twice, without a word: two programs with the same
# lines of training compute other numbers. The guess was that hooks run once per step(), whatever
# else the process has made.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.2.6
cat > "$folder/hooks.py" <<'PROGRAM'
import subprocess
import sys

import torch

CASES = {
    "alone": (1, 1),
    "an SGD was made before": (2, 2),
    "an SGD was made after": (2, 2),
    "an Adam was made before": (1, 1),
}


class Mine(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def calls(case):
    before, after = [], []
    weight = torch.nn.Parameter(torch.ones(1))
    if case == "an SGD was made before":
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    if case == "an Adam was made before":
        torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    mine = Mine([weight], lr=0.1)
    mine.register_step_pre_hook(lambda *given: before.append(1))
    mine.register_step_post_hook(lambda *given: after.append(1))
    if case == "an SGD was made after":
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    weight.grad = torch.ones(1)
    mine.step()
    return len(before), len(after)


if len(sys.argv) > 1:
    print(*calls(sys.argv[1]))
else:
    for case, expected in CASES.items():
        command = [sys.executable, __file__, case]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        print(f"{case}: pre-hook and post-hook ran {found.strip()} times in one step()")
        assert found.split() == [str(n) for n in expected], "torch behaves otherwise now"
PROGRAM
"$folder/venv/bin/python" "$folder/hooks.py"
