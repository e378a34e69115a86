"""Tables of the docs: cells that can be read, and rows for all lines that diff shows."""
import difflib
import glob
import os
import re

MOST_CHARACTERS = 200

CELL = re.compile(r'(?<!\\)\|')
DIFF = re.compile(r'`diff (\S+) (\S+)` (also )?shows:\n\n\|[^\n]*\n\|[^\n]*\n((?:\|[^\n]*\n)+)')


PAGES = ('*.md', 'docs/*.md', 'emulator/*.md', 'learn/*.md', 'learn/*/README.md')


def _pages(root):
    for path in sorted(path for pages in PAGES for path in glob.glob(os.path.join(root, pages))):
        with open(path, encoding='utf-8') as page:
            yield os.path.relpath(path, root), page.read()


def _cells(line):
    return [cell.strip() for cell in CELL.split(line.strip().strip('|'))]


def long_cells(root):
    found = []
    for name, text in _pages(root):
        in_code = False
        for number, line in enumerate(text.splitlines(), 1):
            in_code ^= line.startswith('```')
            for cell in _cells(line) if line.startswith('|') and not in_code else ():
                if len(cell) > MOST_CHARACTERS:
                    found.append(f'{name}:{number}: a cell has {len(cell)} characters, at most '
                                 f'{MOST_CHARACTERS} are easy to read: {cell}')
    return found


def _statements(lines):
    """The lines joined to statements, without comments, blanks, and what has only brackets."""
    statement = ''
    for line in lines:
        line = line.split('//')[0].strip()
        statement = f'{statement} {line}'.strip()
        if line.endswith((';', '{')) or line.startswith('#'):
            yield statement
            statement = ''
    yield statement


def changes(root, old, new):
    """The statements of each place where the files differ: those added, else those removed."""
    lines = []
    for path in (old, new):
        with open(os.path.join(root, path), encoding='utf-8') as source:
            lines.append(source.read().splitlines())
    for tag, a, b, c, d in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes():
        if tag != 'equal':
            sides = [[s for s in _statements(part) if re.search(r'\w', s)]
                     for part in (lines[0][a:b], lines[1][c:d])]
            yield sides[1] or sides[0]


def mistakes_of_diff(name, old, new, also, rows, statements):
    quoted = [code for row in rows.splitlines() for code in re.findall(r'`([^`]+)`', _cells(row)[0])]
    found = [f'{name}: `{code}` is not in what `diff {old} {new}` shows' for code in quoted
             if not any(re.search(_pattern(code), s) for s in statements)]
    if not also:
        found += [f'{name}: the table has no row for a line that `diff {old} {new}` shows: {s}'
                  for s in statements if not any(re.search(_pattern(code), s) for code in quoted)]
    return found


def _pattern(code):
    return '.*'.join(map(re.escape, code.split('...')))


def diffs(root):
    found, count = [], 0
    for name, text in _pages(root):
        for old, new, also, rows in DIFF.findall(text):
            count += 1
            statements = [s for change in changes(root, old, new) for s in change]
            found += mistakes_of_diff(name, old, new, also, rows, statements)
    return found or ([] if count else ['no page has a table of what diff shows any more'])
