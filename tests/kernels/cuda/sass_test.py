#!/usr/bin/env python3
"""What nvcc makes of batch norm's kernels: the registers of a thread, and what the inner loops do.

usage: sass_test.py norm.cu

Compiles for an H100 and reads the machine code by nvdisasm, of PyPI's nvidia-cuda-nvdisasm, which
tools/peer-setup installs. Every loop that reads packs of 16 bytes
  - reads nothing narrower from global memory, and at least 4 packs before it ends or as many as it
    has operands, where it is the loop over what is left;
  - calls no function, as a division of f64 or of i64 would, and computes in f64 only for f64;
  - keeps no more than one number in local memory.
Without nvcc or nvdisasm it is skipped, and says why.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
from xml.sax.saxutils import quoteattr

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(sys.argv[1]))))
NVCC = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")

# The kernels over images, with the registers that leave room for 6 and 5 blocks of 256 threads.
MOST_REGISTERS = {"normalize_kernel": 40, "gradient_kernel": 40, "moments_kernel": 48, "products_kernel": 48}


def nvdisasm():
    """The program, or None."""
    peer = os.environ.get("WEFT_PEER")
    folders = [] if not peer else subprocess.run(
        [peer, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True, capture_output=True, text=True).stdout.split()
    for folder in folders:
        for path in glob.glob(folder + "/nvidia/**/bin/nvdisasm", recursive=True):
            return path
    return None


def compile_kernels(source, cubin):
    """What ptxas says: {mangled name: registers of a thread}."""
    with tempfile.TemporaryDirectory() as include:
        os.symlink(ROOT, os.path.join(include, "weft"))
        command = [NVCC, "-std=c++20", "--expt-relaxed-constexpr", "--extended-lambda", "-arch=sm_90", "-cubin",
                   "-Xptxas=-v", "-I", include, "-o", cubin, source]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        fail(run.stderr)
    names = re.findall(r"Compiling entry function '(\w+)'", run.stderr)
    return dict(zip(names, map(int, re.findall(r"Used (\d+) registers", run.stderr))))


def functions(text):
    """{mangled name: lines of labels and instructions} of nvdisasm's output."""
    found, lines = {}, None
    for line in text.splitlines():
        if head := re.match(r"\.text\.(\w+):", line):
            lines = found.setdefault(head[1], [])
        elif lines is not None:
            if label := re.match(r"(\.L\w+):", line):
                lines.append(label[1] + ":")
            elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
                lines.append(re.sub(r"^@!?\w+\s+", "", instruction[1].strip()))
    return found


def loops_of(lines):
    """The bodies of all loops, from a label to a branch back to it, and of those without a loop inside."""
    place = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    loops = []
    for i, line in enumerate(lines):
        back = re.search(r"^BRA.*`\((\.L\w+)\)", line)
        if back and place.get(back[1], i) < i:
            loops.append((place[back[1]], i))
    inner = [a for a in loops if not any(a[0] <= b[0] and b[1] <= a[1] and a != b for b in loops)]
    return [[[line for line in lines[a:b + 1] if not line.endswith(":")] for a, b in some] for some in (loops, inner)]


def adds_blocks(body):
    """Whether a loop adds what the blocks have found: only numbers of f64, which it reads one by one."""
    loads = [line for line in body if line.startswith("LDG")]
    return all(".64" in line.split()[0] for line in loads) and not any(re.match(r"(FADD|FMUL|FFMA)", line) for line in body)


def faults(dtype, body):
    """What a loop over packs does that it should not."""
    count = lambda pattern: sum(bool(re.match(pattern, line)) for line in body)
    found = []
    if count(r"LDG(?!.*\.128)"):
        found.append("reads less than 16 bytes")
    if count(r"(CALL|JCAL)"):
        found.append("calls a function")
    if count(r"(LDL|STL)") > 2:
        found.append("uses local memory")
    if dtype != "double" and count(r"(DADD|DMUL|DFMA|MUFU\.RCP64H)"):
        found.append("computes in f64")
    return found


def report(result, inside=""):
    """Writes the result for tools/test_summary.py."""
    if path := os.environ.get("XML_OUTPUT_FILE"):
        with open(path, "w", encoding="utf-8") as file:
            file.write('<testsuites name="AllTests"><testcase classname="BatchNorm" name="MachineCode" '
                       f'result="{result}">{inside}</testcase></testsuites>')


def skip(why):
    print("skipped:", why)
    report("skipped", f"<skipped message={quoteattr(why)}/>")


def fail(why):
    report("completed", f"<failure message={quoteattr(why)}/>")
    sys.exit(why)


def main():
    if not os.access(NVCC, os.X_OK):
        return skip(f"no {NVCC}, so nobody has looked at the machine code")
    if not nvdisasm():
        return skip("no nvdisasm beside WEFT_PEER (tools/peer-setup), so nobody has looked at the machine code")
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, "norm.cubin")
        registers = compile_kernels(os.path.realpath(sys.argv[1]), cubin)
        sass = subprocess.run([nvdisasm(), "-c", cubin], check=True, capture_output=True, text=True).stdout
    mangled = functions(sass)
    plain = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout
    bad, seen = 0, 0
    for name, shown in sorted(zip(mangled, plain.splitlines()), key=lambda pair: pair[1]):
        kernel = re.search(r"(\w+_kernel)<(?:weft::)?(\w+), (\d+), (\d+)(.*?)>\(", shown)
        if not kernel or kernel[1] not in MOST_REGISTERS or kernel[3] == "1":
            continue
        seen += 1
        loops, inner = ([body for body in bodies
                         if any(line.startswith("LDG") for line in body) and not adds_blocks(body)]
                        for bodies in loops_of(mangled[name]))
        loads = [sum(line.startswith("LDG") for line in body) for body in loops]
        problems = {fault for body in inner for fault in faults(kernel[2], body)}
        if registers[name] > MOST_REGISTERS[kernel[1]]:
            problems.add(f"more than {MOST_REGISTERS[kernel[1]]} registers")
        if max(loads, default=0) < 4:
            problems.add("fewer than 4 packs at a time")
        label = f"{kernel[1]}<{kernel[2]}, {kernel[3]}, {kernel[4]}{kernel[5]}>"
        print(f"{label}: {registers[name]} registers, loads of 16 bytes {loads}", *sorted(problems), sep="; ")
        bad += bool(problems)
    if seen < 42:
        fail(f"only {seen} kernels found")
    if bad:
        fail(f"{bad} kernels are not as they should be")
    report("completed")


if __name__ == "__main__":
    main()
