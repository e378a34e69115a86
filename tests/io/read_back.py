"""read_back.py IN OUT: loads a file of weft's with Python's package and writes it anew."""
import sys

from safetensors import safe_open
from safetensors.torch import load_file, save_file

with safe_open(sys.argv[1], "pt") as file:
    metadata = {k: v for k, v in file.metadata().items() if not k.startswith("weft.")}
tensors = load_file(sys.argv[1])
assert len(tensors) == 7, tensors.keys()
save_file(tensors, sys.argv[2], metadata)
