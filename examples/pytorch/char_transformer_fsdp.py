"""Trains the transformer by several processes, each of which keeps a part of every parameter: torchrun
--nproc-per-node 2 char_transformer_fsdp.py. With another --strategy it keeps more."""
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import common
from char_transformer import DEFAULTS, OPTIONS, make_model, next_character_loss, read_parts, train_on_ranks

STRATEGY = {"choices": ("fsdp", "zero2", "ddp"), "default": "fsdp",
            "help": "what each rank keeps a part of; fsdp: parameters, gradients and the optimizer's state; zero2: the "
                    "last two; ddp: nothing"}


def engine_of(model, blocks, strategy):
    """What trains the model on several ranks: itself, cut, each block by itself, or DistributedDataParallel."""
    if strategy == "ddp":
        return DistributedDataParallel(model)
    how = {"reshard_after_forward": False} if strategy == "zero2" else {}
    for block in blocks:
        fully_shard(block, **how)
    return fully_shard(model, **how)


def main(options):
    common.init_ranks(options)
    alphabet, train, test = read_parts(options)
    model = make_model(alphabet, options)
    ranks_model = engine_of(model, model.blocks, options.strategy)
    train_on_ranks(options, model, lambda x, y: next_character_loss(ranks_model, x, y),
                   DistributedSampler(train, shuffle=options.shuffle), train, test)


if __name__ == "__main__":
    common.run(main, "char_transformer_fsdp", __doc__, **DEFAULTS, options=OPTIONS | {"--strategy": STRATEGY})
