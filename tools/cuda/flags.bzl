"""A build setting that is a string."""

StringFlag = provider(fields = ["value"])

def _impl(ctx):
    return StringFlag(value = ctx.build_setting_value)

string_flag = rule(
    implementation = _impl,
    build_setting = config.string(flag = True),
)
