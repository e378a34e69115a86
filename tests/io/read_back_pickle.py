"""read_back_pickle.py IN OUT: loads a file of weft's with torch.load and saves it anew."""
import sys

import torch

value = torch.load(sys.argv[1], weights_only=True)
assert isinstance(value, dict), type(value)
state = value["state"]
assert state["tied"].data_ptr() == state["weight"].data_ptr()
assert state["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
assert value["numbers"] == [1, -70000, 2**40, 0.1, None, True, b"\x00\xff", (1, 2), {3}], value
assert value["many"] == [list(range(2500)), {i: -i for i in range(2500)}]
assert value["ordered"]._metadata == {"": {"version": 1}}
assert value[7] == "grüß"
torch.save(value, sys.argv[2])
