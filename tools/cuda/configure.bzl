"""Finds the CUDA toolkit and the GPUs. Without a toolkit @cuda is a stub and weft builds for the CPU alone."""

_BUILD = """
load("@weft//tools/cuda:flags.bzl", "string_flag")

package(default_visibility = ["//visibility:public"])

string_flag(
    name = "toolkit",
    build_setting_default = "{found}",
)

# Use it through //:cuda.
config_setting(
    name = "enabled",
    flag_values = {{
        ":toolkit": "yes",
        "@weft//tools/cuda:use": "auto",
    }},
)

# nvcc finds its own headers; these are for the emulator.
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/crt/*", "include/cccl/**"]),
    includes = ["include", "include/cccl"],
)

cc_library(
    name = "libs",
    linkopts = {libs},
)

string_flag(
    name = "nccl_header",
    build_setting_default = "{nccl}",
)

config_setting(
    name = "has_nccl",
    flag_values = {{":nccl_header": "yes"}},
)

# Part of every nvcc action's key: another toolkit at the same path compiles anew.
exports_files(["version.txt"])
"""

def _first_existing(ctx, paths):
    for path in paths:
        if path and ctx.path(path).exists:
            return path
    return None

def _missing(ctx, home):
    """What a build with CUDA would lack at `home`, or None."""
    for file in ["bin/nvcc", "include/cuda_runtime.h", "include/cublasLt.h"]:
        if not ctx.path(home + "/" + file).exists:
            return home + "/" + file
    if not _first_existing(ctx, [home + lib + "/libcudart_static.a" for lib in ["/lib64", "/lib"]]):
        return "libcudart_static.a"
    if not _first_existing(ctx, [home + "/include/cudnn.h", "/usr/include/cudnn.h", "/usr/include/x86_64-linux-gnu/cudnn.h"]):
        return "cudnn.h"
    return None

def _archs(ctx, home):
    """What nvcc compiles for unless told otherwise: the GPUs of this machine, if it has any."""
    result = ctx.execute(
        [ctx.path(Label("@weft//tools/cuda:list_archs")), "default"],
        environment = {"CUDA_HOME": home},
    )
    if result.return_code != 0:
        fail(result.stderr)
    return result.stdout.strip()

def _impl(ctx):
    asked = ctx.os.environ.get("CUDA_HOME", "")
    home = asked if asked else "/usr/local/cuda"
    version = ""
    if ctx.path(home).exists:
        missing = _missing(ctx, home)
        if missing:
            # buildifier: disable=print
            print("no CUDA: %s is missing" % missing)
        else:
            result = ctx.execute([home + "/bin/nvcc", "--version"])
            if result.return_code != 0:
                fail("%s/bin/nvcc --version: %s" % (home, result.stderr))
            version = result.stdout
    elif asked:
        fail("CUDA_HOME is %s, but there is no such folder" % asked)

    libs = []
    nccl = None
    if version:
        lib = _first_existing(ctx, [home + "/lib64", home + "/lib"])
        # cuBLASLt, cuDNN and NCCL are opened at run time (kernels/cuda/libraries.h) and found by
        # the rpath.
        libs = ["-L" + lib, "-Wl,-rpath," + lib, "-lcudart_static", "-ldl", "-lpthread", "-lrt"]
        nccl = _first_existing(ctx, [home + "/include/nccl.h", "/usr/include/nccl.h"])
        ctx.symlink(home + "/include", "include")
    ctx.file("BUILD", _BUILD.format(
        found = "yes" if version else "no",
        libs = libs,
        nccl = "yes" if nccl else "no",
    ))
    ctx.file("version.txt", version)
    ctx.file("home.bzl", 'CUDA_HOME = "%s"\nARCHS = "%s"\n' % (home, _archs(ctx, home) if version else ""))

cuda_configure = repository_rule(
    implementation = _impl,
    # Also when a GPU came or went: checked when Bazel's server starts, and by `bazel sync
    # --configure`.
    configure = True,
    environ = ["CUDA_HOME"],
    local = True,
)
