"""What docs/spine.txt has a reader open, counted, and compared with what runs.

usage: spine.py ROOT                     counts
       spine.py ROOT WALK=COVERAGE...    compares with JSON of llvm-cov export

The page has a path a line. A line `# relu` begins a walk; who follows it has followed those before
it. `- PATH reason` or `- PATH:NAME reason` says that a file, or the functions of it whose names
contain NAME, run in this walk or later ones and need not be read; PATH may be a pattern.
"""
import collections
import fnmatch
import glob
import json
import os
import sys

# For all walks together, but those of APART.
MOST_LINES = 9999
MOST_FILES = 64
# A walk of an engine that a reader may leave out: the lines of the files that it alone opens.
APART = {'zero_step': 450, 'tp_step': 1540, 'cp_step': 400, 'fsdp_step': 1275,
         'sharded_pipeline_step': 1490, 'checkpoint_parts': 1380}


class Walk:
    def __init__(self):
        self.paths = []
        self.excused = []  # (path, part of a function's name or '')

    def excuses(self, path, function):
        return any(fnmatch.fnmatch(path, p) and name in function for p, name in self.excused)


def read(root):
    """The walks by name; '' has what is excused for all."""
    walks = collections.OrderedDict({'': Walk()})
    walk = walks['']
    with open(os.path.join(root, 'docs/spine.txt'), encoding='utf-8') as page:
        for number, line in enumerate(page, 1):
            line = line.strip()
            if not line:
                continue
            if line.startswith('# '):
                walk = walks.setdefault(line[2:], Walk())
                continue
            excused = line.startswith('- ')
            place, _, reason = line[2:].partition(' ') if excused else (line, '', '')
            path, _, name = place.partition(':')
            if not glob.glob(os.path.join(root, path)):
                sys.exit(f'docs/spine.txt:{number}: there is no file {path}')
            if excused and not reason.strip():
                sys.exit(f'docs/spine.txt:{number}: {place} needs a reason')
            if excused:
                walk.excused.append((path, name))
            elif walk is walks['']:
                sys.exit(f'docs/spine.txt:{number}: {path} belongs to no walk')
            else:
                walk.paths.append(path)
    return walks


def lines_of(root, path):
    with open(os.path.join(root, path), encoding='utf-8') as file:
        return sum(1 for _ in file)


def mistakes(root):
    """Prints the counts of each walk; what is over the budget."""
    walks = read(root)
    seen = {}
    found = []
    for name, walk in walks.items():
        if not name:
            continue
        sizes = {path: lines_of(root, path) for path in walk.paths}
        new = {path: lines for path, lines in sizes.items() if path not in seen}
        print(f'{name}: {sum(sizes.values())} lines in {len(sizes)} files, of them new: '
              f'{sum(new.values())} in {len(new)}')
        if name not in APART:
            seen.update(new)
        elif sum(new.values()) > APART[name]:
            found.append(f'docs/spine.txt: {name} opens {sum(new.values())} lines more, at most '
                         f'{APART[name]}')
    lines, files = sum(seen.values()), len(seen)
    print(f'together: {lines} lines in {files} files (at most {MOST_LINES} in {MOST_FILES})')
    excused = {os.path.relpath(path, root) for walk in walks.values() for place, _ in walk.excused
               for path in glob.glob(os.path.join(root, place)) if os.path.isfile(path)} - set(seen)
    print(f'not to be read, though functions of them run: '
          f'{sum(lines_of(root, path) for path in excused)} lines in {len(excused)} files')
    if lines > MOST_LINES or files > MOST_FILES:
        found += [f'docs/spine.txt: {lines} lines in {files} files, at most {MOST_LINES} in '
                  f'{MOST_FILES}: a walk that has become longer needs another one to become shorter']
    return found


def ran(coverage):
    """(path, name, lines) of each function that ran."""
    with open(coverage, encoding='utf-8') as file:
        data = json.load(file)['data'][0]
    for function in data['functions']:
        if not function['count']:
            continue
        path = function['filenames'][0]
        path = path[path.rfind('/weft/') + 6:] if '/_virtual_includes/' in path else path
        path = path.removeprefix('/proc/self/cwd/')
        regions = function['regions']
        yield path, function['name'], regions[0][2] - regions[0][0] + 1


def compare(root, pairs):
    walks = read(root)
    coverages = dict(pair.split('=', 1) for pair in pairs)
    if unknown := set(coverages) - set(walks):
        sys.exit(f'docs/spine.txt has no walk {min(unknown)}')
    missing = 0
    known, before = set(), []
    for name, walk in walks.items():
        known.update(walk.paths)
        before.append(walk)
        if name not in coverages:
            continue
        found = collections.defaultdict(dict)
        for path, function, lines in ran(coverages[name]):
            if not os.path.isfile(os.path.join(root, path)) or path.startswith('tests/'):
                continue
            if path not in known and not any(w.excuses(path, function) for w in before):
                found[path][function] = lines
        for path in sorted(found):
            functions = found[path]
            print(f'{name}: {path}: {len(functions)} functions, {sum(functions.values())} lines: '
                  + ', '.join(sorted(functions)[:5]))
        missing += len(found)
    return 1 if missing else 0


def main():
    if len(sys.argv) == 2:
        sys.exit('\n'.join(mistakes(sys.argv[1])) or 0)
    if len(sys.argv) > 2:
        sys.exit(compare(sys.argv[1], sys.argv[2:]))
    sys.exit(__doc__)


if __name__ == '__main__':
    main()
