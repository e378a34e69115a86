#!/usr/bin/env python3
"""The budget of docs/spine.txt, the includes within rooms, the files of families, ignored folders, the
headers' warnings, counts, tables, and the recipes of docs/adding.md."""
import os
import sys
from xml.etree import ElementTree

import counts
import families
import fixed_order
import headers
import ignored
import knots
import layering
import recipes
import spine
import tables


def main():
    # Bazel's links lead to the sources themselves; this test reads all of them.
    root = os.path.dirname(os.path.dirname(os.path.realpath(sys.argv[1])))
    cases = {'SpineStaysInItsBudget': spine.mistakes(root),
             'NoNewCircleOfIncludes': knots.mistakes(root),
             'NoIncludeGoesUpBetweenParts': knots.upward(root),
             'TheLayeringCheckFindsWhatIsWrong': layering.unnoticed(),
             'EveryHeaderRefusesAWrongCompiler': knots.without_refusal(root),
             'CountsOfTheDocsAreTrue': counts.mistakes(root),
             'SumsOnCudaHaveAFixedOrder': fixed_order.mistakes(root),
             'FilesOfAFamilyLieWhereTheDocsSay': families.mistakes(root),
             'NoImageHoldsIgnoredFolders': ignored.mistakes(root),
             'RecipesOfTheDocsFitTheSources': recipes.mistakes(root),
             'RecipesOfTheDocsCompile': recipes.compile_errors(root),
             'CellsOfTablesAreShort': tables.long_cells(root),
             'HeadersCompileWithoutWarnings': headers.warnings(root),
             'TablesOfChangesShowWhatDiffShows': tables.diffs(root)}
    if headers.version() == '12':
        cases['TheHeaderStaysSmall'] = headers.too_long(root)
    suites = ElementTree.Element('testsuites', name='structure')
    suite = ElementTree.SubElement(suites, 'testsuite', name='Structure')
    for name, mistakes in cases.items():
        case = ElementTree.SubElement(suite, 'testcase', classname='Structure', name=name)
        for mistake in mistakes:
            print(f'{name}: {mistake}')
            ElementTree.SubElement(case, 'failure', message=mistake)
    # Like GoogleTest, for tools/test_summary.py, if Bazel asks for it.
    if path := os.environ.get('XML_OUTPUT_FILE'):
        ElementTree.ElementTree(suites).write(path)
    return 1 if any(cases.values()) else 0


if __name__ == '__main__':
    sys.exit(main())
