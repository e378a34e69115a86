"""Units of a room that include each other, in a circle. A unit is a header with its source file.

usage: knots.py ROOT
"""
import collections
import os
import re
import sys

ROOMS = ['core', 'kernels', 'tensor', 'autograd', 'nn', 'optim', 'data', 'io', 'comm', 'parallel',
         'train', 'launch', 'tools', 'benchmarks', 'examples']
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
            # A source that does not include its header is no part of it: a program.
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


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = sys.argv[1]
    for room in ROOMS:
        for knot in knots(units(root, room)):
            print(f'{room}: {len(knot)} units: ' + ', '.join(knot))


if __name__ == '__main__':
    main()
