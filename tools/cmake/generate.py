#!/usr/bin/env python3
"""Writes tools/cmake/sources.cmake: what the library consists of, for CMakeLists.txt.

usage: generate.py [--check]

Asks Bazel what it compiles for //:weft and //:weft_cuda, and with which options. With --check it
only says whether the file is as it should be.
"""
import difflib
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
FILE = 'tools/cmake/sources.cmake'

# Bazel's own options, the warnings, and what CMake says itself: the standard, optimisation, -fPIC.
NOT_OURS = ('-U_FORTIFY_SOURCE', '-D_FORTIFY_SOURCE', '-fstack-protector', '-fno-omit-frame-pointer',
            '-g0', '-O1', '-O2', '-DNDEBUG', '-ffunction-sections', '-fdata-sections', '-std=', '-MD',
            '-frandom-seed', '-fPIC', '-fno-canonical-system-headers', '-D__', '-W', '-I', '-fopenmp')
WITH_A_WORD = ('-MF', '-iquote', '-isystem', '-c', '-o', '-include')


def actions(target, mnemonic, options=()):
    out = subprocess.check_output(
        ['bazel', 'aquery', *options, '--output=jsonproto',
         f'mnemonic("{mnemonic}", deps({target}))'], cwd=ROOT, text=True, stderr=subprocess.PIPE)
    return [action['arguments'] for action in json.loads(out)['actions']]


def own_options(arguments):
    own, skip = [], True  # the compiler
    for word in arguments:
        if skip:
            skip = False
        elif word in WITH_A_WORD:
            skip = True
        elif not word.startswith(NOT_OURS):
            own.append(word)
    return tuple(own)


def compiled(target, options=()):
    """{(source, its options)} of a target's C++."""
    found = set()
    for arguments in actions(target, 'CppCompile', options):
        found.add((arguments[arguments.index('-c') + 1], own_options(arguments)))
    return found


def of_cuda(source):
    return source.startswith(('kernels/cuda/', 'comm/nccl/'))


def written(units, indent=''):
    """The calls of weft_sources() for {(source, options)}."""
    groups = {}
    for source, options in units:
        groups.setdefault(options, []).append(source)
    lines = []
    for options, sources in sorted(groups.items()):
        lines.append(f'{indent}weft_sources("{";".join(options)}"')
        lines += [f'{indent}  {source}' for source in sorted(sources)]
        lines[-1] += ')'
    return lines


def text():
    every = {u for u in compiled('//:weft', ['--config=no_cuda']) if not of_cuda(u[0])}
    lines = ['# Written by tools/cmake/generate.py from what Bazel compiles.']
    parts = []
    for option in ('dnnl', 'gloo'):
        without = {u for u in compiled('//:weft', ['--config=no_cuda', f'--define={option}=no'])
                   if not of_cuda(u[0])}
        parts.append((f'WEFT_WITH_{option.upper()}', every - without, without - every))
    common = every.difference(*(only_with for _, only_with, _ in parts))
    lines += written(common)
    for name, only_with, only_without in parts:
        lines += [f'if({name})', *written(only_with, '  '), 'else()', *written(only_without, '  '),
                  'endif()']

    cuda = {arguments[-1] for arguments in actions('//:weft_cuda', 'CudaCompile')}
    cuda |= {source for source, _ in compiled('//:weft_cuda') if of_cuda(source)}
    cuda = {source for source in cuda if not source.startswith('bazel-out/')}  # the list of GPUs
    lines += ['set(WEFT_CUDA_SOURCES', *(f'  {source}' for source in sorted(cuda))]
    lines[-1] += ')'

    headers = subprocess.check_output([f'{ROOT}/tools/public_headers'], text=True).split()
    lines += ['set(WEFT_HEADERS', *(f'  {header}' for header in sorted([*headers, 'weft_c.h']))]
    lines[-1] += ')'
    return '\n'.join(lines) + '\n'


def main():
    if sys.argv[1:] not in ([], ['--check']):
        sys.exit(__doc__)
    wanted, path = text(), os.path.join(ROOT, FILE)
    if not sys.argv[1:]:
        with open(path, 'w', encoding='utf-8') as out:
            out.write(wanted)
        return
    with open(path, encoding='utf-8') as file:
        found = file.read()
    if found != wanted:
        sys.stdout.writelines(difflib.unified_diff(
            found.splitlines(True), wanted.splitlines(True), FILE, 'what Bazel compiles'))
        sys.exit(f'{FILE} is not what Bazel compiles: run tools/cmake/generate.py')


if __name__ == '__main__':
    main()
