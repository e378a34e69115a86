"""Fails where a source includes a header of weft that none of its target's direct dependencies has.

Bazel itself refuses only headers that no dependency has at all, however far. What is read are the
BUILD files, with all branches of each select(), and the lines `#include "weft/..."`.

usage: layering.py ROOT
"""
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict, namedtuple
from xml.etree import ElementTree

_INCLUDE = re.compile(r'^\s*#\s*include\s+"weft/([^"]+)"', re.MULTILINE)
_CODE = ('.h', '.cuh', '.inc', '.cc', '.cu')

Target = namedtuple('Target', ('headers', 'sources', 'deps'))


def targets(query):
    """From `bazel query --output=xml`: label -> Target, of labels."""
    found = {}
    for rule in ElementTree.fromstring(query):
        name = rule.get('name')
        lists = defaultdict(list, {part.get('name'): [label.get('value') for label in part]
                                   for part in rule if part.tag == 'list'})
        if rule.get('class') in ('alias', 'filegroup'):
            found[name] = Target([part.get('name') for part in rule if part.tag == 'rule-input'], [], [])
            continue
        headers = lists['hdrs'] + lists['textual_hdrs']
        # Those of a cuda_library are a target of their own.
        headers += [dep for dep in lists['deps'] if dep == re.sub('_(nvcc|emulated)$', '_headers', name)]
        found[name] = Target(headers, lists['srcs'], lists['deps'])
    return found


def headers_of(label, all_targets):
    """The paths of the headers that who names `label` may include."""
    if label not in all_targets:  # a file
        return {label[2:].replace(':', '/').lstrip('/')}
    return {path for header in all_targets[label].headers for path in headers_of(header, all_targets)}


def mistakes(all_targets, root):
    for label, target in sorted(all_targets.items()):
        # Headers alone are read as parts of other targets.
        if not target.sources:
            continue
        own = {path for part in target.sources + target.headers for path in headers_of(part, all_targets)}
        allowed = own.union(*(headers_of(dep, all_targets) for dep in target.deps))
        for path in sorted(own):
            full = os.path.join(root, path)
            if not path.endswith(_CODE) or not os.path.isfile(full):
                continue
            with open(full, encoding='utf-8') as file:
                for included in _INCLUDE.findall(file.read()):
                    if included not in allowed:
                        yield f'{path} includes weft/{included}: {label} depends on no target that has it'


# Two sources of //b include c.h, which only //a depends on.
_EXAMPLE = """<query>
<rule class="cc_library" name="//a:a"><list name="hdrs"><label value="//a:a.h"/></list>
  <list name="deps"><label value="//c:c"/></list></rule>
<rule class="cc_library" name="//c:c"><list name="hdrs"><label value="//c:c.h"/></list></rule>
<rule class="alias" name="//b:alias_of_a"><rule-input name="//a:a"/></rule>
<rule class="cc_library" name="//b:b"><list name="srcs"><label value="//b:b.cc"/></list>
  <list name="hdrs"><label value="//b:b.h"/></list><list name="deps"><label value="//b:alias_of_a"/></list></rule>
</query>"""


def unnoticed():
    """What this check finds in an example, if it is not what is wrong there."""
    with tempfile.TemporaryDirectory() as root:
        os.mkdir(os.path.join(root, 'b'))
        for file, included in {'b.cc': 'b/b.h', 'b.h': 'a/a.h'}.items():
            with open(os.path.join(root, 'b', file), 'w', encoding='utf-8') as out:
                out.write(f'#include "weft/{included}"\n#include "weft/c/c.h"\n')
        found = list(mistakes(targets(_EXAMPLE), root))
    wanted = [f'b/{file} includes weft/c/c.h: //b:b depends on no target that has it' for file in ('b.cc', 'b.h')]
    return [] if found == wanted else [f'found {found} in the example']


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit(__doc__.strip().splitlines()[-1])
    query = subprocess.run(['bazel', 'query', '--noshow_progress', '--output=xml', 'kind(rule, //...)'],
                           cwd=sys.argv[1], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = list(mistakes(targets(query), sys.argv[1]))
    for mistake in found:
        print(mistake)
    print(f'{0 if found else 1} passed, {len(found)} failed, 0 skipped')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
