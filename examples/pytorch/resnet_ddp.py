"""Trains a ResNet by several processes: torchrun --nproc-per-node 2 resnet_ddp.py. The batch is that of all ranks."""
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler

import common
from resnet import OPTIONS, images, load_weights, make_schedule, resnet, test


def make_model(options, classes):
    model = resnet(options.depth, num_classes=classes, zero_init_residual=options.zero_init_residual)
    model.to(options.device, options.dtype)  # before the weights are loaded, which f32 would round
    if options.weights:
        load_weights(model, options.weights)
    if options.freeze == "all-but-fc":
        model.requires_grad_(False)
        model.fc.requires_grad_(True)
        model.eval()  # the running statistics do not change either
    return model


def train_on_ranks(options, model, ranks_model, train_set, test_set, divided=True):
    """Trains `model`, called as `ranks_model`. `divided`: each rank tests it with batches of its own."""
    if dist.get_rank() == 0:
        print(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(trainable, lr=options.lr, momentum=0.9, weight_decay=1e-4)
    saved = common.whole(model, sgd)
    schedule = make_schedule(options.schedule, sgd, options.epochs)
    sampler = DistributedSampler(train_set, shuffle=options.shuffle)
    loader = DataLoader(train_set,
                        batch_size=options.batch_size,
                        sampler=sampler,
                        num_workers=options.workers,
                        pin_memory=options.device.type == "cuda")
    test_loader = DataLoader(common.test_part(test_set, options, options.batch_size),
                             batch_size=options.batch_size, num_workers=options.workers)

    recorder = common.Recorder(options)
    recorder.resume(*saved, schedule)

    def test_model():  # with the running statistics of the first rank, whose model is saved
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
        for name, value in test(model, test_loader, options.device, divided).items():
            recorder.test(name, value)

    for epoch in recorder.epochs():
        sampler.set_epoch(epoch)
        for x, label in recorder.batches(loader):
            x = x.to(options.device, non_blocking=True)
            label = label.to(options.device, non_blocking=True)
            sgd.zero_grad()
            loss = F.cross_entropy(ranks_model(x), label)
            loss.backward()
            sgd.step()
            recorder.step(loss)
        if recorder.position() == 0:  # the epoch is complete
            schedule.step()
            test_model()
        recorder.save(*saved, schedule)
    if recorder.interrupted:
        raise SystemExit(130)
    if recorder.position() > 0:
        test_model()
    recorder.finish(saved[0])
    dist.destroy_process_group()


def main(options):
    common.init_ranks(options)
    options.batch_size //= dist.get_world_size()
    options.workers = -(-options.workers // dist.get_world_size())
    train_set, test_set, classes = images(options)
    model = make_model(options, classes)
    if options.sync_bn:  # PyTorch has it only for GPUs
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    train_on_ranks(options, model, torch.nn.parallel.DistributedDataParallel(model), train_set, test_set)


if __name__ == "__main__":
    sync_bn = {"action": "store_true", "help": "batch norms take the statistics of all ranks' batches"}
    common.run(main,
               "resnet_ddp",
               __doc__,
               lr=0.0125,  # 0.1 for 256 images
               data="fake",
               options=OPTIONS | {"--sync-bn": sync_bn})
