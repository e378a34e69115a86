"""The counts that docs/architecture.md prints beside the commands that make them, and docs/tour.md
of the programs and their twins."""
import os
import re
import subprocess

# A count that is this much off misleads nobody; a table that each change has to touch is a burden.
TOLERANCE = 0.02

ROW = re.compile(r'\| [^|]*\| (?:[^|]*\| )?([\d,]+) \| `(.*)` \|$')

# docs/tour.md: a program, and its lines against its twin's; each command takes more lines away.
TWINS = re.compile(r'\| `(\w+)` ((?:\| \d+ against \d+ ){3})\|$')
COUNTED = [r"""grep -vE '^\s*(//|# |\"\"\".*\"\"\"$|$)'""", r"grep -vE '^\s*[])}]+;?( +//.*)?$'",
           "grep -vE '^(#|import|from|using|namespace)'"]
SHARED = {'cnn': ['examples/cifar.h'], 'resnet': ['examples/resnet_program.h']}


def _lines(root, files, commands):
    pipe = ' | '.join(['cat ' + ' '.join(files), *commands, 'wc -l'])
    return int(subprocess.check_output(['bash', '-c', pipe], cwd=root, text=True))


def _of_twins(root):
    found = []
    rows = 0
    with open(os.path.join(root, 'docs/tour.md'), encoding='utf-8') as page:
        for number, line in enumerate(page, 1):
            if not (row := TWINS.match(line)):
                continue
            rows += 1
            name, printed = row[1], [int(text) for text in re.findall(r'\d+', row[2])]
            own = [f'examples/{name}.{ending}' for ending in ('h', 'cc')]
            own = [f for f in own + SHARED.get(name, []) if os.path.exists(os.path.join(root, f))]
            counted = [_lines(root, files, COUNTED[:i]) for i in (1, 2, 3)
                       for files in (own, [f'examples/pytorch/{name}.py'])]
            if any(abs(p - c) > max(1, TOLERANCE * c) for p, c in zip(printed, counted)):
                found.append(f'docs/tour.md:{number}: {name} has {printed}, counted {counted}')
    return found or ([] if rows else ['docs/tour.md has no counts of programs any more'])


def mistakes(root):
    return _of_commands(root) + _of_twins(root)


def _of_commands(root):
    found = []
    rows = 0
    with open(os.path.join(root, 'docs/architecture.md'), encoding='utf-8') as page:
        for number, line in enumerate(page, 1):
            if not (row := ROW.match(line.replace('\\|', '\0').rstrip())):
                continue
            rows += 1
            printed = int(row[1].replace(',', ''))
            command = row[2].replace('\0', '|')
            counted = int(subprocess.check_output(['bash', '-c', command], cwd=root, text=True))
            if abs(counted - printed) > TOLERANCE * counted:
                found.append(f'docs/architecture.md:{number}: {printed}, but `{command}` counts '
                             f'{counted}')
    return found or ([] if rows else ['docs/architecture.md has no counts any more'])
