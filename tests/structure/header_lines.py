"""What a program that includes weft.h has the compiler read."""
import os
import subprocess
import tempfile

# docs/embedding.md says it. Of these some 67,000 are the standard library's: <algorithm>, <locale>
# and <cmath> alone would be 12,000 more.
MOST_LINES = 75000


def version():
    return subprocess.check_output(['g++', '-dumpversion'], text=True).split('.')[0].strip()


def mistakes(root):
    """Only g++ 12's headers are counted: other versions have more."""
    with tempfile.TemporaryDirectory() as tree:
        os.symlink(root, os.path.join(tree, 'weft'))
        text = subprocess.check_output(
            ['g++', '-std=c++20', '-E', '-P', '-I', tree, '-x', 'c++', '-'],
            input='#include "weft/weft.h"\n', text=True)
    lines = text.count('\n')
    return [] if lines <= MOST_LINES else [f'weft.h is {lines} lines with all that it includes']
