"""A library of a Debian package as a repository: `deps = ["@png"]`."""

def _archive(linkopt):
    return "-l:lib%s.a" % linkopt[2:] if linkopt.startswith("-l") else linkopt

def _impl(ctx):
    if not [d for d in ["/usr/include/", "/usr/local/include/"] if ctx.path(d + ctx.attr.header).exists]:
        fail("%s is missing: apt-get install %s" % (ctx.attr.header, ctx.attr.package))

    # The headers are where the compiler looks by default. -isystem /usr/include is not given,
    # because it would break libstdc++'s #include_next.
    ctx.file("BUILD", """
cc_library(
    name = "%s",
    linkopts = select({
        "@weft//:portable": %s,
        "//conditions:default": %s,
    }),
    visibility = ["//visibility:public"],
)
""" % (ctx.name, [_archive(l) for l in ctx.attr.linkopts], ctx.attr.linkopts))

system_library = repository_rule(
    implementation = _impl,
    attrs = {
        "header": attr.string(mandatory = True),
        "linkopts": attr.string_list(),
        "package": attr.string(mandatory = True),
    },
    local = True,  # each new Bazel server looks again: packages come and go
)
