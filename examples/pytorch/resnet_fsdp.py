"""Trains a ResNet by several processes, each of which keeps a part of every parameter: torchrun --nproc-per-node 2
resnet_fsdp.py. With another --strategy it keeps more."""
import common
from char_transformer_fsdp import STRATEGY, engine_of
from resnet import OPTIONS, images
from resnet_ddp import make_model, train_on_ranks


def main(options):
    common.init_ranks(options)
    train_set, test_set, classes = images(options)
    model = make_model(options, classes)
    blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    ranks_model = engine_of(model, blocks, options.strategy)
    # All ranks take all batches of the test: each has a part of every call.
    train_on_ranks(options, model, ranks_model, train_set, test_set, divided=False)


if __name__ == "__main__":
    common.run(main,
               "resnet_fsdp",
               __doc__,
               lr=0.0125,  # 0.1 for 256 images
               data="fake",
               options=OPTIONS | {"--strategy": STRATEGY})
