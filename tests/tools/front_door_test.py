#!/usr/bin/env python3
"""What ./weft itself answers, before anything is built: help and misuse."""
import os
import re
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main


class FrontDoorTest(ToolTest):
    tool = os.path.realpath(__file__).removesuffix("tests/tools/front_door_test.py") + "weft"

    def check_misuse(self, arguments, expected):
        status, said = self.run_tool(*arguments.split())
        self.assertEqual((status, said.strip()), (2, "weft: " + expected))

    def test_Help(self):
        usage = self.check_run("help")
        self.assertEqual(usage, self.check_run("--help"))
        self.assertEqual((2, usage), self.run_tool())
        commands = set(re.findall(r"^  ([a-z][a-z-]*) ", usage, re.MULTILINE))
        self.assertLessEqual({"run", "launch", "test", "bench", "gpu-pack", "lint"}, commands)
        for command in commands:
            self.assertIn(self.check_run("help", command), usage)

    # The lines of one command, all of them and no others'.
    def test_HelpOfOneCommand(self):
        said = self.check_run("help", "test")
        self.assertTrue(said.startswith("  test [options] [TEST...]\n"), said)
        self.assertIn("--filter PATTERN", said)
        self.assertNotIn("fuzz", said)
        for arguments in ("test --help", "test -h", "test --tsan --help"):
            self.assertEqual(said, self.check_run(*arguments.split()))
        for command in ("compile-commands", "docs", "format", "fuzz", "gpu-pack", "install", "learn",
                        "lint", "package", "prove", "test"):
            self.assertEqual(self.check_run("help", command), self.check_run(command, "--help"))

    def test_Misuse(self):
        for arguments, expected in (
            ("tets", "unknown command tets, did you mean test? (see ./weft help)"),
            ("help tets", "help: no command tets (see ./weft help)"),
            ("help test fuzz", "usage: ./weft help [COMMAND]"),
            ("test --tsn", "test: unknown option --tsn, did you mean --tsan?"),
            ("test --tsan --asan", "test: --asan and --tsan exclude each other"),
            ("test --peers --qemu", "test: --qemu and --peers exclude each other"),
            ("test --page", "test: unknown option --page, did you mean --pages?"),
            ("test --pages --soak", "test: --soak and --pages exclude each other"),
            ("test --pages parallel", "test: --pages goes with no name of a test"),
            ("test --simd sse", "test: --simd needs reference, baseline, avx2 or avx512"),
            ("test --filter", "test: --filter needs a pattern, e.g. --filter 'Conv2d.*'"),
            ("test --quick --tsan", "test: --quick goes with --cpu, --asan, --simd and --filter"),
            ("prove --rank 2 mlp_ddp", "prove: unknown option --rank, did you mean --ranks? (the "
             "program's options go behind its name)"),
            ("prove mlp_ddp --json", "prove: --json needs a value"),
            ("prove --against one", "prove: --against needs two folders of records"),
            ("prove mlp_ddp --against a b", "prove: --against takes no program, got mlp_ddp"),
            ("prove no.cc", "no file no.cc"),
            ("fuzz 0", "usage: ./weft fuzz [SECONDS]"),
            ("install", "usage: ./weft install PREFIX"),
            ("format --chek", "usage: ./weft format [--check]"),
            ("lint now", "lint takes no options"),
            ("docs --arch 90", "docs: --arch goes with what is built for GPUs"),
        ):
            with self.subTest(arguments):
                self.check_misuse(arguments, expected)


if __name__ == "__main__":
    main()
