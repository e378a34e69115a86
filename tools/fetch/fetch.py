#!/usr/bin/env python3
"""Downloads data sets: `./weft fetch mnist|fashion-mnist|cifar10 [DIR]`.

A file is downloaded as DIR/NAME.part, and gets its name when its SHA-256 is right; what is there of
a .part is not downloaded again. The sums are those of PyTorch's torchvision, in
torchvision/prototype/datasets/_builtin/mnist.py of github.com/pytorch/vision, and for CIFAR-10's
binary version, which torchvision does not read, of the Ruby gem torchvision. They were compared with
the MD5 sums that torchvision/datasets/mnist.py and the page of CIFAR-10 have: those of Fashion-MNIST
by computing both from the files, the others only with what others publish of the same files.

No test has tried the addresses, which need the internet: tests use a server of their own.
"""
import argparse
import collections
import contextlib
import fcntl
import hashlib
import http.client
import os
import pathlib
import sys
import tarfile
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tools import command

File = collections.namedtuple("File", "name bytes sha256")

# `downloads` come from `addresses`, one as good as the other; `files` are what programs read, which
# are the downloads themselves if those are no archive. `folder` is the default of DIR.
Set = collections.namedtuple("Set", "title addresses downloads files folder example")


def _idx_files(sizes_and_sums):
    names = (f"{part}-{what}-ubyte.gz" for part in ("train", "t10k")
             for what in ("images-idx3", "labels-idx1"))
    return [File(name, *each) for name, each in zip(names, sizes_and_sums)]


_MNIST = _idx_files([
    (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6")])
_FASHION_MNIST = _idx_files([
    (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5")])
_CIFAR10_ARCHIVE = File("cifar-10-binary.tar.gz", 170052171,
                        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")
_CIFAR10 = [File(name, 30730000, sha256) for name, sha256 in (
    ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"))]

SETS = {
    "mnist": Set("MNIST", ["https://ossci-datasets.s3.amazonaws.com/mnist",
                           "https://storage.googleapis.com/cvdf-datasets/mnist"],
                 _MNIST, _MNIST, "mnist", "mlp"),
    "fashion-mnist": Set(
        "Fashion-MNIST", ["http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"],
        _FASHION_MNIST, _FASHION_MNIST, "fashion-mnist", "mlp"),
    "cifar10": Set("CIFAR-10", ["https://www.cs.toronto.edu/~kriz"], [_CIFAR10_ARCHIVE], _CIFAR10,
                   "cifar-10-batches-bin", "cnn"),
}

_PIECE = 1 << 18
_PATIENCE = 30  # seconds without a byte


class Failed(Exception):
    """Why one address did not give a file; the next one may."""


def say(text):
    print(f"fetch: {text}", flush=True)


def megabytes(count):
    return f"{count / 1e6:.1f} MB"


def hash_of(file):
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest


def is_there(path, wanted):
    """Whether the file is there and whole. Raises Error for another file of the same name."""
    if not path.exists():
        return False
    if path.is_file() and path.stat().st_size == wanted.bytes:
        with path.open("rb") as file:
            if hash_of(file).hexdigest() == wanted.sha256:
                return True
    raise command.Error(f"{path} is another file than the published one, or is damaged; remove it, "
                        "or name another folder")


class Progress:
    """A line in a terminal, which is written over."""

    def __init__(self, name, total):
        self.name, self.total, self.shown = name, total, None

    def at(self, count):
        percent = 100 * count // self.total
        if sys.stderr.isatty() and percent != self.shown:
            self.shown = percent
            print(f"\r{self.name}: {percent} % of {megabytes(self.total)}", end="",
                  file=sys.stderr, flush=True)

    def end(self):
        if self.shown is not None:
            print(file=sys.stderr)


def opened(url, begin, wanted):
    """The server's answer, and where its bytes begin in the file."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "weft"})
        if begin:
            request.add_header("Range", f"bytes={begin}-")
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        raise Failed(f"{url}: the server says {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Failed(f"{url}: {getattr(error, 'reason', None) or error}") from None
    if answer.status != 206:
        begin = 0
    elif not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
        raise Failed(f"{url}: the server sends another part of the file than the one asked for")
    length = answer.headers.get("Content-Length", "")
    if length.isdecimal() and begin + int(length) != wanted.bytes:
        raise Failed(f"{url}: not the published file: it has {begin + int(length)} bytes, not "
                     f"{wanted.bytes}")
    return answer, begin


def receive(answer, part, wanted):
    """Appends to the .part what the server sends."""
    progress = Progress(wanted.name, wanted.bytes)
    try:
        while part.tell() < wanted.bytes:
            try:
                piece = answer.read1(min(_PIECE, wanted.bytes - part.tell()))
                why = "it ended"
            except (OSError, http.client.HTTPException) as error:
                piece, why = b"", error
            if not piece:
                raise Failed(f"{answer.url}: the connection broke after {part.tell()} of "
                             f"{wanted.bytes} bytes: {why}")
            part.write(piece)
            progress.at(part.tell())
    finally:
        progress.end()


def download(url, part, wanted):
    """Fills the open .part from its end on. When this fails, the .part is empty or may be gone on
    with."""
    begin = part.seek(0, os.SEEK_END)
    if begin < wanted.bytes:
        answer, begin = opened(url, begin, wanted)
        with answer:
            part.truncate(begin)
            part.seek(begin)
            receive(answer, part, wanted)
        part.flush()
    part.seek(0)
    if hash_of(part).hexdigest() != wanted.sha256:
        part.truncate(0)
        if begin:  # the fault may be in what was there before
            download(url, part, wanted)
            return
        raise Failed(f"{url}: not the published file: its SHA-256 is another")


def has_name(file, path):
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked(path):
    """The file, open, while no other process fetches it."""
    while True:
        with path.open("ab+") as part:
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise command.Error(f"another process downloads {path}") from None
            # Between opening and locking, another process may have finished with it.
            if has_name(part, path):
                yield part
                return


def fetch_file(addresses, wanted, part, path):
    """Fills the open .part."""
    reasons = []
    for address in addresses:
        try:
            download(f"{address.rstrip('/')}/{wanted.name}", part, wanted)
            os.fsync(part.fileno())
            return
        except Failed as failure:
            reasons.append(str(failure))
    size = part.seek(0, os.SEEK_END)
    if not size:
        path.unlink()
    rest = f"; {megabytes(size)} are kept, and the same command goes on from there" if size else ""
    raise command.Error(f"{'; '.join(reasons)}{rest}; or bring {wanted.name} here in a folder D, and "
                        "add --from D")


def unpack(archive, files, folder):
    """Unpacks the files that are not there yet. In the archive they may be in any folder."""
    missing = {each.name: each for each in files if not is_there(folder / each.name, each)}
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            wanted = missing.pop(os.path.basename(member.name), None)
            if wanted is None or not member.isfile():
                continue
            part = folder / (wanted.name + ".part")
            with members.extractfile(member) as source, part.open("wb+") as file:
                while piece := source.read(_PIECE):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                if hash_of(file).hexdigest() != wanted.sha256:
                    raise command.Error(f"{archive}: {wanted.name} in it is not the published file")
            part.rename(folder / wanted.name)
    if missing:
        raise command.Error(f"{archive} lacks {', '.join(missing)}")


def fetch(chosen, folder, addresses):
    if all([is_there(folder / each.name, each) for each in chosen.files]):
        say(f"{chosen.title} is in {folder} already, whole")
        return
    wanted = chosen.downloads
    if wanted == chosen.files:
        wanted = [each for each in wanted if not is_there(folder / each.name, each)]
    count = f"{len(wanted)} file" + "s" * (len(wanted) != 1)
    say(f"{chosen.title}: {count}, {megabytes(sum(each.bytes for each in wanted))}, from "
        f"{addresses[0]} into {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise command.Error(f"cannot make the folder {folder}: {error.strerror}") from None
    for each in wanted:
        path = folder / (each.name + ".part")
        try:
            with locked(path) as part:
                fetch_file(addresses, each, part, path)
                if chosen.downloads == chosen.files:
                    path.rename(folder / each.name)
                else:
                    unpack(path, chosen.files, folder)
                    path.unlink()
        except OSError as error:  # of a file here: those of an address are Failed
            raise command.Error(f"cannot write {error.filename or path}: {error.strerror}") from None
    say(f"{chosen.title} is in {folder}, whole")


def address_of(text):
    """A type for --from: an address, or a folder, whose address is made of its path."""
    if not text:
        raise argparse.ArgumentTypeError("got nothing, expected an address or a folder")
    if text.startswith("file://") and not text.startswith(("file:///", "file://localhost/")):
        raise argparse.ArgumentTypeError(f"{text} has no whole path: file:///FOLDER, or FOLDER alone")
    return text if "://" in text else pathlib.Path(text).absolute().as_uri()


def main():
    parser = command.Parser(
        prog="fetch", description="Downloads a data set, and checks it.",
        epilog="Exit status: 0, also when the files were there already and are whole; 2 for wrong "
               "usage, no network, or files that are not the published ones; 130 when interrupted.")
    parser.add_argument("name", metavar="NAME", choices=SETS, help=", ".join(SETS))
    parser.add_argument("folder", metavar="DIR", nargs="?", type=pathlib.Path,
                        help="what --data of the programs gets (default: "
                             + ", ".join(each.folder for each in SETS.values()) + ")")
    parser.add_argument("--from", dest="address", metavar="URL",
                        type=address_of, help="where else the files are: http://..., or a folder")
    options = parser.parse_args()
    chosen = SETS[options.name]
    folder = options.folder or pathlib.Path(chosen.folder)
    try:
        fetch(chosen, folder, [options.address] if options.address else chosen.addresses)
    except KeyboardInterrupt:
        print("\nfetch: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    say(f"./weft run {chosen.example} --data {folder}")
    return 0


if __name__ == "__main__":
    command.run("fetch", main)
