#!/usr/bin/env python3
"""The recipes of docs/adding.md and docs/adding_kernels.md, as patches: applies them to a copy of
the tree and runs it.

usage: recipes.py [HEADING]...

A block of code goes where the line before it says: `FILE`, new: | before `TEXT`: | after `TEXT`:
TEXT is in one line of the file. What is behind <!-- code: NAME --> tests/docs/BUILD compiles.
Without a HEADING all recipes are applied together; then the commands of their ```sh blocks run,
which build what they test. ./weft test --soak does so.
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

PLACE = re.compile(r'`([^`]+)`, (?:(new)|(before|after) `([^`]+)`):')
BLOCK = re.compile(r'(?:^([^\n]*)\n)?^```(\w*)\n(.*?)^```$', re.M | re.S)


def sections(root):
    """(heading, text). docs/adding_kernels.md is one recipe."""
    with open(os.path.join(root, 'docs/adding.md'), encoding='utf-8') as page:
        parts = re.split(r'^##+ (.*)$', page.read(), flags=re.M)
    with open(os.path.join(root, 'docs/adding_kernels.md'), encoding='utf-8') as page:
        heading, text = page.read().split('\n', 1)
    return [*zip(parts[1::2], parts[2::2]), (heading.removeprefix('# '), text)]


def recipes(root):
    """(heading, [(file, where, text, block)], commands, mistakes) of each section."""
    with open(os.path.join(root, 'tests/docs/BUILD'), encoding='utf-8') as build:
        compiled = build.read()
    for heading, body in sections(root):
        patches, commands, mistakes = [], [], []
        for before, language, block in BLOCK.findall(body):
            place = PLACE.fullmatch(before)
            if place:
                patches.append((place[1], place[2] or place[3], place[4], block))
            elif language == 'sh':
                commands += filter(None, block.splitlines())
            elif f'"{before[len("<!-- code: "):-len(" -->")]}"' not in compiled:
                mistakes.append(f'{heading}: no line says where this goes: {block.splitlines()[0]}')
        if patches and not commands:
            mistakes.append(f'{heading}: no command tests this')
        yield heading, patches, commands, mistakes


def patched(root, patches):
    """({file: text}, mistakes) after all patches."""
    files, mistakes = {}, []
    for file, where, text, block in patches:
        path = os.path.join(root, file)
        if where == 'new':
            if file in files or os.path.exists(path):
                mistakes.append(f'{file} is there already')
            files[file] = block
            continue
        if file not in files:
            if not os.path.exists(path):
                mistakes.append(f'{file} is not there')
                continue
            with open(path, encoding='utf-8') as source:
                files[file] = source.read()
        lines = files[file].splitlines(keepends=True)
        at = [i for i, line in enumerate(lines) if text in line]
        if len(at) != 1:
            mistakes.append(f'{file} has {len(at)} lines with {text}, expected one')
            continue
        at = at[0] + (where == 'after')
        files[file] = ''.join(lines[:at] + [block] + lines[at:])
    return files, mistakes


def mistakes(root):
    """What keeps the recipes from being applied."""
    found, patches = [], []
    for _, of_one, _, wrong in recipes(root):
        patches += of_one
        found += wrong
    if not patches:
        found.append('no recipe was found')
    return found + patched(root, patches)[1]


def compile_errors(root):
    """The first error of each C++ source that the recipes make or change, all of them applied."""
    files, wrong = patched(root, [patch for recipe in recipes(root) for patch in recipe[1]])
    if wrong:
        return wrong
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f'{folder}/as_found')
        os.symlink(root, f'{folder}/as_found/weft')
        for file, text in files.items():
            path = f'{folder}/patched/weft/{file}'
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w', encoding='utf-8') as out:
                out.write(text)

        def error(file):
            done = subprocess.run(
                ['g++', '-std=c++20', '-fopenmp', '-fsyntax-only', '-DWEFT_SIMD=baseline',
                 f'-I{folder}/patched', f'-I{folder}/as_found', f'{folder}/patched/weft/{file}'],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            lines = [line for line in done.stdout.splitlines() if 'error' in line]
            return f'{file}: {(lines or [done.stdout])[0]}' if done.returncode else None

        sources = [file for file in files if file.endswith('.cc')]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(filter(None, pool.map(error, sources)))


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    wanted = sys.argv[1:]
    chosen = [r for r in recipes(root) if r[1] and (not wanted or r[0] in wanted)]
    if len(chosen) < len(wanted) or not chosen:
        sys.exit(f'there are: {", ".join(r[0] for r in recipes(root) if r[1])}')
    files, wrong = patched(root, [patch for recipe in chosen for patch in recipe[1]])
    if wrong:
        sys.exit('\n'.join(wrong))
    copy, failed, start = tempfile.mkdtemp(prefix='weft-recipes-'), [], time.monotonic()
    try:
        tracked = subprocess.run(
            ['git', '-C', root, 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
            check=True, stdout=subprocess.PIPE, text=True).stdout.split('\0')
        for file in filter(None, tracked):
            if os.path.exists(os.path.join(root, file)):  # else it was deleted and is not committed
                os.makedirs(os.path.dirname(os.path.join(copy, file)), exist_ok=True)
                shutil.copy2(os.path.join(root, file), os.path.join(copy, file))
        for file, text in files.items():
            with open(os.path.join(copy, file), 'w', encoding='utf-8') as out:
                out.write(text)
        for heading, _, commands, _ in chosen:
            for command in commands:
                print(f'=== {heading}: {command}', flush=True)
                if subprocess.run(command, shell=True, cwd=copy, check=False).returncode:
                    failed.append(f'{heading}: {command}')
    finally:
        subprocess.run(['bazel', 'clean', '--expunge'], cwd=copy, check=False,
                       stderr=subprocess.DEVNULL)
        shutil.rmtree(copy)
    print(f'=== {len(chosen)} recipes in {time.monotonic() - start:.0f} s')
    sys.exit('\n'.join(f'FAILED {line}' for line in failed) if failed else 0)


if __name__ == '__main__':
    main()
