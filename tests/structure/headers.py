"""What a program that includes weft.h has the compiler read, and what it hears from it."""
import glob
import os
import subprocess
import tempfile

# docs/embedding.md says it. Of these some 67,000 are the standard library's: <algorithm>, <locale>
# and <cmath> alone would be 12,000 more.
MOST_LINES = 75000


def version():
    return subprocess.check_output(['g++', '-dumpversion'], text=True).split('.')[0].strip()


def too_long(root):
    """Only g++ 12's headers are counted: other versions have more."""
    with tempfile.TemporaryDirectory() as tree:
        os.symlink(root, os.path.join(tree, 'weft'))
        text = subprocess.check_output(
            ['g++', '-std=c++20', '-E', '-P', '-I', tree, '-x', 'c++', '-'],
            input='#include "weft/weft.h"\n', text=True)
    lines = text.count('\n')
    return [] if lines <= MOST_LINES else [f'weft.h is {lines} lines with all that it includes']


def warnings(root):
    """The first of each program of tests/install, with the flags that the installed headers must bear."""
    found = []
    with tempfile.TemporaryDirectory() as tree:
        os.symlink(root, os.path.join(tree, 'weft'))
        for program in sorted(glob.glob(f'{root}/tests/install/*.cc')):
            done = subprocess.run(['g++', f'@{root}/tests/install/strict.flags', f'-I{tree}', program],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            if done.returncode:
                lines = [line for line in done.stdout.splitlines() if 'error' in line]
                found.append(f'{os.path.basename(program)}: {(lines or [done.stdout])[0]}')
    return found
