#!/usr/bin/env python3
"""What ./weft itself answers, before anything is built: help and misuse."""
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

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
            ("learn 99",
             f"learn: no exercise 99 (there are: {' '.join(map(str, range(1, 15)))})"),
            ("learn 1 2", "learn: one exercise at a time, got 1 and 2"),
            ("learn 11 --hint 2", "learn: one exercise at a time, got 11 and 2 (--hint takes no "
             "number: each call gives the next)"),
            ("learn --hint", "learn: --hint of which exercise? e.g. ./weft learn 1 --hint"),
            ("learn 1 --hint --break", "learn: --hint and --break exclude each other"),
            ("learn 1 --refrence",
             "learn: unknown option --refrence, did you mean --reference?"),
        ):
            with self.subTest(arguments):
                self.check_misuse(arguments, expected)


class BuiltTest(ToolTest):
    """A copy of ./weft whose Bazel has built all: what it starts prints its arguments."""

    def setUp(self):
        super().setUp()
        source = os.path.dirname(FrontDoorTest.tool)
        self.root = self.folder.resolve() / "root"
        self.tool = str(self.root / "weft")
        (self.root / "tools").mkdir(parents=True)
        shutil.copy(FrontDoorTest.tool, self.root)
        shutil.copy(source + "/tools/packages.txt", self.root / "tools")
        (self.root / "examples").mkdir()
        for example in ("mlp", "mlp_ddp"):
            (self.root / f"examples/{example}.cc").write_text("int main() {}\n")
        self.bin = self.root / "bin"
        self.write_program("launch/weftrun", 'echo weftrun "$@"')
        self.write_program("bazel", f'[ "$1" != info ] || echo {self.bin}')
        self.write_program("dpkg-query", 'for p; do echo "installed $p"; done')
        (self.folder / "home").mkdir()
        self.env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": self.path("home"),
                    "CUDA_HOME": self.path("no_cuda"), "TMPDIR": self.path("home")}
        for name in ("WEFT_ARCH", "CI"):
            self.env.pop(name, None)

    def write_program(self, name, text):
        program = self.bin / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/bash\n" + text + "\n")
        program.chmod(0o755)
        return program

    def launched(self, arguments):
        status, said = self.run_tool("launch", *arguments.split(), env=self.env)
        self.assertEqual(status, 0, said)
        return said.splitlines()[-1]

    def test_LaunchTellsValuesFromPrograms(self):
        program = str(self.write_program("prog", "true"))
        for options, name, path in (
            ("--rdzv-id mlp_ddp", "mlp_ddp", self.bin / "examples/mlp_ddp"),
            ("--log_dir mlp --nproc-per-node 2", "mlp_ddp", self.bin / "examples/mlp_ddp"),
            ("--report mlp.cc", "mlp_ddp", self.bin / "examples/mlp_ddp"),
            ("-r3 -t3 -Hlocalhost:2 --role=mlp --no_python --standalone", program, program),
            ("-r3", program, program),
            ("-np 2 -r 3 -H localhost:2 --", program, program),
            ("--unknown", "mlp_ddp", self.bin / "examples/mlp_ddp"),
        ):
            with self.subTest(options):
                self.assertEqual(self.launched(f"{options} {name} --epochs 2"),
                                 f"weftrun {options} {path} --epochs 2")

    def test_ArchBehindTheUsersProgramIsItsOwn(self):
        program = str(self.write_program("prog", "true"))
        self.assertEqual(self.launched(f"--log_dir x {program} --arch wide --arch=wide"),
                         f"weftrun --log_dir x {program} --arch wide --arch=wide")
        for command in ("launch --log-dir x --arch 90 mlp", "run --arch 90 mlp", "run mlp --arch 90",
                        "run mlp --data ./x --arch 90", "prove --ranks 2 --arch=90 mlp"):
            status, said = self.run_tool(*command.split(), env=self.env)
            self.assertEqual((status, said.strip()), (
                1, f"weft: {command.split()[0]}: --arch needs a CUDA toolkit in /usr/local/cuda, or "
                "set CUDA_HOME"))

    def test_TheLogOfABuild(self):
        began = self.folder / "began"
        self.write_program("bazel", f'[ "$1" = build ] || exit 0\necho "no such thing" >&2\n'
                           f'echo $$ >{began}.part; mv {began}.part {began}; [ -z "$SLOW" ] || exec '
                           'sleep 60\nexit 3')
        status, said = self.run_tool("run", "mlp", env=self.env)
        self.assertEqual((status, said), (3, "weft: building //examples:mlp\nno such thing\n"))
        self.assertEqual(os.listdir(self.folder / "home"), [])
        began.unlink()
        with subprocess.Popen([self.tool, "run", "mlp"], env={**self.env, "SLOW": "1"},
                              stderr=subprocess.DEVNULL) as door:
            while not began.exists():
                time.sleep(0.01)
            door.terminate()
        self.wait_for_end(int(began.read_text()))
        self.assertEqual(os.listdir(self.folder / "home"), [])

    def wait_for_end(self, process):
        """Fails, and ends the process, if it goes on for ten seconds."""
        stat = pathlib.Path(f"/proc/{process}/stat")
        for _ in range(1000):
            try:  # nobody may be there to collect what has ended
                if stat.read_text().rpartition(") ")[2].startswith("Z"):
                    return
            except OSError:
                return
            time.sleep(0.01)
        os.kill(process, signal.SIGKILL)
        self.fail("Bazel builds on")

    def test_AQuoteInTheTemporaryFolder(self):
        (self.root / "tools/test_summary.py").touch()
        folder = self.folder / "it's here"
        folder.mkdir()
        status, said = self.run_tool("test", env={**self.env, "TMPDIR": str(folder)})
        self.assertEqual((status, os.listdir(folder)), (0, []), said)

    def test_WithoutAHome(self):
        (self.root / "tools/compile_commands.py").write_text("import sys\nprint(*sys.argv[1:])\n")
        del self.env["HOME"]
        status, said = self.run_tool("compile-commands", env=self.env)
        self.assertEqual(status, 0, said)
        self.assertRegex(said, rf"^{self.root} {self.folder}/home/weft-home-[0-9]+/\.cache/weft/programs/")

    # A folder that somebody else has made in /tmp is none to run programs from.
    def test_AHomeOfAnotherUser(self):
        others = [folder for folder in ("/usr", "/var/cache/apt/archives/partial", "/var/lib/apt/lists/partial")
                  if os.path.isdir(folder) and os.stat(folder).st_uid != os.getuid()]
        if not others:
            self.skipTest("no known folder belongs to another user")
        del self.env["HOME"]
        home = self.folder / f"home/weft-home-{os.getuid()}"
        home.symlink_to(others[0])
        status, said = self.run_tool("run", "mlp", env=self.env)
        self.assertEqual((status, said), (
            1, f"weft: there is no HOME that can be written, and {home} belongs to another user; set "
            "HOME to a folder of yours\n"))

    def test_CdpathMovesNothing(self):
        (self.root / "tools/install").mkdir()
        script = self.root / "tools/install/install.sh"
        script.write_text('#!/bin/bash\necho "to $1"\n')
        script.chmod(0o755)
        (self.bin / "libraries.txt").write_text("")
        (self.folder / "elsewhere/prefix").mkdir(parents=True)
        for path in (".", self.path("elsewhere")):
            status, said = self.run_tool("install", "prefix", cwd=self.folder,
                                         env={**self.env, "CDPATH": path})
            self.assertEqual(status, 0, said)
            self.assertIn(f"\nto {self.folder.resolve()}/prefix\n", said)

    def prepare_compiler(self, meanwhile):
        """g++ makes programs that say who they are."""
        (self.root / "core/base").mkdir(parents=True)
        (self.root / "core/base/version.h").touch()
        (self.bin / "libraries.txt").write_text("")
        self.write_program("g++", 'until [ "$1" = -o ]; do file=$1; shift; done\n'
                           """printf '#!/bin/bash\\necho "I am ${0##*/}"\\n' >"$2"; chmod +x "$2"\n"""
                           'until [ "$1" = -MF ]; do shift; done; echo "x: ${file// /\\\\ }" >"$2"\n'
                           + meanwhile)

    # Beside a program lies nothing, so it may have any name.
    def test_ProgramsOfAnyName(self):
        self.prepare_compiler("")
        for name in ("sums.cc", "a b.cc"):
            source = self.write(name, "")
            for compiling in (True, False):
                status, said = self.run_tool("run", source, env=self.env)
                self.assertEqual((status, said.splitlines()[-1]), (0, f"I am {name[:-3]}"), said)
                self.assertEqual(f"weft: compiling {source}" in said, compiling, said)

    def test_AFileThatIsSavedWhileItCompiles(self):
        source = self.write("mine.cc", "")
        self.prepare_compiler(f'[ -e {self.path("once")} ] || touch {self.path("once")} {source}')
        for compiling in (True, True, False):
            status, said = self.run_tool("run", source, env=self.env)
            self.assertEqual((status, said.splitlines()[-1]), (0, "I am mine"), said)
            self.assertEqual(f"weft: compiling {source}" in said, compiling, said)
        programs = self.folder / "home/.cache/weft/programs"
        left = [file.name for file in programs.rglob("*") if re.search(r"\.(began|d)$", file.name)]
        self.assertEqual(left, [])

    def test_LearnRemembersAllThatWasRight(self):
        exercise = self.root / "learn/02_ring_allreduce"
        exercise.mkdir(parents=True)
        (exercise / "README.md").write_text("# 2. Ring all-reduce\n")
        self.write_program("learn/02_ring_allreduce/lab", 'grep -q right "$SOLUTION"')
        self.env["SOLUTION"] = str(exercise / "solution.cc")
        for text, state in (("right", "solved"), ("wrong", "begun, not judged right yet"),
                            ("right, too", "solved"), ("right", "solved")):
            (exercise / "solution.cc").write_text(text)
            said = [self.run_tool("learn", *words, env=self.env) for words in ((), ("2",), ())]
            self.assertEqual(said[1][0], int(text == "wrong"), said)
            self.assertIn(state, said[2][1])
        self.assertIn("solved", said[0][1])  # before it was judged again

    def test_LaunchKnowsEachOptionOfWeftrun(self):
        """Also one that launch/options.cc gets later."""
        with open(os.path.dirname(FrontDoorTest.tool) + "/launch/options.cc", encoding="utf-8") as file:
            text = file.read()
        names = re.findall(r'add\("([^"]+)", (\S+),', text)
        self.assertGreater(len(names), 20)
        flags = {"texts.standalone", "options.no_python"}
        for all_names, variable in names:
            for option in all_names.split(","):
                words = option if variable in flags else option + " mlp"
                self.assertEqual(self.launched(words + " mlp_ddp"),
                                 f"weftrun {words} {self.bin}/examples/mlp_ddp")


class DocsTest(ToolTest):
    """tools/docs/build.sh with a doxygen that writes a page, and fails where the folder `fail` is."""
    tool = os.path.dirname(FrontDoorTest.tool) + "/tools/docs/build.sh"

    def setUp(self):
        super().setUp()
        (self.folder / "bin").mkdir()
        doxygen = self.folder / "bin/doxygen"
        doxygen.write_text("#!/bin/sh\ntouch $WEFT_OUT/index.html $WEFT_OUT/doxygen.css\n"
                           f"[ ! -e {self.folder}/fail ]\n")
        doxygen.chmod(0o755)
        self.site = self.folder / "site"

    def build(self):
        status, said = self.run_tool(str(self.site), env={
            **os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"})
        left = set(os.listdir(self.folder)) - {"bin", "site", "fail"}
        self.assertEqual(left, set())
        return status, said

    def test_ReplacesItsOwnAlone(self):
        whole = [".weft-docs", "doxygen.css", "index.html"]
        self.site.mkdir()  # an empty folder is as good as none
        self.assertEqual(self.build(), (0, ""))
        self.assertEqual(sorted(os.listdir(self.site)), whole)
        (self.site / "dropped.html").touch()
        self.assertEqual(self.build(), (0, ""))
        self.assertEqual(sorted(os.listdir(self.site)), whole)
        (self.folder / "fail").mkdir()
        (self.site / "dropped.html").touch()
        self.assertEqual(self.build(), (1, ""))
        self.assertEqual(sorted(os.listdir(self.site)), [".weft-docs", "doxygen.css", "dropped.html",
                                                         "index.html"])

    def test_LeavesOthersFoldersAlone(self):
        self.site.mkdir()
        for name in ("doxygen.css", "mine"):
            (self.site / name).touch()
            status, said = self.build()
            self.assertEqual(status, 1, said)
            self.assertIn("is not empty, and has no .weft-docs, which ./weft docs leaves in what it "
                          "makes since 0.2; remove it yourself, or name another folder\n", said)
        self.assertEqual(sorted(os.listdir(self.site)), ["doxygen.css", "mine"])


class LearnTest(ToolTest):
    """In a copy of the lab, with a HOME of its own."""

    def setUp(self):
        super().setUp()
        source = os.path.dirname(FrontDoorTest.tool)
        self.root = self.folder.resolve() / "root"
        shutil.copytree(source + "/learn", self.root / "learn")
        shutil.copy(FrontDoorTest.tool, self.root)
        self.tool = str(self.root / "weft")
        self.solutions = sorted((self.root / "learn").glob("*/solution.cc"))
        for solution in self.solutions:  # that of this tree may be solved
            solution.write_text("void f() { not_yet(\"f\"); }\n")

    def learn(self, *arguments):
        status, said = self.run_tool("learn", *arguments,
                                     env={**os.environ, "HOME": self.path("home")})
        self.assertEqual(status, 0, said)
        return said

    def states(self):
        return re.findall(r"^ +\d+  .*  (to do|begun, not judged right yet|solved)$", self.learn(),
                          re.MULTILINE)

    def test_ListsStates(self):
        self.assertRegex(self.learn(), r"^ +1  .*\n +2  Ring all-reduce +to do\n")
        self.assertEqual(self.states(), ["to do"] * 14)
        self.solutions[1].write_text("void f() {}\n")
        self.assertEqual(self.states()[:3], ["to do", "begun, not judged right yet", "to do"])
        place = hashlib.sha256(f"{self.root}\n".encode()).hexdigest()[:16]
        memory = self.folder / "home/.cache/weft/learn" / place
        memory.mkdir(parents=True)
        judged = hashlib.sha256(self.solutions[1].read_bytes()).hexdigest()
        (memory / "02_ring_allreduce.solved").write_text(judged + "  -\n")
        self.assertEqual(self.states()[:3], ["to do", "solved", "to do"])
        self.solutions[1].write_text("void f() { }\n")
        self.assertEqual(self.states()[1], "begun, not judged right yet")
        self.solutions[1].write_text("void f() {}  // not_yet(\"f\")\n")
        self.assertEqual(self.states()[1], "to do")
        judged = hashlib.sha256(self.solutions[1].read_bytes()).hexdigest()
        (memory / "02_ring_allreduce.solved").write_text(judged + "  -\n")
        self.assertEqual(self.states()[1], "solved")

    # What the door says of a build in which Bazel has printed this.
    def said_of(self, printed, status):
        self.write("printed", printed)
        programs = self.folder / "bin"
        for name, text in (("bazel", f'[ "$1" = build ] || exit 0\ncat {self.path("printed")} >&2\n'
                            f'exit {status}'),
                           ("dpkg-query", 'for p; do echo "installed $p"; done')):
            programs.mkdir(exist_ok=True)
            (programs / name).write_text("#!/bin/bash\n" + text + "\n")
            (programs / name).chmod(0o755)
        (self.root / "tools").mkdir(exist_ok=True)
        shutil.copy(os.path.dirname(FrontDoorTest.tool) + "/tools/packages.txt", self.root / "tools")
        return self.run_tool("learn", "7", env={
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": self.path("home")})

    def test_ShowsWhatTheCompilerSays(self):
        lines = "learn/07_buckets/solution.cc:12:3: error: no such name\n   12 |   nmae();\n"
        status, said = self.said_of(
            "Another command (pid=9) is running. Waiting for it to complete.\nLoading: \n"
            "Analyzing: target //learn/07_buckets:lab (0 packages loaded)\n"
            "INFO: Found 1 target...\n[0 / 1] [Prepa] BazelWorkspaceStatusAction\n"
            "ERROR: /weft/learn/07_buckets/BUILD:3:4: Compiling learn/07_buckets/solution.cc failed: "
            f"(Exit 1): gcc failed\n\nUse --sandbox_debug to see it\n{lines}"
            "Target //learn/07_buckets:lab failed to build\nUse --verbose_failures to see it\n"
            "FAILED: Build did NOT complete successfully\n", 1)
        self.assertEqual((status, said), (
            1, f"weft: building //learn/07_buckets:lab\n{lines}weft: learn: it does not compile: the "
            "first line with solution.cc:LINE above says where; the file is "
            "learn/07_buckets/solution.cc\n"))

    def test_NamesWhatIsNotDefined(self):
        _, said = self.said_of(
            "judge.cc:78: error: undefined reference to 'weft::learn::plan_buckets(std::vector<long> "
            "const&, long, long)'\n", 1)
        self.assertIn("weft: learn: learn/07_buckets/solution.cc does not define "
                      "weft::learn::plan_buckets(...) as solution.h declares it\n", said)

    def test_ShowsWarningsOfTheSolution(self):
        warning = "learn/07_buckets/solution.cc:12:3: warning: signs\n   12 |   i < n\n"
        _, said = self.said_of(
            f"INFO: From Compiling comm/x.cc:\ncomm/x.cc:1:1: warning: other\n"
            f"INFO: From Compiling learn/07_buckets/solution.cc:\n{warning}[7 / 9] Linking\n"
            "INFO: Build completed successfully\n", 0)
        self.assertIn(f"weft: building //learn/07_buckets:lab\n{warning}", said)
        self.assertNotIn("other", said)
        self.assertNotIn("Build completed", said)

    def test_ASolutionThatIsMissing(self):
        self.solutions[6].unlink()
        self.assertRegex(self.learn(), r"\n +7  Buckets +solution.cc is missing\n")
        self.assertEqual(self.run_tool("learn", "7"), (
            1, "weft: learn: learn/07_buckets/solution.cc is missing: git checkout "
            "learn/07_buckets/solution.cc brings the skeleton back\n"))

    def test_HintsComeInTurn(self):
        said = [self.learn("2", "--hint") for _ in range(4)]
        self.assertEqual([text.splitlines()[0] for text in said],
                         [f"hint {n} of 3:" for n in (1, 2, 3, 1)])
        self.assertEqual(said[0], said[3])
        self.assertEqual(len(set(said)), 3)
        self.assertEqual(["That was the last one" in text for text in said],
                         [False, False, True, False])
        self.assertIn("hint 1 of ", self.learn("1", "--hint"))  # it counts by itself

    def test_Reference(self):
        said = self.learn("2", "--reference")
        self.assertIn("`ring_all_reduce()`", said)
        for name in ("02", "02_ring_allreduce"):
            self.assertEqual(said, self.learn("--reference", name))


if __name__ == "__main__":
    main()
