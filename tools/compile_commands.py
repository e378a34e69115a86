"""Writes compile_commands.json, by which editors and clangd understand the sources.

usage: compile_commands.py ROOT INCLUDE

INCLUDE is a folder in which `weft` is a link to ROOT: Bazel's own include folders exist only while
it compiles. One entry a source file, as the default build compiles it; kernels that are compiled
for several levels of vector instructions as for AVX2. No .cu files: those are nvcc's.
"""
import json
import os
import subprocess
import sys

FLAGS = ['g++', '-std=c++20', '-O2', '-DNDEBUG', '-fopenmp', '-Wall', '-Wextra',
         '-Wno-missing-field-initializers']
LEVEL = ['-DWEFT_SIMD=avx2', '-mavx2', '-mfma', '-mf16c']


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, include = sys.argv[1:]
    files = subprocess.run(
        ['git', '-C', root, 'ls-files', '-z', '--cached', '--others', '--exclude-standard', '*.cc'],
        check=True, stdout=subprocess.PIPE, text=True).stdout.split('\0')
    cuda = os.path.join(os.environ.get('CUDA_HOME', '/usr/local/cuda'), 'include')
    places = ['-I' + include, '-iquote' + root] + (['-isystem' + cuda] if os.path.isdir(cuda) else [])
    entries = []
    for file in sorted(filter(None, files)):
        level = LEVEL if file.startswith('kernels/cpu/loops/') else []
        entries.append({'directory': root, 'file': file,
                        'arguments': FLAGS + level + places + ['-c', file]})
    path = os.path.join(root, 'compile_commands.json')
    with open(path + '.tmp', 'w', encoding='utf-8') as out:
        json.dump(entries, out, indent=1)
    os.replace(path + '.tmp', path)
    print(f'compile_commands.json: {len(entries)} files')


if __name__ == '__main__':
    main()
