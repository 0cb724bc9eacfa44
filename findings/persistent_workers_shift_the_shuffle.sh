#!/bin/sh
# Whether a DataLoader with persistent workers has begun before decides how it shuffles.
#
# torch 2.13.0, a map-style data set, shuffle=True, a generator of its own. The generator's state is
# taken between two passes. The loader's next pass is compared with the first pass of a new loader,
# built alike, whose generator is given that state:
#   - without workers, and with workers that are not persistent, the order is the same;
#   - with persistent workers it is another one: only the first pass of a loader draws a seed for
#     its workers, from the same generator and before the order, and later passes do not. Where the
#     new loader is begun once before its generator is given the state, the orders are the same.
# So a job that is resumed at the start of a pass from a generator's state that was saved there, as
# checkpoints do, reads another order, without a word. The guess was that this state decides.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.2.6
cat > "$folder/passes.py" <<'PROGRAM'
import torch
from torch.utils.data import DataLoader

CASES = {
    "no workers": ({"num_workers": 0}, True),
    "one worker": ({"num_workers": 1}, True),
    "one persistent worker": ({"num_workers": 1, "persistent_workers": True}, False),
}


def made(more):
    generator = torch.Generator().manual_seed(1)
    more = {**more, "shuffle": True, "generator": generator}
    return DataLoader(list(range(64)), 64, **more), generator


def order(loader):
    return next(iter(loader)).tolist()


if __name__ == "__main__":
    for case, (more, expected) in CASES.items():
        loader, generator = made(more)
        order(loader)
        state = generator.get_state()
        second = order(loader)
        resumed, other = made(more)
        other.set_state(state)
        same = order(resumed) == second
        print(f"{case}: the order of a resumed pass is", "the same" if same else "another one")
        assert same is expected, case
        if not expected:
            begun, other = made(more)
            iter(begun)
            other.set_state(state)
            assert order(begun) == second
            print(f"{case}, begun once before: it is the same")
PROGRAM
"$folder/venv/bin/python" "$folder/passes.py"
