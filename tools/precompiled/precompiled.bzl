"""precompiled: headers that a compiler reads once for many sources."""

load("//tools:cpp_toolchain.bzl", "cpp_toolchain")

def _impl(ctx):
    toolchain, features = cpp_toolchain(ctx)
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.write(header, "".join(["#include <%s>\n" % h for h in ctx.attr.headers]))

    # The name by which gcc looks for it: beside the header, wherever that is found.
    compiled = ctx.actions.declare_file(header.basename + ".gch")

    # Clang notes where the header lies, and what it compiled is read in other folders, too: it gets
    # the text alone. Gcc wants a name.
    text_alone = "clang" in toolchain.compiler_executable
    arguments = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = "c++-compile",
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = "-" if text_alone else header.path,
            output_file = compiled.path,
            use_pic = True,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
        ),
    )
    ctx.actions.run_shell(
        command = '"$@" <' + header.path if text_alone else '"$@"',
        arguments = [toolchain.compiler_executable] + arguments,
        inputs = depset([header], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % header.short_path,
        env = {"PATH": "/usr/bin:/bin"},
    )
    return [CcInfo(compilation_context = cc_common.create_compilation_context(
        headers = depset([header, compiled]),
    ))]

# A source uses it by `-include tools/precompiled/NAME.h`. For a source with other options the
# compiler reads the header's text instead: the result is the same, but compiling is slower.
precompiled = rule(
    implementation = _impl,
    attrs = {
        "copts": attr.string_list(),
        "headers": attr.string_list(mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
