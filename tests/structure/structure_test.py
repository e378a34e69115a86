#!/usr/bin/env python3
"""The budget of docs/spine.txt, and the includes within rooms."""
import os
import sys
from xml.etree import ElementTree

import knots
import spine


def main():
    # Bazel's links lead to the sources themselves, of which this reads all.
    root = os.path.dirname(os.path.dirname(os.path.realpath(sys.argv[1])))
    cases = {'SpineStaysInItsBudget': spine.mistakes(root),
             'NoNewCircleOfIncludes': knots.mistakes(root),
             'NoIncludeGoesUpBetweenParts': knots.upward(root)}
    suites = ElementTree.Element('testsuites', name='structure')
    suite = ElementTree.SubElement(suites, 'testsuite', name='Structure')
    for name, mistakes in cases.items():
        case = ElementTree.SubElement(suite, 'testcase', classname='Structure', name=name)
        for mistake in mistakes:
            print(f'{name}: {mistake}')
            ElementTree.SubElement(case, 'failure', message=mistake)
    # As GoogleTest does, for tools/test_summary.py, where Bazel asks for it.
    if path := os.environ.get('XML_OUTPUT_FILE'):
        ElementTree.ElementTree(suites).write(path)
    return 1 if any(cases.values()) else 0


if __name__ == '__main__':
    sys.exit(main())
