#!/bin/sh
# What load_state_dict() of a streaming data set does to the passes after the one that it resumes.
#
# datasets 5.2.0, an IterableDataset of 20 rows in batches of 4. A data set is given the state of
# another one that had yielded 2 of its 5 batches.
#   - Its first pass yields the 3 batches that are left, as the documentation says.
#   - Each later pass yields the same 3: it begins in the middle again, for as long as the object
#     lives, and no method takes the state back. Loading an empty dict does.
#   - Loaded during a pass, the state leaves that pass alone and moves the next.
# A loop over epochs that resumes in its second one trains on the tail of the data from then on,
# without a word, and on one rank alone if only that was resumed. The guess was that a state moves
# the pass that comes next.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0 numpy==2.2.6
cat > "$folder/moved.py" <<'PROGRAM'
from datasets import Dataset


def made():
    rows = Dataset.from_dict({"x": list(range(20))})
    return rows.to_iterable_dataset(num_shards=4).batch(4)


def first(passes):
    return [batch["x"][0] for batch in passes]


whole, left = [0, 4, 8, 12, 16], [8, 12, 16]
source, moved = made(), made()
batches = iter(source)
next(batches), next(batches)
moved.load_state_dict(source.state_dict())
for number in range(3):
    found = first(moved)
    print(f"pass {number} after load_state_dict(): {len(found)} of 5 batches, from row {found[0]}")
    assert found == left
moved.load_state_dict({})
found = first(moved)
print(f"after load_state_dict({{}}): {len(found)} of 5 batches")
assert found == whole
batches = iter(moved)
next(batches)
moved.load_state_dict(source.state_dict())
assert first(batches) == whole[1:] and first(moved) == left
print("loaded during a pass: that pass is whole, the next one begins in the middle")
PROGRAM
"$folder/venv/bin/python" "$folder/moved.py"
