"""What both programs need beside their training steps: options, images, the books of a run, pictures."""
import argparse
import gzip
import itertools
import json
import math
import os
import signal
import statistics
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Subset

DTYPES = {"f32": torch.float32, "f64": torch.float64}


def run(main, example, description, **defaults):
    """The program: main(options), and a line on stderr for what it cannot read or write."""
    options = parse_options(example, description, **defaults)
    try:
        # autocast's cache would keep the weights of the first step until this scope ends.
        with torch.autocast(options.device.type, torch.bfloat16, enabled=options.amp, cache_enabled=False):
            main(options)
    except OSError as error:
        raise SystemExit(f"{example}: error: {error}") from error


def whole_number(least, most=10**9):
    """An argument's type."""
    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number from {least} to {most}")
        return value
    return parse


def positive(text):
    """An argument's type: a number, or a quotient of two."""
    try:
        above, _, below = text.partition("/")
        value = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0 and below 1e9, like 0.25 or 1/4")
    return value


def device(text):
    """An argument's type."""
    kind, _, index = text.partition(":")
    if kind not in ("cpu", "cuda") or not (index.isdecimal() or text == kind):
        raise argparse.ArgumentTypeError(f"'{text}' is no device; use cpu, cuda or cuda:N")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(f"no device {text}: PyTorch finds {torch.cuda.device_count()} GPUs")
    return torch.device(text)


def parse_options(example, description, epochs=3, batch_size=32, lr=1e-3,
                  data="/usr/share/datasets/fashion-mnist", options={}):
    """The options of the program, with the seed and the number of threads already set; `options` are
    its own, by name the arguments of add_argument."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or cuda:N")
    option("--dtype", choices=DTYPES, default="f32", help="of weights and images")
    option("--amp", choices=("off", "bf16"), default="off", help="bf16: products and convolutions in bf16, weights in f32")
    option("--epochs", type=whole_number(1), default=epochs, help="passes over the training data")
    option("--batch-size", type=whole_number(1, 10**6), default=batch_size, help="images per step")
    option("--lr", type=positive, default=lr, help="learning rate")
    option("--seed", type=whole_number(0, 2**64 - 1), default=0, help="of the weights and the order")
    option("--shuffle", action=argparse.BooleanOptionalAction, default=True, help="visit the images in a new order every epoch")
    option("--workers", type=whole_number(0, 256), default=2, help="processes that load images; 0: none beside the main one")
    option("--threads", type=whole_number(0, 4096), default=0, help="cores for computing; 0: all")
    option("--limit-steps", type=whole_number(0), default=0,
           help="stop after so many steps, those before --resume included, and test with as many batches at most; "
                "0: no limit")
    option("--data", default=data, help="folder of the data set")
    option("--out", default=f"outputs/pytorch/{example}", help="folder for model, pictures and metrics")
    option("--resume", default=None, help="go on from this checkpoint.pt")
    for name, arguments in options.items():
        option(name, **arguments)
    options = parser.parse_args()
    options.example = example
    options.amp = options.amp == "bf16"
    if options.amp and options.dtype != "f32":
        parser.error("--amp bf16 needs --dtype f32")
    options.dtype = DTYPES[options.dtype]
    if options.threads > 0:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    return options


def read_idx(path):
    """The bytes of an IDX file, plain or gzipped, as a uint8 tensor of its shape."""
    if not os.path.exists(path) and not os.path.exists(path + ".gz"):
        raise FileNotFoundError(f"no file {path} or {path}.gz; name a folder of MNIST's IDX files (--data DIR)")
    with open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz") as file:
        data = file.read()
    shape = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=4 + shape.nbytes).reshape(shape).copy())


class Mnist(torch.utils.data.Dataset):
    """Grey images [1,H,W] from 0 to 1, or what the transform makes of them, with labels 0 to 9."""

    def __init__(self, folder, train=True, dtype=torch.float32, transform=None):
        prefix = os.path.join(folder, "train" if train else "t10k")
        self.images = read_idx(prefix + "-images-idx3-ubyte")
        self.labels = read_idx(prefix + "-labels-idx1-ubyte").long()
        self.dtype = dtype
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i].float().div(255).unsqueeze(0)
        if self.transform:
            image = self.transform(image)
        return image.to(self.dtype), self.labels[i]


def random_numbers(state, count):
    """The first numbers of a SplitMix64 stream."""
    z = state + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
    return z ^ (z >> np.uint64(31))


class FakeData(torch.utils.data.Dataset):
    """Made-up images of one shape [C,H,W] with labels, the bytes of weft's data::FakeData."""

    def __init__(self, size, shape, classes, first=0, seed=0, transform=None):
        self.size, self.shape, self.classes = size, shape, classes
        self.first, self.seed, self.transform = first, seed, transform

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        channels, height, width = self.shape
        count = channels * height * width
        numbers = self._numbers(2**62 + self.first + i, 1 + (count + 7) // 8)
        label = int(numbers[0] % np.uint64(self.classes))
        noise = numbers[1:].astype("<u8").view(np.uint8)[:count].reshape(self.shape) % 128
        pattern = (self._numbers(label, channels * 16) % np.uint64(128)).astype(np.uint8).reshape(channels, 4, 4)
        pattern = pattern[:, np.arange(height) * 4 // height][:, :, np.arange(width) * 4 // width]
        image = torch.from_numpy(pattern + noise).float().div(255)
        return self.transform(image) if self.transform else image, label

    def _numbers(self, i, count):
        """A stream for each i."""
        start = [np.array([v & 0xffffffffffffffff], np.uint64) for v in (self.seed, ~i)]
        return random_numbers(random_numbers(start[0], 1) ^ random_numbers(start[1], 1), count)


def init_ranks(options):
    """Meets the other ranks, as torchrun's environment says."""
    if options.device.type == "cuda":
        options.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device.type == "cuda" else "gloo")


def broadcast(module):
    """Copies rank 0's weights and buffers to all ranks."""
    for tensor in module.state_dict().values():
        dist.broadcast(tensor, 0)


def distributed(optimizer):
    """The optimizer as Horovod's DistributedOptimizer, but for what that hides behind backward: step() takes the
    means of all ranks' gradients."""
    def average(*_):
        for group in optimizer.param_groups:
            for weight in group["params"]:
                dist.all_reduce(weight.grad)
                weight.grad /= dist.get_world_size()

    optimizer.register_step_pre_hook(average)
    return optimizer


def ranks():
    """This rank and the number of ranks: 0 and 1 where there are no others."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def test_part(test_set, options, batch_size, divided=True):
    """The first --limit-steps batches of a test set for each rank, or for all ranks alike, or all of it."""
    size = len(test_set)
    batches = options.limit_steps * (ranks()[1] if divided else 1)
    return Subset(test_set, range(min(size, batches * batch_size) if options.limit_steps > 0 else size))


def own_batches(loader):
    """Those of a test set that this rank takes: no image twice."""
    rank, size = ranks()
    return itertools.islice(loader, rank, None, size)


def total(value, device):
    """The sum over all ranks of a number or a tensor."""
    if not dist.is_initialized():
        return value
    total = torch.as_tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total if torch.is_tensor(value) else total.item()


def whole(model, optimizer):
    """A model and its optimizer whose parameters the ranks have in parts, as one process has them, for a Recorder."""
    from torch.distributed.checkpoint import state_dict as dcp
    options = dcp.StateDictOptions(full_state_dict=True)
    return (SimpleNamespace(state_dict=lambda: dcp.get_model_state_dict(model, options=options),
                            load_state_dict=lambda state: dcp.set_model_state_dict(model, state, options=options)),
            SimpleNamespace(name=type(optimizer).__name__,
                            state_dict=lambda: dcp.get_optimizer_state_dict(model, optimizer, options=options),
                            load_state_dict=lambda state: dcp.set_optimizer_state_dict(model, optimizer, state,
                                                                                       options=options)))


def cpu_model():
    with open("/proc/cpuinfo") as file:
        return next((line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")), "")


class Recorder:
    """Keeps the books of a run while the program trains. Of several ranks, all of which call it alike, it notes
    the mean losses, and the first rank writes."""

    def __init__(self, options):
        self.rank, self.ranks = ranks()
        if self.rank == 0:
            os.makedirs(options.out, exist_ok=True)
        self.options = options
        # The part of a checkpoint besides model and parts. `position` is the number of finished
        # batches in this epoch, `order` the generator's state at its beginning.
        self.books = {"losses": [], "names": [], "more_losses": {}, "epochs": [], "position": 0, "seconds": 0.0, "order": None}
        self.waiting = []  # losses still on the device: reading one would wait for its step
        self.step_ms = []
        self.figures = {}  # of the test after the epoch
        self.optimizer = ""
        self.interrupted = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number, frame):
        self.interrupted = True
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process

    def path(self, name):
        return os.path.join(self.options.out, name)

    def resume(self, model, *parts):
        """Goes on from --resume, if it was given. parts: optimizers and schedulers, as in save()."""
        self.optimizer = getattr(parts[0], "name", type(parts[0]).__name__)
        if not self.options.resume:
            return
        checkpoint = torch.load(self.options.resume, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        for part, state in zip(parts, checkpoint["parts"], strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(checkpoint["generator"])
        self.books = checkpoint["books"]
        if self.books["epochs"]:
            self.figures = self.books["epochs"][-1].get("test", {})

    def save(self, model, *parts):
        self._fetch_losses()
        checkpoint = {"model": model.state_dict(), "parts": [part.state_dict() for part in parts],
                      "generator": torch.get_rng_state(), "books": self.books}
        if self.rank > 0:
            return
        torch.save(checkpoint, self.path("checkpoint.tmp"))
        os.replace(self.path("checkpoint.tmp"), self.path("checkpoint.pt"))

    def position(self):
        """Batches done of an epoch that was left early, 0 after a complete one."""
        return self.books["position"]

    def epochs(self):
        """The epochs that are left; ends early like batches()."""
        while len(self.books["epochs"]) < self.options.epochs and not self._should_stop():
            yield len(self.books["epochs"])

    def batches(self, loader):
        """The epoch's batches that are left; ends early at the limit of steps and after SIGINT."""
        books, first, epoch_start = self.books, self.books["position"], time.perf_counter()
        seconds_before = books["seconds"]
        generator = torch.get_rng_state()
        if first > 0:
            torch.set_rng_state(books["order"])
        else:
            books["order"] = generator
        batches = iter(loader)
        if first > 0:  # a DataLoader cannot skip: finished batches are loaded again
            next(itertools.islice(batches, first - 1, first))
            torch.set_rng_state(generator)
        self.step_start = time.perf_counter()
        self.figures = {}
        for batch in batches:
            yield batch
            books["position"] += 1
            books["seconds"] = seconds_before + time.perf_counter() - epoch_start
            if books["position"] * 10 // len(loader) > (books["position"] - 1) * 10 // len(loader):
                self._fetch_losses()
                self._say(f"epoch {len(books['epochs'])}  {books['position']}/{len(loader)}  "
                          f"loss {self._epoch_metrics()['mean_loss']:.4g}")
            if self._should_stop():
                break
        else:
            self._fetch_losses()
            books["epochs"].append(self._epoch_metrics())
            books["position"], books["seconds"] = 0, 0.0

    def step(self, *loss, **losses):
        """To be called once per step, with one loss or with several by name, of which the first is the epoch's."""
        self.books["names"] = list(losses)
        self.waiting.append(torch.stack([loss.detach() for loss in (*loss, *losses.values())]))
        now = time.perf_counter()
        self.step_ms.append((now - self.step_start) * 1e3)
        self.step_start = now

    def test(self, name, value):
        """Notes a figure of a test made after the epoch, and says it. The last ones are those of the run."""
        self.figures[name] = value
        if self.books["position"] == 0:
            self.books["epochs"][-1]["test"] = self.figures
        self._say(f"test {name} {value:.6g}")

    def finish(self, model, test_name=None, test_value=None):
        """Writes model.safetensors, loss.svg and metrics.json."""
        from safetensors.torch import save_file

        if test_name:
            self.test(test_name, test_value)
        self._fetch_losses()
        state = model.state_dict()
        if self.rank > 0:
            return
        options, curves = self.options, {"": self.books["losses"]}
        if self.books["more_losses"]:
            curves = {self.books["names"][0]: curves[""], **self.books["more_losses"]}
        losses = {name: [loss if math.isfinite(loss) else None for loss in curve] for name, curve in curves.items()}
        save_file(state, self.path("model.safetensors"), {"format": "pt"})
        epochs = self.books["epochs"][:]
        if self.books["position"]:  # the limit of steps ended the epoch early
            epochs.append(self._epoch_metrics() | ({"test": self.figures} if self.figures else {}))
        metrics = {
            "example": options.example,
            "device": str(options.device),
            "dtype": "f32" if options.dtype == torch.float32 else "f64",
            "threads": torch.get_num_threads(),
            "seed": options.seed,
            "batch_size": options.batch_size,
            "optimizer": self.optimizer,
            "lr": options.lr,
            "amp": options.amp,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "conv_fp32_precision": "tf32" if torch.backends.cudnn.allow_tf32 else "ieee",
            "world_size": self.ranks,
            **({"backend": dist.get_backend()} if self.ranks > 1 else {}),
            "losses": losses.get("", losses),
            "epochs": epochs,
            "test": self.figures,
            "step_ms_median": statistics.median(self.step_ms) if self.step_ms else 0,
            "train_seconds": sum(epoch["seconds"] for epoch in epochs),
            "cpu": cpu_model(),
            "version": torch.__version__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "commit": os.environ.get("WEFT_COMMIT") or "unknown",
        }
        with open(self.path("metrics.json"), "w") as file:
            json.dump(metrics, file, indent=1)
        loss_picture(self.path("loss.svg"), curves, f"{options.example}: loss per step")
        self._say(f"trained in {metrics['train_seconds']:.1f} s; results in {options.out}")

    def _say(self, line):
        if self.rank == 0:
            print(line, file=sys.stderr)

    def _steps(self):
        return len(self.books["losses"]) + len(self.waiting)

    def _should_stop(self):
        return self.interrupted or 0 < self.options.limit_steps <= self._steps()

    def _fetch_losses(self):
        if self.waiting:
            losses = total(torch.stack(self.waiting), self.options.device) / self.ranks
            first, *more = losses.T.tolist()
            self.books["losses"] += first
            for name, losses in zip(self.books["names"][1:], more):
                self.books["more_losses"].setdefault(name, []).extend(losses)
            self.waiting.clear()

    def _epoch_metrics(self):
        """Of the running epoch."""
        losses, seconds = self.books["losses"][-self.books["position"]:], self.books["seconds"]
        return {"mean_loss": sum(losses) / len(losses), "sum_loss": sum(losses), "seconds": seconds,
                "images_per_second": len(losses) * self.options.batch_size * self.ranks / seconds}


def pyplot():
    """matplotlib.pyplot, or None, saying so, where there is none."""
    try:
        import matplotlib
    except ImportError:
        print("no matplotlib, so no picture", file=sys.stderr)
        return None
    matplotlib.use("agg")
    from matplotlib import pyplot
    return pyplot


def compare_picture(path, inputs, codes, outputs, count=5):
    """Three rows for the first examples: input, code as a strip of coloured cells, reconstruction."""
    plt = pyplot()
    if plt is None:
        return
    codes = codes[:count].float().cpu()
    figure, axes = plt.subplots(3, len(codes), figsize=(2.5 * len(codes), 5.6), height_ratios=[28, 5, 28],
                                squeeze=False, layout="constrained")
    for i, code in enumerate(codes):
        axes[0, i].imshow(inputs[i, 0].float().cpu(), cmap="gray", vmin=0, vmax=1)
        axes[1, i].imshow(code[None], aspect="auto", vmin=codes.min(), vmax=codes.max())
        axes[2, i].imshow(outputs[i, 0].float().cpu(), cmap="gray", vmin=0, vmax=1)
    for axis, label in zip(axes[:, 0], ("input", f"code ({codes.shape[1]})", "reconstruction")):
        axis.set_ylabel(label)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.savefig(path)
    plt.close(figure)


def image_grid(path, images, columns=8):
    """Images [N,1,H,W] with values 0 to 1, side by side."""
    plt = pyplot()
    if plt is None:
        return
    figure, axes = plt.subplots(-(-len(images) // columns), columns, figsize=(8, 8), squeeze=False)
    for axis, image in zip(axes.flat, images):
        axis.imshow(image[0].float().cpu(), cmap="gray", vmin=0, vmax=1)
    for axis in axes.flat:
        axis.axis("off")
    figure.savefig(path)
    plt.close(figure)


def loss_picture(path, curves, title):
    plt = pyplot()
    if plt is None:
        return
    figure, axis = plt.subplots(figsize=(9.6, 5.4))
    for name, losses in curves.items():
        axis.plot(losses, label=name)
    if len(curves) > 1:
        axis.legend()
    axis.set(title=title, xlabel="step")
    figure.savefig(path)
    plt.close(figure)
