"""Shared libraries and programs of what `deps` link, for use outside this repository."""

load("//tools:cpp_toolchain.bzl", "cpp_toolchain")

def _belongs(label, packages):
    name = "@%s" % label.workspace_name if label.workspace_name else label.package
    return [p for p in packages if name == p or name.startswith(p + "/")] != []

def _place(input):
    # Libraries of the system come after those that need them.
    return (1 if input.owner.workspace_name else 0, str(input.owner))

def _impl(ctx):
    toolchain, features = cpp_toolchain(ctx)

    # cc_binary(linkshared = True) would leave out every object, as nothing in the library calls them.
    inputs = []
    linked = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).linking_context

    # Sorted by itself: the order of the dependencies changes if CUDA is among them.
    for input in sorted(linked.linker_inputs.to_list(), key = _place):
        if ctx.attr.only and not _belongs(input.owner, ctx.attr.only):
            continue
        if _belongs(input.owner, ctx.attr.without):
            continue
        inputs.append(cc_common.create_linker_input(
            owner = input.owner,
            libraries = depset([
                cc_common.create_library_to_link(
                    actions = ctx.actions,
                    feature_configuration = features,
                    cc_toolchain = toolchain,
                    pic_static_library = library.pic_static_library,
                    alwayslink = True,
                )
                for library in input.libraries
                if library.pic_static_library
            ]),
            user_link_flags = depset(input.user_link_flags),
        ))
    flags = [
        "-Wl,-soname,lib%s.so.%s" % (ctx.label.name, ctx.attr.abi),
        "-Wl,-z,defs",

        # The library must stay in the process until that ends, also after a plugin was closed: its
        # threads need its code, and so do functions that others call when they end.
        "-Wl,-z,nodelete",
        "-Wl,--version-script=" + ctx.file.exports.path,
    ]
    if ctx.attr.uses:
        # Found in the same folder, or already in the process.
        flags += [f.path for f in ctx.files.uses] + ["-Wl,-rpath,$ORIGIN"]
    output = cc_common.link(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        linking_contexts = [cc_common.create_linking_context(linker_inputs = depset(inputs))],
        output_type = "dynamic_library",
        user_link_flags = flags,
        additional_inputs = [ctx.file.exports] + ctx.files.uses,
    )
    library = output.library_to_link

    # dynamic_library is a link to it with another name.
    file = library.resolved_symlink_dynamic_library or library.dynamic_library
    return [DefaultInfo(files = depset([file]), runfiles = ctx.runfiles([file]))]

def _program_impl(ctx):
    toolchain, features = cpp_toolchain(ctx)
    linked = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).linking_context

    # Here needed libraries come first; the linker needs them last.
    linker_inputs = reversed(linked.linker_inputs.to_list())
    inputs = [i for i in linker_inputs if not _belongs(i.owner, ctx.attr.without)]
    output = cc_common.link(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        linking_contexts = [cc_common.create_linking_context(linker_inputs = depset(inputs))],
        output_type = "executable",
    )
    return [DefaultInfo(files = depset([output.executable]), executable = output.executable)]

# Like cc_binary, with `without`.
program = rule(
    implementation = _program_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "without": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    executable = True,
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

shared_library = rule(
    implementation = _impl,
    attrs = {
        # The version that programs linked with it ask for when they start: the part that changes
        # with the binary interface.
        "abi": attr.string(mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        # The linker's version script: which symbols others see.
        "exports": attr.label(allow_single_file = True, mandatory = True),
        # Packages and their subpackages, or "@workspace": `only` these of what `deps` link, or all
        # `without` these.
        "only": attr.string_list(),
        "without": attr.string_list(),
        # Shared libraries that contain the rest.
        "uses": attr.label_list(allow_files = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
