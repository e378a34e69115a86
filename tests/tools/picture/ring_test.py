#!/usr/bin/env python3
"""The ring as it is recorded: who sends which part to whom, and what becomes of it. Its picture."""
import json
import subprocess
import sys

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from svgs import rectangles_of, texts_of
from tools.picture.ring import ring_picture

ALL_RANKS = 2, 3, 4, 5


def traced_ring(*ranks):
    return subprocess.run(["tools/picture/traced_ring", *map(str, ranks)], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Ring(ToolTest):
    tool = "tools/picture/picture"

    @classmethod
    def setUpClass(cls):
        cls.runs = {}
        for n in ALL_RANKS:
            done = traced_ring(n)
            assert done.returncode == 0, done.stderr
            cls.runs[n] = json.loads(done.stdout)

    def test_steps_are_those_of_reduce_scatter_and_all_gather(self):
        for n, run in self.runs.items():
            self.assertEqual(run["ranks"], n)
            self.assertEqual(len(run["steps"]), 2 * (n - 1))
            after = [step["before"] for step in run["steps"][1:]] + [run["result"]]
            for s, step in enumerate(run["steps"]):
                self.assertEqual(len(step["messages"]), n)
                expected = [list(parts) for parts in step["before"]]
                for r, message in enumerate(step["messages"]):
                    self.assertEqual((message["from"], message["to"]), (r, (r + 1) % n))
                    self.assertEqual(message["added"], s < n - 1, (n, s))
                    self.assertEqual(message["bytes"] * n, run["buffer_bytes"])
                    sent, part = step["before"][r][message["part"]], message["part"]
                    own = step["before"][message["to"]][part] if message["added"] else 0
                    expected[message["to"]][part] = own | sent
                self.assertEqual(after[s], expected, f"{n} ranks, after step {s}")

    def test_they_end_with_all_numbers_at_all_ranks(self):
        for n, run in self.runs.items():
            self.assertEqual(run["steps"][0]["before"], [[1 << rank] * n for rank in range(n)])
            self.assertEqual(run["result"], [[(1 << n) - 1] * n] * n)
            self.assertEqual([sent * n for sent in run["bytes_sent"]],
                             [2 * (n - 1) * run["buffer_bytes"]] * n)

    def test_one_rank_is_no_ring(self):
        for ranks, got in (([1], 1), ([6], 6), ([], 0), (["x"], 0), ([-3], -3)):
            done = traced_ring(*ranks)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"[traced_ring] got {got} ranks, can show 2 to 5", done.stderr.decode())

    def test_the_picture_says_what_is_in_it(self):
        names = ["rank 0", "rank 1", "rank 2"]

        def panel(title, *parts):
            """The texts of the parts below each rank's name."""
            of_rank = [parts[0:3], parts[3:6], parts[6:9]]
            return [title] + [text for name, own in zip(names, of_rank) for text in (name, *own)]
        self.assertEqual(texts_of(ring_picture(self.runs[3]).svg()), [
            *panel("step 1: reduce-scatter", "a", "a", "a", "b", "b", "b", "c", "c", "c"),
            *panel("step 2: reduce-scatter", *self.parts(3, 1)),
            *panel("step 3: all-gather", *self.parts(3, 2)),
            *panel("step 4: all-gather", *self.parts(3, 3)),
            *panel("at the end", *["abc"] * 9),
            "sent, and added by the next rank to its own",
            "sent, and kept by the next rank in place of its own",
            "a, b, c: numbers of rank 0, 1 ...; abc: the sum of all",
            "each step as it begins; rows are the parts of the buffer",
            "each rank sent 4 messages of 65536 bytes, 262144 in all:",
            "1.33333 of its buffer's 196608 bytes; 2(n-1)/n is 1.33333"])

    def parts(self, n, step):
        """The parts of all ranks before a step, in letters."""
        return ["".join("abc"[r] for r in range(n) if ranks >> r & 1)
                for of_rank in self.runs[n]["steps"][step]["before"] for ranks in of_rank]

    def test_the_picture_is_that_of_the_docs(self):
        out = self.path("ring.svg")
        self.assertEqual(self.check_run("ring", out, "--ranks", "4"), "")
        with open(out, encoding="utf-8") as drawn, open("docs/ring.svg", encoding="utf-8") as golden:
            self.assertEqual(drawn.read(), golden.read())

    def test_all_fits_into_the_picture(self):
        for n, run in self.runs.items():
            picture = ring_picture(run)
            _, *blocks = rectangles_of(picture.svg())  # without the ground
            self.assertEqual(len(blocks), (2 * (n - 1) + 1) * n * n)
            for block in blocks:
                self.assertGreater(min(block.x, block.y), 3)
                self.assertLess(block.x + block.width, picture.width - 3)
                self.assertLess(block.y + block.height, picture.height - 3)

    def test_four_ranks_are_the_default(self):
        one, other = self.path("one.svg"), self.path("other.svg")
        self.check_run("ring", one)
        self.check_run("ring", other, "--ranks=4")
        with open(one, "rb") as first, open(other, "rb") as second:
            self.assertEqual(first.read(), second.read())

    def test_wrong_usage_is_two_and_says_what_is_right(self):
        out, lost = self.path("out.svg"), self.path("no/folder.svg")
        for arguments, expected in [
                (["ring"], "OUT"), (["ring", out, "more"], "picture: unexpected argument 'more'\n"),
                (["ring", out, "--ranks", "6"],
                 "picture: error: [traced_ring] got 6 ranks, can show 2 to 5"),
                (["ring", out, "--ranks", "1"],
                 "picture: error: [traced_ring] got 1 ranks, can show 2 to 5"),
                (["ring", out, "--ranks", "two"], "--ranks: invalid int value: 'two'"),
                (["ring", out, "--rank", "3"], "unknown option --rank; did you mean --ranks?"),
                (["ring", lost], f"picture: error: [file] cannot write {lost}: No such file or "
                                 "directory (errno 2)\n")]:
            self.check_refusal(arguments, expected)
        self.assertIn("--ranks", self.check_run("ring", "--help"))


if __name__ == "__main__":
    main()
