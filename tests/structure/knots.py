"""Circles of includes within a room, includes that go up between its parts, and headers that do not
refuse a compiler.

usage: knots.py ROOT                     prints each room's circles and their files

A unit is a header with its source file. Ends with status 1 for a circle that KNOWN does not list,
and for one of the other mistakes.
"""
import collections
import os
import re
import subprocess
import sys

ROOMS = ['core', 'kernels', 'tensor', 'autograd', 'nn', 'optim', 'data', 'io', 'c_api', 'onnx', 'comm', 'parallel',
         'train', 'launch', 'tools', 'benchmarks', 'examples', 'learn']
# From lower to higher; files directly in the room's folder are the highest.
PARTS = {'core': ['base', 'runtime', 'trace'], 'comm': ['store', 'backend', 'group'], 'train': ['proof']}

# The existing ones. A new one needs a reason, and has at most three units.
KNOWN = [
    # One thing in three files each: the spans, their clock on a device and their text; the
    # collectives, which a backend has by default, and the sums in them; a module, the node that its
    # handles share, and the hooks that the node keeps and a call of the module runs.
    ['core/trace/trace', 'core/trace/trace_device', 'core/trace/trace_json'],
    ['comm/backend/backend', 'comm/backend/collectives', 'comm/backend/reduce'],
    ['nn/forward_hooks', 'nn/module', 'nn/module_node'],
]

SOURCES = ('.h', '.cc', '.cu', '.cuh')
INCLUDE = re.compile(r'#include "weft/([^"]+)"')


def units(root, room):
    """The units that each unit of the room includes, by name: the path without its ending."""
    edges = collections.defaultdict(set)
    for folder, _, files in os.walk(os.path.join(root, room)):
        for file in files:
            name, ending = os.path.splitext(file)
            if ending not in SOURCES:
                continue
            path = os.path.join(folder, file)
            unit = os.path.relpath(os.path.join(folder, name), root)
            with open(path, encoding='utf-8') as text:
                found = (INCLUDE.match(line) for line in text)
                included = {os.path.splitext(f[1])[0] for f in found if f}
            # A source that does not include a header of its name is a program, not a part of the
            # unit.
            if ending not in ('.h', '.cuh') and unit not in included:
                unit += ending
            edges[unit] |= {name for name in included if name.startswith(room + '/')} - {unit}
    return edges


def knots(edges):
    """Strongly connected components of more than one unit (Tarjan, SIAM J. Comput. 1(2), 1972)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(unit):
        index[unit] = low[unit] = len(index)
        stack.append(unit)
        on_stack.add(unit)
        for other in sorted(edges.get(unit, ())):
            if other not in index:
                visit(other)
                low[unit] = min(low[unit], low[other])
            elif other in on_stack:
                low[unit] = min(low[unit], index[other])
        if low[unit] == index[unit]:
            knot = []
            while not knot or knot[-1] != unit:
                knot.append(stack.pop())
                on_stack.discard(knot[-1])
            if len(knot) > 1:
                found.append(sorted(knot))

    sys.setrecursionlimit(10000)
    for unit in sorted(edges):
        if unit not in index:
            visit(unit)
    return found


def upward(root):
    """Includes from a part of a room to one above it."""
    found = []
    for room, parts in PARTS.items():
        level = {part: i for i, part in enumerate(parts)}

        def part_of(unit):
            return unit.split('/')[1] if unit.count('/') > 1 else ''

        for unit, others in sorted(units(root, room).items()):
            for other in sorted(others):
                if level.get(part_of(other), -1) > level.get(part_of(unit), len(parts)):
                    found.append(f'{unit} includes {other}, which is above it')
    return found


def without_refusal(root):
    """Headers of the library that do not bring core/base/compiler.h, which says what weft needs."""
    included = {}
    for header in subprocess.check_output([os.path.join(root, 'tools/public_headers')],
                                          text=True).split():
        with open(os.path.join(root, header), encoding='utf-8') as text:
            included[header] = [f[1] for f in map(INCLUDE.match, text) if f]
    refusing = {'core/base/compiler.h'}
    while more := {h for h in included if refusing & set(included[h])} - refusing:
        refusing |= more
    return [f'{header} has no way to core/base/compiler.h: include it'
            for header in sorted(set(included) - refusing)]


def files_of(root, unit):
    return [unit + ending for ending in ('', *SOURCES) if os.path.isfile(os.path.join(root, unit + ending))]


def mistakes(root):
    """Prints the circles of each room; those that are new, and those listed that are none."""
    found = set()
    for room in ROOMS:
        circles = knots(units(root, room))
        print(f'{room}: {len(circles) or "no"} circle{"" if len(circles) == 1 else "s"} of includes')
        for circle in circles:
            print('  ' + '; '.join(', '.join(files_of(root, unit)) for unit in circle))
        found.update(map(tuple, circles))
    known = {tuple(knot) for knot in KNOWN}
    return ([f'a new circle of includes: {", ".join(knot)}' for knot in sorted(found - known)] +
            [f'no longer a circle, so no longer to be listed in knots.py: {", ".join(knot)}'
             for knot in sorted(known - found)])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = sys.argv[1]
    sys.exit('\n'.join(mistakes(root) + upward(root) + without_refusal(root)) or 0)


if __name__ == '__main__':
    main()
