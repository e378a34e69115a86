"""One shared library of everything `deps` link, for programs outside this repository."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # cc_binary(linkshared = True) would leave out every object, as nothing in the library calls them.
    inputs = []
    for dep in ctx.attr.deps:
        for input in dep[CcInfo].linking_context.linker_inputs.to_list():
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
    output = cc_common.link(
        actions = ctx.actions,
        name = ctx.label.name,
        feature_configuration = features,
        cc_toolchain = toolchain,
        linking_contexts = [cc_common.create_linking_context(linker_inputs = depset(inputs))],
        output_type = "dynamic_library",
        user_link_flags = ["-Wl,-soname,lib%s.so.%s" % (ctx.label.name, ctx.attr.abi), "-Wl,-z,defs"],
    )
    return [DefaultInfo(files = depset([output.library_to_link.dynamic_library]))]

shared_library = rule(
    implementation = _impl,
    attrs = {
        # What programs linked with it ask for when they start: the part of the version that changes
        # with the binary interface.
        "abi": attr.string(mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
