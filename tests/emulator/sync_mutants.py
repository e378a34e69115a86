#!/usr/bin/env python3
"""Takes out each synchronisation of the CUDA backend, one at a time, and names the test that notices.

usage: sync_mutants.py [--list] [--only FILE[:LINE]]... [--test LABEL]... [--jobs N] [--table FILE]

  --list    only the sites
  --only    only the sites of a file, or the one of a line
  --test    only the cases of this test, as //tests/gpu:comm_test, in place of all that reach a GPU
  --jobs    test programs that run side by side (default: the number of cores)
  --table   write the result there, in Markdown

A site is a barrier, an event's record, a stream's or the host's wait for one, a record_stream or a
guard of device, stream or recording (KINDS). A copy of the sources gets a switch at each: the
environment variable WEFT_MUTANT names the one that the process leaves out. So one build on emulated
devices (emulator/README.md) serves all. Every case of the tests with the tag "emulated", and of
those with a fake device, runs once to say which sites it passes and how long it takes. Then, for
each site, the cases that pass it run without it, the fast ones first and in every order of the
streams, until one fails that does not fail with it.

Exit status 1 when nobody notices and WHY_NOT below does not say why, or when it says so in vain.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from xml.etree import ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRATCH = os.path.expanduser("~/.cache/weft/sync_mutants")
BAZEL = ["bazel", "--output_base=" + os.path.join(SCRATCH, "bazel")]

FOLDERS = ("autograd/", "comm/backend/device_ring", "comm/group/device_tensors", "comm/nccl/", "comm/group/work", "core/", "data/",
           "io/", "kernels/cuda/", "nn/", "optim/", "parallel/balance", "tensor/", "train/")
# No program for emulated GPUs has it.
NOT_EMULATED = "kernels/cuda/cudnn_attention.cc"
# The kinds of statements, each found where it does what may be left out.
KINDS = {
    "barrier": r"__sync(?:threads|warp)\(",
    "record": r"(?<!\bcapture)(?:->|\.)record\(|\bcudaEventRecord\(",
    "stream wait": r"(?:->|\.)block\(|\bcudaStreamWaitEvent\(",
    "host wait": r"(?:->|\.)synchronize\(|\bcuda(?:Event|Stream|Device)Synchronize\(",
    "event query": r"[\w.>-]+->done\(\)",
    "record_stream": r"(?:->|\.)record_stream\(",
    "device guard": r"\buse_(?:some_)?device\(|\bcudaSetDevice\(|\bScoped device\(|\bthread_state\(\)\.device = ",
    "stream guard": r"\bStreamScope \w+\(|\bStreamsGuard \w+\(|\bcudnnSetStream\(",
    "recording guard": r"\bAllowWhileRecording \w+;",
}
GUARD = re.compile(r"(?:const )?(\w+) (\w+)(?:\((.*)\))?$", re.S)

TIMED = "it ends a time that is measured, and no test depends on how long something takes"
# Sites that no test can notice, and why.
WHY_NOT = {
    "comm/group/device_tensors.cc DeviceOperations::run: x.storage()->record_stream(stream)":
        "an operation keeps its tensors until the device is done with them; abort() ends the kernels of one that fails "
        "before, and this is for what may be left of them",
    "kernels/cuda/block_fold.cuh comes_last: __syncthreads()":
        "the other threads' writes come before the block counts itself; blocks run one after the other here, so the last "
        "one finds all of the others' anyway, and its own after the second barrier",
    "kernels/cuda/recording.cu CudaRuntime::end_recording: use_device(stream.device.index)":
        "the thread that ends a recording has begun it there, and neither the end nor an executable graph asks for the "
        "current device; only that of a body that left for another one would be used",
    "parallel/balance.cc layer_seconds: runtime_of.synchronize(current_stream(x.device()))": TIMED,
    "parallel/balance.cc layer_seconds: runtime_of.synchronize(current_stream(x.device())) (2)": TIMED,
    "parallel/balance.cc stage_costs: runtime(device).synchronize(current_stream(device))": TIMED,
}

# The first is that of `./weft test --emulated`.
ORDERS = [{"WEFT_EMULATED_ORDER": "lazy"}] + [
    {"WEFT_EMULATED_ORDER": "random", "WEFT_EMULATED_SEED": str(seed)} for seed in (1, 2, 3)] + [
    {"WEFT_EMULATED_ORDER": "eager"}]
OTHER_TESTS = ("//tests/autograd:devices_test",)  # virtual CPU devices use the same engine
OWN_ORDERS = ("programs_test",)  # sets them itself
# Time for the cases that one site gets in one order: most mutants are noticed at once.
BUDGET_S = 60

# Goes in front of a file with sites. A site asks once per process.
HEAD = """\
#include <optional>
extern "C" bool weft_mutant(const char* site);
#define WEFT_MUTANT(site) [] { static const bool out = weft_mutant(site); return out; }()
#line 1
"""
SWITCH = """\
// Whether this process leaves the site out; WEFT_MUTANTS_SEEN names a file for those that it passes.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" bool weft_mutant(const char* site) {
  if (const char* const path = std::getenv("WEFT_MUTANTS_SEEN")) {
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    dprintf(file, "%s\\n", site);
    close(file);
  }
  const char* const out = std::getenv("WEFT_MUTANT");
  return out && !std::strcmp(site, out);
}
"""


@dataclasses.dataclass
class Site:
    path: str
    number: int  # in its file
    kind: str
    line: int
    function: str
    statement: str
    place: int  # 1, 2, ... if the function has several such statements
    begin: int
    end: int
    result: str = ""
    noticed: bool = False

    def switch(self):
        return f"{self.path}#{self.number}"

    def name(self):
        """Stays when lines move."""
        return f"{self.path} {self.function}: {self.statement}" + (f" ({self.place})" if self.place > 1 else "")


# --- Sites


def blanked(text):
    """The same with spaces for comments and what strings hold."""
    def blank(match):
        keep = match[0][0] if match[0][0] in "\"'" else " "
        return keep + re.sub(r"[^\n]", " ", match[0][1:-1]) + (keep if len(match[0]) > 1 else "")
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def closing(code, at):
    """Behind the parenthesis that closes the one at `at`."""
    depth = 0
    while True:
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
        if not depth:
            return at


def statement_around(code, at):
    """(begin, end) of the innermost statement at `at`, without its semicolon; None in a declaration."""
    begin = max(code.rfind(c, 0, at) for c in ";{}#") + 1
    while True:
        begin += len(code[begin:]) - len(code[begin:].lstrip())
        if head := re.match(r"(?:if|while|for)(?: constexpr)? \(|else\b", code[begin:]):
            begin += head.end()
            if head[0].endswith("("):
                begin = closing(code, begin - 1)
                if begin > at:
                    return None  # inside a condition
        else:
            break
    end = at
    while code[end] not in ";{":
        end = closing(code, end) if code[end] == "(" else end + 1
    if code[end] == "{" or re.match(r"return\b|throw\b|(?:virtual |\[\[|static )?(?:void|bool) \w", code[begin:]):
        return None
    return begin, end


FUNCTION = re.compile(r"^( {0,2})(?!(?:if|for|while|switch|return|else|catch)\b)[\w~][^;{}]*\{", re.M)


def enclosing_function(code, at):
    """The nearest that begins above, with its class; goes by clang-format's indentation."""
    name = "?"
    for head in FUNCTION.finditer(code, 0, at):
        called = re.search(r"([\w~:]+)\(", head[0].replace("__launch_bounds__(", ""))
        whole = head[0].count("(") == head[0].count(")")  # else it is a call with a list in it
        if called and whole and not re.search(r"\[[&=\w]*\][(<]", head[0]):
            name = called[1]
            scopes = re.findall(r"^(?:class|struct) ([\w:]+)[^;{}]*\{", code[:head.start()], re.M)
            if head[1] and scopes:
                name = f"{scopes[-1]}::{name}"
    return name


def sites_of(path, text):
    code = blanked(text)
    found = {}
    for kind, pattern in KINDS.items():
        for match in re.finditer(pattern, code):
            if kind == "event query":
                found[match.start()] = (kind, match.end())
            elif place := statement_around(code, match.end() - 1 if match[0][-1] == "(" else match.start()):
                found.setdefault(place[0], (kind, place[1]))
    places = collections.Counter()
    for number, (begin, (kind, end)) in enumerate(sorted(found.items())):
        site = Site(path, number, kind, text.count("\n", 0, begin) + 1, enclosing_function(code, begin),
                    " ".join(text[begin:end].split()), 1, begin, end)
        places[site.name()] += 1
        site.place = places[site.name()]
        yield site


def without(site, text):
    """What stands at a site in the copy."""
    off = f'WEFT_MUTANT("{site.switch()}")'
    if site.kind == "event query":
        return f"({off} || {text})"
    guard = GUARD.match(text)
    if guard and site.kind.endswith("guard"):
        kind, name, arguments = guard[1], guard[2], guard[3] or ""
        # Keeps the lines of the original: errors and the emulator's stacks name them.
        return f"std::optional<decltype({kind}({' '.join(arguments.split())}))> {name}; " \
               f"if (!{off}) {name}.emplace({arguments})"
    return f"{{ if (!{off}) {text}; }}"


def git_files():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            check=True, capture_output=True).stdout.decode()
    return [path for path in listed.split("\0") if path and os.path.isfile(os.path.join(ROOT, path))]


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def find_sites(paths):
    sites = []
    for path in sorted(paths):
        if path.startswith(FOLDERS) and path != NOT_EMULATED and path.endswith((".h", ".cc", ".cu", ".cuh")):
            sites += sites_of(path, read(path))
    return sites


# --- The copy and its tests


def write_if_other(path, data, mode):
    if os.path.exists(path):
        with open(path, "rb") as file:
            if file.read() == data and os.stat(path).st_mode & 0o777 == mode:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def write_copy(paths, sites, copy):
    by_path = collections.defaultdict(list)
    for site in sites:
        by_path[site.path].append(site)
    for path in paths:
        if path in by_path:
            text = read(path)
            for site in reversed(by_path[path]):
                text = text[:site.begin] + without(site, text[site.begin:site.end]) + text[site.end:]
            data = (HEAD + text).encode()
        else:
            with open(os.path.join(ROOT, path), "rb") as file:
                data = file.read()
        write_if_other(os.path.join(copy, path), data, os.stat(os.path.join(ROOT, path)).st_mode & 0o777)
    switch = "core/runtime/sync_mutants.cc"
    write_if_other(os.path.join(copy, switch), SWITCH.encode(), 0o644)
    wanted = set(paths) | {switch}
    for folder, _, names in os.walk(copy):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.relpath(path, copy) not in wanted and not os.path.islink(path):
                os.remove(path)


def bazel(copy, *arguments):
    return subprocess.run(BAZEL + list(arguments), cwd=copy, check=True, stdout=subprocess.PIPE, text=True).stdout


def tests_of(paths):
    """Bazel's expression for all tests that run on emulated devices."""
    fakes = [f"//{os.path.dirname(path)}:{os.path.basename(path)}" for path in paths
             if path.startswith("tests/") and path.endswith("_test.cc") and "register_runtime(" in read(path)]
    return (r"attr(tags, '\bemulated\b', tests(//...)) + "
            f"kind(cc_test, rdeps(//tests/..., set({' '.join(fakes)}), 1)) + set({' '.join(OTHER_TESTS)})")


def build(wanted, copy):
    """Builds the tests; for each its label, the path of the program, and its arguments and variables."""
    rules = bazel(copy, "query", "--noshow_progress", "--ui_event_filters=-info,-debug,-warning", "--output=xml", wanted)
    tests = {rule.get("name"): ([word.get("value") for word in rule.iterfind("list[@name='args']/string")],
                                {name.get("value"): value.get("value")
                                 for name, value in rule.iterfind("dict[@name='env']/pair")})
             for rule in ElementTree.fromstring(rules).iterfind("rule")}
    bazel(copy, "build", "--config=emulated", "--color=no", "--curses=no", "--show_progress_rate_limit=30",
          "--show_result=0", "--", *tests)
    programs = bazel(copy, "info", "--config=emulated", "--noshow_progress",
                     "--ui_event_filters=-info,-debug,-warning", "bazel-bin").strip()
    bazel(copy, "shutdown")
    return [(label, os.path.join(programs, label[2:].replace(":", "/")), *asked) for label, asked in tests.items()]


@dataclasses.dataclass
class Case:
    label: str
    program: str
    variables: dict
    name: str
    seconds: float = 0
    sites: set = dataclasses.field(default_factory=set)


def environment(scratch, more):
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "USER", "LANG") if name in os.environ}
    return {**kept, "OMP_WAIT_POLICY": "passive", "WEFT_CACHE": "off", "TEST_TMPDIR": scratch, "TMPDIR": scratch, **more}


def run(program, arguments, more, limit=None):
    """(whether it passed, output, seconds). What it starts ends with it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="weft-mutant-") as scratch:
        with open(os.path.join(scratch, "output"), "w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen([program] + arguments, cwd=program + ".runfiles/weft", stdout=output,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                       env=environment(scratch, more))
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                try:
                    os.killpg(process.pid, 9)
                except ProcessLookupError:
                    pass
                process.wait()
            output.seek(0)
            text = output.read()
    return status == 0, text if status is not None else text + "\nhangs\n", time.monotonic() - started


def cases_of(label, program, arguments, variables):
    _, text, _ = run(program, ["--gtest_list_tests"] + arguments, variables)
    suite, cases = "", []
    for line in text.splitlines():
        name = line.split("#")[0].rstrip()
        if re.match(r"[\w/]+\.$", name):
            suite = name
        elif re.match(r"  [\w/]+$", name) and suite and "DISABLED_" not in name:
            cases.append(Case(label, program, variables, suite + name.strip()))
    return cases


def look_at(case):
    """Notes what the case passes; None, or what it says when it fails with every site in place."""
    with tempfile.NamedTemporaryFile(prefix="weft-seen-") as seen:
        passed, text, case.seconds = run(case.program, ["--gtest_filter=" + case.name],
                                         {**ORDERS[0], **case.variables, "WEFT_MUTANTS_SEEN": seen.name}, 600)
        case.sites = set(seen.read().decode().split())
    if "[  SKIPPED ]" in text:  # `conformance` fails if no case passes
        case.sites = set()
        return None
    return None if passed else text


# --- One site


def what_happened(text):
    for pattern in (r"emulated CUDA: ([^\n]*)", r"C\+\+ exception with description \"([^\"\n]*)", r"\n(hangs)\n",
                    r"\n  what\(\):  ([^\n]*)"):
        if match := re.search(pattern, text):
            said = re.sub(r"^void .*?(\w+_kernel).*\)(?: on cuda:\d)?: ", r"\1: ", match[1])
            said = re.sub(r"0x[0-9a-f]+", "0x…", said)
            return said if len(said) <= 100 else said[:99] + "…"
    return "wrong result" if "Failure\n" in text else "ends"


def failed_case(text):
    """The first that failed or never ended."""
    ends = re.findall(r"^\[ RUN      \] (\S+)|^\[       OK \] (\S+)|^\[  SKIPPED \] (\S+)|^\[  FAILED  \] (\S+?),? ", text, re.M)
    running = None
    for begun, ok, skipped, failed in ends:
        if begun:
            running = begun
        elif ok or skipped:
            running = None
        elif failed:
            return failed
    return running


def batches(cases):
    """1, 2, 4, ... cases of one program, the fast ones first, up to the budget."""
    by_program, seconds = collections.defaultdict(list), 0
    for case in sorted(cases, key=lambda case: case.seconds):
        seconds += case.seconds
        if seconds <= BUDGET_S or not by_program:
            by_program[case.program].append(case)
    queue = []
    for program, own in by_program.items():
        size, at = 1, 0
        while at < len(own):
            part = own[at:at + size]
            queue.append((sum(case.seconds for case in part), program, part))
            at, size = at + size, min(2 * size, 64)
    return [part for _, _, part in sorted(queue, key=lambda entry: entry[:2])]


def search(site, cases):
    """Sets what notices that the site is left out."""
    out = {"WEFT_MUTANT": site.switch()}
    for order in ORDERS:
        parts = batches([case for case in cases if order is ORDERS[0] or not case.label.endswith(OWN_ORDERS)])
        while parts:
            part = parts.pop(0)
            limit = 20 + 10 * sum(case.seconds for case in part)
            whole = {**order, **part[0].variables}
            passed, text, _ = run(part[0].program, ["--gtest_fail_fast", "--gtest_filter=" + ":".join(c.name for c in part)],
                                  {**whole, **out}, limit)
            if passed:
                continue
            name = failed_case(text) or part[0].name
            case = next((c for c in part if c.name == name), part[0])
            # Only this case, with the site and without it.
            alone = ["--gtest_filter=" + case.name]
            fails, text, _ = run(case.program, alone, {**whole, **out}, limit)
            if not fails and run(case.program, alone, whole, limit)[0]:
                where = "" if order is ORDERS[0] or case.label.endswith(OWN_ORDERS) else \
                    ", " + " ".join(f"{key[len('WEFT_EMULATED_'):].lower()} {value}" for key, value in order.items())
                site.result = f"{case.label[2:].replace('tests/', '', 1)} {case.name}{where}: {what_happened(text)}"
                site.noticed = True
                return
            rest = [c for c in part if c is not case]
            if rest:
                parts.insert(0, rest)
    site.result = "NOT NOTICED" if cases else "never executed"


# --- The result


def table(sites):
    rows = ["# What notices a missing wait", "",
            "Written by `./weft test --soak` (tests/emulator/sync_mutants.py): each barrier, event, wait and guard of what runs on",
            "CUDA was taken out, one at a time, and the tests ran on emulated devices (emulator/README.md) until one failed.",
            "The first to fail is named, with the order of the streams where it is not the usual one.", ""]
    noticed = sum(site.noticed for site in sites)
    reasons = sum(not site.noticed and site.name() in WHY_NOT for site in sites)
    rows += [f"{len(sites)} sites: {noticed} noticed, {reasons} that cannot be, {len(sites) - noticed - reasons} not.", ""]
    for kind in KINDS:
        own = [site for site in sites if site.kind == kind]
        if not own:
            continue
        rows += [f"## {kind[0].upper() + kind[1:]}", "", "| Taken out | Where | Noticed by |", "|---|---|---|"]
        for site in own:
            result = site.result
            if not site.noticed and site.name() in WHY_NOT:
                result = "cannot be: " + WHY_NOT[site.name()]
            cells = (f"`{site.statement}`", f"{site.path}:{site.line} `{site.function}`", result)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        rows.append("")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--test", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--table")
    options = parser.parse_args()

    paths = git_files()
    sites = find_sites(paths)
    wanted = [site for site in sites
              if not options.only or site.path in options.only or f"{site.path}:{site.line}" in options.only]
    if options.list:
        for site in wanted:
            print(f"{site.kind:15} {site.path}:{site.line} {site.function}: {site.statement}")
        return 0
    names = {site.name() for site in sites}
    for name in WHY_NOT:
        if name not in names:
            sys.exit(f"sync_mutants.py: WHY_NOT speaks of what is not there: {name}")

    copy = os.path.join(SCRATCH, "tree")
    write_copy(paths, wanted, copy)
    programs = build(f"set({' '.join(options.test)})" if options.test else tests_of(paths), copy)

    lock = threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        cases = [case for found in pool.map(lambda entry: cases_of(*entry), programs) for case in found]
        broken = False
        for case, text in zip(cases, pool.map(look_at, cases)):
            if text is not None:
                broken = True
                print(f"{case.label} {case.name} fails with every site in place:\n{text}")
        if broken:
            return 1
        print(f"{len(cases)} cases, {sum(case.seconds for case in cases):.0f} s", flush=True)

        def one(site):
            search(site, [case for case in cases if site.switch() in case.sites])
            with lock:
                print(f"{site.path}:{site.line}: {site.statement}: {site.result}", flush=True)
        list(pool.map(one, wanted))

    if options.table:
        with open(options.table, "w", encoding="utf-8") as file:
            file.write(table(wanted))
    bad = [site for site in wanted if site.noticed == (site.name() in WHY_NOT)]
    for site in bad:
        print(f"{site.name()}: {'noticed, though WHY_NOT says it cannot be' if site.noticed else site.result}")
    print(f"{len(wanted)} sites, {sum(site.noticed for site in wanted)} noticed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
