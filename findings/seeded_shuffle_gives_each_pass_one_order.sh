#!/bin/sh
# A shuffle of webdataset that has a seed gives every pass the same order.
#
# webdataset 1.0.2, eight shards, three passes over one data set:
#   - WebDataset(shardshuffle=100), with the seed that it draws where it is made: three times the
#     same order of shards;
#   - with seed=1, and shuffle(16, seed=1) of samples: three times the same order;
#   - shuffle(16) of samples without a seed, which takes the process's number and the time: three
#     orders;
#   - detshuffle=True: three orders, and the same three in a data set that is made anew with that
#     seed.
# So a job that is made reproducible by a seed trains on one order in all epochs, without a word.
# The guess was that a seed decides the first order, and that later passes go on from it, as torch's
# generators do.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet webdataset==1.0.2 numpy==2.2.6 braceexpand==0.1.7 \
    pyyaml==6.0.3
cat > "$folder/orders.py" <<'PROGRAM'
import io
import os
import sys
import tarfile

import webdataset

os.chdir(sys.argv[1])
URLS = [f"{shard}.tar" for shard in range(8)]
for url in URLS:
    with tarfile.open(url, "w") as tar:
        for number in range(2):
            entry = tarfile.TarInfo(f"{url[0]}{number}.txt")
            entry.size = 1
            tar.addfile(entry, io.BytesIO(url[:1].encode()))


def orders(data):
    return ["".join(sample["txt"].decode() for sample in data) for _ in range(3)]


def made(**more):
    return webdataset.WebDataset(URLS, shardshuffle=100, **more)


plain = webdataset.WebDataset(URLS, shardshuffle=False)
CASES = {
    "shards": (made(), 1),
    "shards, seed=1": (made(seed=1), 1),
    "samples, seed=1": (plain.shuffle(16, seed=1), 1),
    "samples": (webdataset.WebDataset(URLS, shardshuffle=False).shuffle(16), 3),
    "shards, detshuffle": (made(detshuffle=True, seed=1), 3),
}
for case, (data, expected) in CASES.items():
    found = len(set(orders(data)))
    print(f"{case}: {found} in three passes")
    assert found == expected, case
assert orders(made(detshuffle=True, seed=1)) == orders(made(detshuffle=True, seed=1))
PROGRAM
"$folder/venv/bin/python" -W ignore "$folder/orders.py" "$folder"
