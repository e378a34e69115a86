"""read_slices.py INDEX OUT: loads the files of an index of weft's, as transformers does, into one."""
import json
import os
import sys

from safetensors.torch import load_file, save_file

with open(sys.argv[1], encoding="utf-8") as file:
    index = json.load(file)
tensors = {}
for name in sorted(set(index["weight_map"].values())):
    loaded = load_file(os.path.join(os.path.dirname(sys.argv[1]), name))
    assert all(index["weight_map"][key] == name for key in loaded), name
    tensors |= loaded
assert tensors.keys() == index["weight_map"].keys(), index
assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors.values()), index
save_file(tensors, sys.argv[2])
