"""read_slices.py INDEX OUT: loads the files of an index of weft's into one, which three loaders must agree on:
safetensors' for each file, and transformers' two for all of them."""
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig, PreTrainedModel
from transformers.trainer_utils import load_sharded_checkpoint

folder = os.path.dirname(sys.argv[1])
with open(sys.argv[1], encoding="utf-8") as file:
    index = json.load(file)
tensors = {}
for name in sorted(set(index["weight_map"].values())):
    loaded = load_file(os.path.join(folder, name))
    assert all(index["weight_map"][key] == name for key in loaded), name
    tensors |= loaded
assert tensors.keys() == index["weight_map"].keys(), index
assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors.values()), index


class Model(PreTrainedModel):
    """Parameters of these names and shapes."""
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        for name, x in tensors.items():
            module = self
            *path, last = name.split(".")
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module._modules[part]
            module.register_parameter(last, torch.nn.Parameter(torch.full_like(x, -1), requires_grad=False))
        self.post_init()


model = Model(PretrainedConfig())
load_sharded_checkpoint(model, folder)
assert all(torch.equal(x, tensors[name]) for name, x in model.state_dict().items())
# This one gives all tensors one dtype.
whole, info = Model.from_pretrained(folder, config=PretrainedConfig(), dtype=torch.float64, output_loading_info=True)
assert not any(info.values()), info
assert all(torch.equal(x, tensors[name].double()) for name, x in whole.state_dict().items())
save_file(tensors, sys.argv[2])
