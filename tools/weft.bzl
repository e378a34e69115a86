"""weft's build rules. Headers are included by their path under the root: "weft/nn/linear.h".

weft_library       a library
weft_room          the library of a room
weft_test_library  a library only tests link: fixtures, fakes
weft_test          a GoogleTest program
weft_device_tests  tests for //tests/gpu:conformance, which runs them on a GPU
weft_binary        a program
weft_simd_library  the same sources for three instruction sets
cuda_library       sources for nvcc
weft_fuzz_test     a libFuzzer target; replays its seeds as a test in every other build
"""

load("//tools/cuda:defs.bzl", "cuda_objects")

# Never -ffast-math: NaN, infinities and summation order are part of weft's contract.
# Options are structs written with the names of their fields; fields that are left out keep their
# defaults.
COPTS = ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-fopenmp"]
_LINKOPTS = ["-fopenmp"]
# What every test program gets besides its own dependencies.
_TEST_DEPS = select({
    "//:sanitize": ["//tools/sanitize:leaks"],
    "//conditions:default": [],
})
_PREFIX = {
    "include_prefix": "weft",
    "strip_include_prefix": "/",
}

# Folders that the sanitizers' builds compile without optimisation: optimising what is instrumented
# takes longer than compiling it, and here are no loops to speed up.
_PLAIN_UNDER_SANITIZERS = [
    "autograd",
    "benchmarks",
    "c_api",
    "examples",
    "launch",
    "nn",
    "onnx",
    "optim",
    "parallel",
    "tensor",
    "tests",
    "tools",
    "train",
]

# The packages of which --config=fuzz compiles files with options of its own (.bazelrc).
_FUZZED = ["data", "io", "kernels", "parallel", "tests/fuzz"]

def _computes():
    """Whether this package's tests compute what they expect in loops, for seconds."""
    return native.package_name().startswith("tests/kernels")

def _with(precompiled):
    """The dependencies and the options by which a target reads a target of //tools/precompiled."""
    package = native.package_name()
    plain = ["-O0"] if package.split("/")[0] in _PLAIN_UNDER_SANITIZERS and not _computes() else []
    if not precompiled:
        return [], select({"//:sanitize": plain, "//conditions:default": []})
    sanitized = precompiled + "_unoptimised" if plain and precompiled == "standard" else precompiled
    label = "//tools/precompiled:%s"
    deps = {
        "//:clang": [],
        "//:sanitize": [label % sanitized],
        "//conditions:default": [label % precompiled],
    }

    # Clang wants the path of what is compiled, gcc finds it beside the header.
    options = {
        "//:clang": [],
        "//:sanitize": plain + ["-include-pch", "$(BINDIR)/tools/precompiled/%s.h.gch" % sanitized],
        "//conditions:default": ["-include", "tools/precompiled/%s.h" % precompiled],
    }
    if package in _FUZZED:
        deps["//:fuzz"] = []
        options["//:fuzz"] = plain
    return select(deps), select(options)

def _test_options():
    """What is precompiled for a test, and its options.

    Compiling tests takes most of a build's time, and half of that is optimising what runs once.
    """
    return ("standard", []) if _computes() else ("tests", ["-O0"])

def _is_header(path):
    return path.endswith(".h") or path.endswith(".cuh") or path.endswith(".inc")

def _split_headers(name, srcs, deps, testonly):
    """Gives headers among `srcs` a weft/ path too, seen by this target alone; returns (srcs, deps)."""
    if type(srcs) != "list":  # a select()
        return srcs, deps
    headers = [s for s in srcs if _is_header(s)]
    if not headers:
        return srcs, deps
    native.cc_library(
        name = name + "_internal",
        hdrs = headers,
        deps = deps,
        testonly = testonly,
        visibility = ["//visibility:private"],
        **_PREFIX
    )
    return [s for s in srcs if not _is_header(s)], deps + [":%s_internal" % name]

def weft_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        copts = [],
        linkopts = [],
        testonly = False,
        precompiled = "standard",  # None for sources with options other than warnings
        **kwargs):
    srcs, deps = _split_headers(name, srcs, deps, testonly)
    more_deps, more_copts = _with(precompiled)
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + more_deps,
        copts = COPTS + copts + more_copts,
        linkopts = _LINKOPTS + linkopts,
        testonly = testonly,
        **dict(_PREFIX, **kwargs)
    )

def weft_room(name, hdrs, **kwargs):
    """A library whose headers //:headers has too, without what they need to link.

    Tests read in the same files what a room declares.
    """
    native.filegroup(
        name = name + "_headers",
        srcs = hdrs,
        visibility = [
            "//:__pkg__",
            "//tests:__subpackages__",
        ],
    )
    weft_library(name, hdrs = hdrs, **kwargs)

def weft_test_library(name, deps = [], copts = [], **kwargs):
    """Static, because GoogleTest is: a second copy of it in a shared object would lose its tests."""
    precompiled, test_copts = _test_options()
    weft_library(
        name,
        deps = deps + ["@gtest"],
        copts = test_copts + copts,
        precompiled = precompiled,
        testonly = True,
        linkstatic = True,
        **kwargs
    )

def weft_test(name, srcs = None, deps = [], copts = [], linkopts = [], size = "medium", **kwargs):
    """Of NAME.cc unless `srcs` says otherwise. Dynamic: relinking dozens of programs costs little then."""
    srcs, deps = _split_headers(name, [name + ".cc"] if srcs == None else srcs, deps, True)
    precompiled, test_copts = _test_options()
    more_deps, more_copts = _with(precompiled)
    native.cc_test(
        name = name,
        srcs = srcs,
        deps = deps + ["@gtest"] + _TEST_DEPS + more_deps,
        copts = COPTS + test_copts + copts + more_copts,
        linkopts = _LINKOPTS + linkopts,
        linkstatic = False,
        size = size,
        **kwargs
    )

def weft_device_tests(name, **kwargs):
    """Sources of tests that have a case for CUDA, for one program of all of them."""
    weft_test_library(
        name = name,
        alwayslink = True,  # nothing calls a test
        tags = ["manual"],  # the weft_tests of the same sources are what `//...` builds
        visibility = ["//tests/gpu:__pkg__"],
        **kwargs
    )

def weft_binary(name, srcs, deps = [], copts = [], linkopts = [], **kwargs):
    srcs, deps = _split_headers(name, srcs, deps, kwargs.get("testonly", False))
    more_deps, more_copts = _with("standard")
    native.cc_binary(
        name = name,
        srcs = srcs,
        deps = deps + more_deps,
        copts = COPTS + copts + more_copts,
        linkopts = _LINKOPTS + linkopts,
        **kwargs
    )

# The dynamic linker searches in this order, too: of a function that several levels define, it takes
# the plainest version.
_SIMD = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"],
}

def weft_simd_library(name, srcs, hdrs = [], deps = [], copts = [], visibility = None, **kwargs):
    """Compiles `srcs` once per instruction set with -DWEFT_SIMD=baseline|avx2|avx512.

    WEFT_SIMD is the namespace the sources put their table of functions in; kernels/cpu/loops/table.h
    declares the three and picks one.
    """
    srcs, deps = _split_headers(name, srcs, deps, False)
    for level, flags in _SIMD.items():
        weft_library(
            name = "%s_%s" % (name, level),
            srcs = srcs,
            hdrs = hdrs,
            deps = deps,
            # An inline function compiled for AVX must not become the program's only copy of it.
            # With -O3 all are inlined; //tests/kernels:simd_symbols_test checks that none is left.
            copts = copts + select({"//:arm64": [], "//conditions:default": flags}) + ["-O3", "-DWEFT_SIMD=" + level],
            precompiled = None,  # -m differs
            visibility = ["//tests/kernels:__pkg__"],
            **kwargs
        )
    weft_library(
        name = name,
        hdrs = hdrs,
        deps = deps + [":%s_%s" % (name, level) for level in _SIMD],
        visibility = visibility,
    )

# Like nvcc, fuses a product and a sum into one rounding; a misaligned access traps, as on a GPU.
_EMULATED_COPTS = [
    "-include",
    "emulator/prelude.h",
    "-mavx2",
    "-mfma",
    "-ffp-contract=fast",
    # Lines for the stacks of faults. binutils' addr2line reads the file names of DWARF 5 wrongly.
    "-g1",
    "-gdwarf-4",
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
    "-Wno-sign-compare",
    "-Wno-unknown-pragmas",
]

def cuda_library(name, srcs = [], hdrs = [], deps = [], copts = [], alwayslink = False, visibility = None):
    """Only meaningful where //:cuda is true: depend on it in a select().

    Where CUDA is emulated the host's compiler takes the sources, by way of a file that includes each.
    """
    headers = [s for s in srcs if _is_header(s)]
    tags = ["manual"]  # `//...` must build without a toolkit
    native.cc_library(
        name = name + "_headers",
        hdrs = hdrs + headers,
        deps = deps,
        tags = tags,
        visibility = ["//visibility:private"],
        **_PREFIX
    )
    sources = [s for s in srcs if not _is_header(s)]
    deps = deps + [":%s_headers" % name, "//tools/cuda:libs"]
    cuda_objects(
        name = name + "_nvcc",
        srcs = sources,
        deps = deps,
        copts = copts,
        alwayslink = alwayslink,
        tags = tags,
        visibility = visibility,
    )
    kernels = [s for s in sources if s.endswith(".cu")]
    for source in kernels:
        native.genrule(
            name = source + "_as_cc",
            outs = [source + ".cc"],
            cmd = "echo '#include \"%s/%s\"' >$@" % (native.package_name(), source),
            tags = tags,
            visibility = ["//visibility:private"],
        )
    native.cc_library(
        name = name + "_emulated",
        alwayslink = alwayslink,
        srcs = [s for s in sources if s not in kernels] + [s + ".cc" for s in kernels],
        copts = COPTS + _EMULATED_COPTS + copts,
        linkopts = _LINKOPTS,
        tags = tags,
        textual_hdrs = kernels,
        visibility = visibility,
        deps = deps + ["//emulator:prelude"],
    )
    native.alias(
        name = name,
        actual = select({
            "//:cuda_emulated": ":%s_emulated" % name,
            "//conditions:default": ":%s_nvcc" % name,
        }),
        tags = tags,
        visibility = visibility,
    )

def weft_fuzz_test(name, srcs, deps = [], tags = [], **kwargs):
    """The sources define LLVMFuzzerTestOneInput; the seeds are the files in the folder <name>_seeds."""
    seeds = native.glob([name + "_seeds/**"])
    native.cc_test(
        name = name,
        srcs = srcs,
        args = ["$(rootpath %s)" % s for s in seeds],
        copts = COPTS + _with(None)[1],
        data = seeds,
        linkopts = _LINKOPTS + select({
            "//:fuzz": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = False,
        size = "small",
        tags = tags + ["fuzz"],
        deps = deps + select({
            "//:fuzz": [],
            "//conditions:default": ["//tools/fuzz:replay"],
        }),
        **kwargs
    )
