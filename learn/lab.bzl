"""lab: an exercise, a folder of learn/."""

load("//tools:weft.bzl", "weft_binary", "weft_library")

# Warnings do not stop a learner, but for a forgotten `return`, after which anything happens; an index
# out of range stops the program where it happens.
_COPTS = [
    "-Wno-error",
    "-Werror=return-type",
    "-Wno-unused",
    "-Wno-unused-parameter",
    "-D_GLIBCXX_ASSERTIONS",
]

def lab(deps, solution_deps = ["//learn/judge:messages"]):
    """The program `lab`: the learner's solution.cc, and judge.cc and reference/, which have all others.

    `reference` is for what shows a right solution at work: the benchmarks do not come to a learner's.
    """
    weft_library(
        name = "declared",
        hdrs = ["solution.h"],
        visibility = ["//tests/learn:__pkg__"],
        deps = solution_deps,
    )
    weft_library(
        name = "solution",
        srcs = ["solution.cc"],
        copts = _COPTS,
        precompiled = None,  # the options differ
        deps = [":declared"] + solution_deps,
    )

    # A program of the learner's own includes it.
    weft_library(
        name = "source",
        hdrs = ["solution.cc"],
        visibility = ["//tests/learn:__pkg__"],
        deps = [":declared"],
    )
    reference = native.glob(["reference/*.cc"])
    if reference:
        weft_library(
            name = "reference",
            srcs = reference,
            hdrs = native.glob(["reference/*.h"]),
            visibility = [
                "//benchmarks:__pkg__",
                "//tests/learn:__pkg__",
            ],
            deps = [":declared"] + solution_deps,
        )
        deps = deps + [":reference"]
    weft_binary(
        name = "lab",
        srcs = ["judge.cc"],
        linkstatic = False,  # links in no time after an edit
        visibility = ["//tests/learn:__pkg__"],
        deps = [":declared", ":solution", "//core", "//learn/judge", "//learn/judge:messages"] + deps,
    )
    native.exports_files(["README.md"])
