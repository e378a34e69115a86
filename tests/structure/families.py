"""Where the files of a family of kernels lie, by the table of docs/adding_kernels.md.

A family is a line of WEFT_FAMILIES in kernels/backend.h. A row of the table whose first cell ends
in "if any" need not have a file for each of them.
"""
import collections
import fnmatch
import os
import re

# Folders of families' files alone, and the files of other names in them: what families share.
FOLDERS = {
    'kernels': ['activation', 'arithmetic', 'backend', 'cuda_library', 'cuda_loader', 'elementwise_list',
                'functors', 'pool_axis', 'view'],
    'kernels/plan': ['choice_cache', 'choices', 'plan', 'plan_cache'],
    'kernels/reference': ['activation', 'elements', 'reference'],
    'kernels/cpu': ['activation', 'backend', 'candidates', 'copy', 'element', 'loop', 'runtime'],
    'kernels/cpu/loops': ['copy', 'lanes', 'table', 'tiles', 'vector_bytes', 'vector_math',
                          'winograd'],
    'kernels/cuda': ['access', 'backend', 'block_fold', 'capability', 'channel_parts', 'check', 'copy',
                     'cudnn_attention', 'cudnn_graph', 'device_wide', 'families', 'gpus', 'handles',
                     'image_packs', 'index_check', 'index_math', 'kernel_names', 'launch',
                     'launch_size', 'libraries', 'library', 'linked', 'memory_parts', 'philox', 'recording',
                     'rows', 'runtime', 'slot_table', 'timing'],
}
# Folders of kernels/cpu that are no family's.
SHARED_FOLDERS = ['dnnl', 'loops']
SOURCES = ('.h', '.cc', '.cu', '.cuh')


def families(root):
    with open(os.path.join(root, 'kernels/backend.h'), encoding='utf-8') as file:
        text = file.read()
    listed = re.search(r'#define WEFT_FAMILIES\(X\)(.*?[^\\])\n', text, re.S)[1]
    return re.findall(r'X\(\w+, (\w+)\)', listed)


def rows(root):
    """(what, whether each family needs it, patterns with FAMILY) of the table."""
    found = []
    with open(os.path.join(root, 'docs/adding_kernels.md'), encoding='utf-8') as page:
        for line in page:
            patterns = re.findall(r'`([^`]*FAMILY[^`]*)`', line)
            if line.startswith('| ') and patterns:
                what = line.split('|')[1].strip()
                found.append((what, not what.endswith('if any'), patterns))
    return found


def sources(root, folder):
    return sorted(f'{folder}/{name}' for name in os.listdir(os.path.join(root, folder))
                  if name.endswith(SOURCES))


def mistakes(root):
    names, table = families(root), rows(root)
    if not names or not table:
        return ['no WEFT_FAMILIES in kernels/backend.h, or no table of FAMILY in docs/adding_kernels.md']
    folders = list(FOLDERS) + [
        f'kernels/cpu/{name}' for name in sorted(os.listdir(os.path.join(root, 'kernels/cpu')))
        if os.path.isdir(os.path.join(root, 'kernels/cpu', name)) and name not in SHARED_FOLDERS]
    files = [file for folder in folders for file in sources(root, folder)]
    files += sources(root, 'tests/kernels')
    found, known = [], collections.defaultdict(set)
    for name in names:
        for what, needed, patterns in table:
            of_family = [file for file in files for pattern in patterns
                         if fnmatch.fnmatch(file, pattern.replace('FAMILY', name))]
            for file in of_family:
                known[file].add(name)
            if needed and not of_family:
                found.append(f'{name} has no file of "{what}" ({", ".join(patterns)})')
    for file in files:
        folder, base = os.path.split(file)
        stem = os.path.splitext(base)[0]
        if stem in names and stem not in known[file]:
            found.append(f'{file} is no place for {stem}, by docs/adding_kernels.md')
        elif not known[file] and stem not in FOLDERS.get(folder, []) and folder != 'tests/kernels':
            found.append(f'{file} is of no family, by docs/adding_kernels.md, and not in families.py')
    for folder, shared in FOLDERS.items():
        stems = {os.path.splitext(os.path.basename(file))[0] for file in sources(root, folder)}
        found += [f'{folder}/{name}, in families.py, does not exist'
                  for name in shared if name not in stems]
    return found
