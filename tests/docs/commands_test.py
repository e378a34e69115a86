#!/usr/bin/env python3
"""Runs the commands that the pages print, and compares what they print with what the pages say.

A block ```sh is a list of commands, which end with status 0; a comment behind `./weft compare` ends
with the largest difference that was measured. Blocks without a language are not run: variants, and
what needs a GPU or hours. A block whose first line begins with `$ ` shows what its
command prints; after a line `...` only some lines of it, where sizes may be a tenth off, and other numbers
are not compared. As a
test this runs what is cheap: comparisons, schedules and a failure, with few images of noise. `commands_test.py --tree` runs all of them from the source tree, as a reader does;
./weft test --soak does so.
"""
import os
import pathlib
import re
import shlex
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/tools")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
DIFFERENCE = re.compile(r"^same: .*?(?:the largest difference (\S+) .*)?\(allowed \S+\)$", re.M)

# docs/adding.md and adding_kernels.md are patches, which tests/structure/recipes.py applies.
PAGES = ["README.md", "docs/data_parallel.md", "docs/ddp.md", "docs/elastic.md", "docs/faults.md",
         "docs/horovod.md", "docs/pipeline.md", "docs/prove.md", "docs/sharding.md",
         "docs/simulate.md"]
SOME_LINES = "...\n"


def blocks(page):
    """[(command, figure beside it, output below it)] of each block; what is not printed is None."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    for language, block in BLOCK.findall(text):
        if language == "sh":
            lines = block.replace("\\\n", "").splitlines()
            parts = [line.partition("  # ") for line in lines if line]
            yield [(command.rstrip(), _number(command, comment), None)
                   for command, _, comment in parts]
        elif block.startswith("$ "):
            command, _, output = block[2:].partition("\n")
            yield [(command, None, output)]


def _number(command, comment):
    if not command.startswith("./weft compare "):
        return None
    figures = re.findall(r"\d[\d.e+-]*", comment)
    return float(figures[-1]) if figures else None


def _words(line):
    """Without what depends on the run: numbers, the host, widths of columns."""
    line = re.sub(r" on \S+, pid ", " on HOST, pid ", line)
    return re.sub(r"\d[\d.]*", "N", line).split()


def _alike(line, printed):
    sizes = [[float(size) for size in re.findall(r"([\d.]+) [KM]?i?B\b", text)]
             for text in (line, printed)]
    return _words(line) == _words(printed) and all(
        abs(a - b) <= 0.1 * b for a, b in zip(*sizes, strict=True))


def mistake(command, done, figure, output):
    """What is wrong with a command's result, or None."""
    # With 1 it says that predictions are off, as they are on a machine that has other work.
    # With --min-nproc the others outlive a fault.
    fails = command.startswith("WEFT_FAULT=") and "--min-nproc" not in command
    if (done.returncode > command.startswith("./weft simulate --check ")) != fails:
        return f"ended with status {done.returncode}: {done.stdout[-2000:]}"
    if output is not None and output.startswith(SOME_LINES):
        lines = iter(done.stdout.splitlines())
        for line in output.removeprefix(SOME_LINES).splitlines():
            if not any(_alike(line, printed) for printed in lines):
                return f"prints\n{done.stdout}and the page says after that\n{line}"
    elif output is not None and done.stdout != output:
        return f"prints\n{done.stdout}and the page says\n{output}"
    if figure is not None:
        difference = float(DIFFERENCE.search(done.stdout)[1] or 0)
        # The last bits depend on the processor, and on the images.
        if difference > 10 * figure:
            return f"the difference is {difference}, and the page says {figure}"
    return None


def run_tree():
    root = pathlib.Path(__file__).resolve().parents[2]
    os.chdir(root)
    wrong = []
    for page in PAGES:
        found = list(blocks(page))
        if not found:
            wrong.append(f"FAILED {page}: it has no commands any more")
        for block in found:
            with tempfile.TemporaryDirectory() as folder:
                os.mkdir(f"{folder}/docs")
                for command, figure, output in block:
                    print(f"=== {page}: {command}", flush=True)
                    done = subprocess.run(
                        command.replace("./weft ", f"{root}/weft "), shell=True, cwd=folder,
                        stdout=subprocess.PIPE, text=True, check=False,
                        stderr=None if "./weft schedule " in command else subprocess.STDOUT)
                    if said := mistake(command, done, figure, output):
                        wrong.append(f"FAILED {page}: {command}: {said}")
    sys.exit("\n".join(wrong) or 0)


if sys.argv[1:] == ["--tree"]:
    run_tree()

from cases import ToolTest, main  # as a test alone: Bazel gives it


class CommandsOfThePages(ToolTest):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        for part, count in (("train", 192), ("t10k", 12)):
            pixels = bytes(i * 37 % 251 for i in range(count * 28 * 28))
            (self.folder / f"data/{part}-images-idx3-ubyte").write_bytes(
                struct.pack(">4I", 0x803, count, 28, 28) + pixels)
            (self.folder / f"data/{part}-labels-idx1-ubyte").write_bytes(
                struct.pack(">2I", 0x801, count) + bytes(i % 10 for i in range(count)))
        # An epoch of 320 pieces and more.
        text = pathlib.Path("docs/sharding.md").read_text(encoding="utf-8")[:16000]
        (self.folder / "data/text.txt").write_text(text, encoding="utf-8")

    def built(self, command):
        """The same with the programs that Bazel has built."""
        words = shlex.split(command)
        at = words.index("./weft")
        variables, (what, *words) = words[:at], words[at + 1:]
        root = os.getcwd()
        if what in ("compare", "schedule"):
            return [f"{root}/tools/{what}/{what}", *words]
        at = next(i for i, word in enumerate(words) if os.path.exists(f"{root}/examples/{word}"))
        launcher = [f"{root}/launch/weftrun", *words[:at]] if what == "launch" else []
        return ["env", *variables, *launcher, f"{root}/examples/{words[at]}", "--data", self.path("data"),
                *words[at + 1:]]

    def check(self, page, wanted):
        """Runs the blocks in which a command begins so; returns their number."""
        count = 0
        for block in blocks(page):
            if not any(command.startswith(wanted) for command, _, _ in block):
                continue
            count += 1
            for command, figure, output in block:
                done = subprocess.run(self.built(command), cwd=self.folder, check=False, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                said = mistake(command, done, figure, output)
                self.assertIsNone(said, f"{page}: {command}: {said}")
        return count

    def test_runs_differ_as_the_pages_say(self):
        for page in ("data_parallel", "elastic", "horovod", "sharding"):
            self.assertEqual(self.check(f"docs/{page}.md", "./weft compare "), 1, page)
        for page in ("ddp", "pipeline"):
            self.assertEqual(self.check(f"docs/{page}.md", "./weft compare "), 2, page)

    def test_a_failure_is_told_as_in_the_page(self):
        self.assertEqual(self.check("docs/faults.md", "WEFT_FAULT="), 1)

    def test_schedules_are_printed_as_in_the_page(self):
        self.assertEqual(self.check("docs/pipeline.md", "./weft schedule "), 3)


if __name__ == "__main__":
    main()
