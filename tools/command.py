"""What the tools in Python have in common: the command line, files, and weft's programs."""
import argparse
import difflib
import os
import pathlib
import subprocess
import sys


class Error(Exception):
    """An error; its text is one sentence for the user."""


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the command line, and ends with status 2."""

    _options = []  # the options of all parsers

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names, **options):
        self._options.extend(name for name in names if name.startswith("--"))
        return super().add_argument(*names, **options)

    def parse_args(self, *arguments):
        found, rest = self.parse_known_args(*arguments)
        if rest and rest[0].startswith("-"):
            near = difflib.get_close_matches(rest[0].split("=")[0], self._options, 1)
            self.error(f"unknown option {rest[0]}" + "".join(f"; did you mean {n}?" for n in near))
        if rest:
            self.error(f"unexpected argument '{rest[0]}'")
        return found

    def error(self, message):
        self.exit(2, f"{self.prog.split()[0]}: {message}\nTry --help.\n")


def step_number(text):
    """A type for an option of the command line."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text}, expected a number from 0 on")
    return int(text)


def run(name, main):
    """Ends the process with main()'s status; 2 and a line on stderr for an Error, and where some of
    what was printed is lost, as on a full disk."""
    # A path may contain any bytes. Buffered, whatever the environment says: see flush() below.
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr.reconfigure(encoding="utf-8", errors="surrogateescape")
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    except (Error, OSError) as error:  # an OSError comes from temporary files
        print(f"{name}: error: {error}", file=sys.stderr)
        status = 2
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"{name}: error: [stdout] some of the output is lost: {error.strerror}",
              file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at exit
        status = 2
    sys.exit(status)


def write_file(path, data):
    """Whoever reads the file meanwhile finds all of it, or what was there before."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise Error(f"[file] cannot write {path}: it exists and is no regular file")
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise Error(f"[file] cannot write {path}: {error.strerror} (errno {error.errno})") from None


def output_of(program, *arguments, folder=None):
    """What a C++ program prints, run in `folder`. `program`: its path among what Bazel builds, as
    this tool has one. Raises Error with the program's own words where it fails."""
    path = pathlib.Path(sys.argv[0]).absolute().parents[2] / program
    try:
        result = subprocess.run([path, *arguments], cwd=folder, capture_output=True, check=False,
                                text=True)
    except OSError as error:
        raise Error(f"cannot run {path}: {error.strerror}; ./weft builds it") from None
    if result.returncode:
        said = result.stderr.strip() or f"{path} ended with status {result.returncode}"
        raise Error(said.split("error: ", 1)[-1])
    return result.stdout
