"""cpp_toolchain: the C++ toolchain of a rule with `_cc_toolchain`, and its configured features."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def cpp_toolchain(ctx):
    toolchain = find_cpp_toolchain(ctx)
    return toolchain, cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
