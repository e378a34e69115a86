"""For tests of the tools in Python: a fixture, and main(), which reports as GoogleTest does."""
import fnmatch
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

# The root of the test's files, as Bazel has arranged them.
sys.path.insert(0, os.getcwd())


class ToolTest(unittest.TestCase):
    """`tool`: the program, from the root."""
    tool = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def path(self, name):
        return str(self.folder / name)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")
        return self.path(name)

    def run_tool(self, *arguments, **options):
        """Exit status, and stdout and stderr together."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        done = subprocess.run([self.tool, *arguments], check=False, **options)
        return done.returncode, (done.stderr or done.stdout or b"").decode(errors="surrogateescape")

    def check_run(self, *arguments):
        """What the tool prints; it must end with status 0."""
        status, said = self.run_tool(*arguments)
        self.assertEqual(status, 0, said)
        return said

    def check_refusal(self, arguments, expected):
        """Requires status 2 and a line of the tool's own that says why; returns the line."""
        with self.subTest(arguments=arguments):
            status, said = self.run_tool(*arguments)
            self.assertEqual(status, 2, said)
            self.assertIn(expected, said)
            self.assertTrue(said.startswith(os.path.basename(self.tool) + ": "), said)
            self.assertNotIn("Traceback", said)
            self.assertIn(said.count("\n"), (1, 2), said)  # the second one is "Try --help."
            return said

    def check_full_disk(self, *arguments):
        for unbuffered in ("", "1"):
            with self.subTest(arguments=arguments, unbuffered=unbuffered), \
                    open("/dev/full", "wb") as full:
                status, said = self.run_tool(*arguments, stdout=full, stderr=subprocess.PIPE,
                                             env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
                self.assertEqual(status, 2)
                self.assertEqual(said, os.path.basename(self.tool) + ": error: [stdout] some of "
                                       "the output is lost: No space left on device\n")


class _Result(unittest.TextTestResult):
    """With (class, name, messages of failures, reason to skip) of each test."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cases, self.messages, self.reason = [], [], None

    def startTest(self, test):
        super().startTest(test)
        self.messages, self.reason = [], None

    def stopTest(self, test):
        super().stopTest(test)
        self.cases.append((*test.id().split(".")[-2:], self.messages, self.reason))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.messages.append(str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.messages.append(repr(err[1]))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.messages.append(f"{subtest}: {err[1]}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.reason = reason


def _flat(tests):
    for test in tests:
        yield from _flat(test) if isinstance(test, unittest.TestSuite) else [test]


def _is_wanted(test):
    """By GoogleTest's pattern, which `bazel test --test_filter` gives."""
    wanted, _, unwanted = os.environ.get("TESTBRIDGE_TEST_ONLY", "*").partition("-")
    name = ".".join(test.id().split(".")[-2:])

    def matches(patterns):
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split(":"))
    return matches(wanted or "*") and not matches(unwanted)


def main():
    tests = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    suite = unittest.TestSuite(test for test in _flat(tests) if _is_wanted(test))
    result = unittest.TextTestRunner(verbosity=2, resultclass=_Result).run(suite)
    root = ElementTree.Element("testsuites", name="AllTests")
    for suite_name, name, messages, reason in result.cases:
        case = ElementTree.SubElement(root, "testcase", classname=suite_name, name=name,
                                      result="completed" if reason is None else "skipped")
        for message in messages:
            ElementTree.SubElement(case, "failure", message=message)
        if reason is not None:
            ElementTree.SubElement(case, "skipped", message=reason)
    if os.environ.get("XML_OUTPUT_FILE"):
        ElementTree.ElementTree(root).write(os.environ["XML_OUTPUT_FILE"])
    sys.exit(not result.wasSuccessful())
