#!/bin/sh
# What state_dict() of torchdata's nodes.Loader does to the load_state_dict() that follows it.
#
# torchdata 0.11.0, torch 2.13.0, 12 shuffled rows in batches of 4. The state is of a loader that
# had given 1 of its 3 batches.
#   - Loaded into a new loader, it moves the first pass: 2 batches are left, those of the source.
#   - Loaded into a new loader that was asked for its own state before, it moves nothing: the first
#     pass is whole, and the second one begins in the middle. state_dict() has begun a pass, which
#     the next iter() gives whatever was loaded in between.
#   - A state that was taken at the end of a pass moves the next one to another order than the
#     source's next pass has, from the same generator: the sampler is begun twice, once to see that
#     nothing is left. Loading nothing gives the right order.
# A program that saves a loader's state once before it resumes (a check that it can be saved is
# enough) trains on the whole epoch again, and leaves out the begin of the next one, without a word.
# The guess was that a state moves the pass that comes next, and that one from the end of a pass is
# the begin of the next.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torchdata==0.11.0 torch==2.13.0 numpy==2.2.6
cat > "$folder/asked.py" <<'PROGRAM'
import torch
import torchdata.nodes as nodes
from torch.utils.data import RandomSampler


def made():
    generator = torch.Generator().manual_seed(2)
    rows = nodes.SamplerWrapper(RandomSampler(range(12), generator=generator))
    return nodes.Loader(nodes.Batcher(rows, 4)), generator


source, _ = made()
batches = iter(source)
next(batches)
state = source.state_dict()
left = list(batches)

moved, _ = made()
moved.load_state_dict(state)
assert list(moved) == left and len(list(moved)) == 3
print("loaded into a new loader: 2 of 3 batches are left, then whole passes")

asked, _ = made()
asked.state_dict()
asked.load_state_dict(state)
passes = [len(list(asked)) for _ in range(3)]
print("loaded into one that was asked for its state before: passes of", passes)
assert passes == [3, 2, 3]

source, generator = made()
list(source)
state, drawn = source.state_dict(), generator.get_state()
following = list(source)
for loads in (True, False):
    later, generator = made()
    generator.set_state(drawn)
    if loads:
        later.load_state_dict(state)
    same = list(later) == following
    print(f"at the end of a pass, {'state loaded' if loads else 'nothing loaded'}: same {same}")
    assert same is not loads
PROGRAM
"$folder/venv/bin/python" "$folder/asked.py"
