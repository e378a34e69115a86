"""cuda_objects: sources compiled by nvcc, handed on as a cc_library would be.

archs_source: a source that says what they were compiled for.
"""

load("@cuda//:home.bzl", "CUDA_HOME")
load("//tools:cpp_toolchain.bzl", "cpp_toolchain")
load(":flags.bzl", "StringFlag")

def _arch_flags(archs):
    flags = []
    for arch in archs:
        number = arch.replace("+ptx", "")
        code = "sm_" + number if number == arch else "[sm_%s,compute_%s]" % (number, number)
        flags.append("-gencode=arch=compute_%s,code=%s" % (number, code))
    return flags

def _impl(ctx):
    toolchain, features = cpp_toolchain(ctx)
    deps = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps])
    context = deps.compilation_context
    debug = ctx.var["COMPILATION_MODE"] == "dbg"

    objects = []
    for src in ctx.files.srcs:
        object = ctx.actions.declare_file("_objs/%s/%s.pic.o" % (ctx.label.name, src.basename))
        args = ctx.actions.args()
        args.add_all(["-c", "-std=c++20", "--expt-relaxed-constexpr", "--extended-lambda", "--threads=0"])
        args.add_all(["-O1", "-g", "-lineinfo"] if debug else ["-O3", "-DNDEBUG"])
        args.add_all(["-Xcompiler=-fPIC,-fopenmp,-Wall,-Wextra,-ffunction-sections,-fdata-sections"])
        if src.extension == "cu":
            args.add_all(_arch_flags(ctx.attr._archs[StringFlag].value.split(",")))
            if ctx.var.get("portable"):  # slower to load, a third of the size
                args.add("--compress-mode=size")
        args.add_all(ctx.attr.copts)
        args.add_all(context.defines, before_each = "-D")
        args.add_all(context.quote_includes, before_each = "-I")
        args.add_all(context.includes, before_each = "-I")
        args.add_all(context.system_includes, before_each = "-isystem")
        args.add("-o", object)
        args.add(src)
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = [args],
            inputs = depset([src, ctx.file._version], transitive = [context.headers]),
            outputs = [object],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s" % src.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)

    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        linking_contexts = [deps.linking_context],
        alwayslink = ctx.attr.alwayslink,
        # Also for the shared object of the tests: it contains CUDA's static runtime, whose symbols
        # are hidden from others, and it opens libraries by its own rpath.
        user_link_flags = [
            flag
            for input in deps.linking_context.linker_inputs.to_list()
            for flag in input.user_link_flags
        ],
    )
    return [
        DefaultInfo(files = depset(objects)),
        CcInfo(compilation_context = context, linking_context = linking),
    ]

cuda_objects = rule(
    implementation = _impl,
    attrs = {
        "alwayslink": attr.bool(),
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "srcs": attr.label_list(allow_files = [".cu", ".cc"]),
        "_archs": attr.label(default = "//tools/cuda:archs"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_version": attr.label(
            default = "@cuda//:version.txt",
            allow_single_file = True,
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _archs_source_impl(ctx):
    source = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(source, """// %s
namespace weft::cuda {
const char* archs() { return "%s"; }
}  // namespace weft::cuda
""" % (ctx.label, ctx.attr._archs[StringFlag].value))
    return DefaultInfo(files = depset([source]))

archs_source = rule(
    implementation = _archs_source_impl,
    attrs = {"_archs": attr.label(default = "//tools/cuda:archs")},
)
