"""What weft refuses, or does otherwise, on purpose: the patterns, with the reason as docs/from_pytorch.md
gives it.
"""
import re
from dataclasses import dataclass


@dataclass
class Rule:
    operation: str  # a pattern of the whole name
    text: str       # a pattern in the refusal's or the difference's text
    reason: str
    dtypes: str = ".*"

    def covers(self, operation, dtype, text):
        return (re.fullmatch(self.operation, operation) and re.fullmatch(self.dtypes, dtype)
                and re.search(self.text, text))


ALL = ".*"
INTEGERS = "i64|i32|u8"

REFUSED = [
    Rule(ALL, "no tensor among the operands", "an operation of two numbers is one of C++"),
    Rule(ALL, r"dtype torch\.(float16|complex\d+)|that is a complex", "no f16, no complex numbers"),
    Rule(ALL, r"a tensor of (u8|i32|bool|i64) cannot hold", "numbers that the dtype cannot hold"),
    Rule("clone|contiguous", "dimensions, at most", "at most 8 dimensions"),
    Rule(r"nn\.MultiheadAttention", "add_bias_kv|add_zero_attn", "attention without bias_k and zero_attn"),
    Rule(r"nn\.functional\.(.*pool2d|conv.*|linear)", "needs a floating dtype",
         "convolution, pooling and linear of integers", INTEGERS),
    Rule("__getitem__", "index tensors|index tensor|a mask beside", "x[...] takes one mask, or index_select's index"),
    Rule(r"nn\.functional\.(interpolate|upsample).*", r"got \[\d+,\d+,\d+,\d+,\d+\]", "no volumes"),
    Rule(r"nn\.functional\.interpolate.*", "antialias", "no antialiasing"),
    Rule(r"nn\.Adaptive...Pool2d", "with None", "adaptive pooling with both sizes"),
    Rule(r"nn\.functional\.embedding", "max_norm|scale_grad_by_freq", "embedding without max_norm"),
    Rule(r"nn\.functional\.scaled_dot_product_attention", "enable_gqa", "no grouped queries"),
    Rule(r"nn\.functional\.batch_norm.*", r"input: got \[\d+\],", "batch norm of one dimension"),
]

# What a floating value becomes that an integer dtype does not hold.
LIMITS = "|".join(str(n) for n in (0, 255, 2**31 - 1, -2**31, 2**63 - 1, -2**63))
POSITION = r"^tensor 1: \d+ of"
DIFFERS = [
    Rule("topk|sort", POSITION, "equal elements keep their order: other positions"),
    Rule("argsort", r"^tensor 0: \d+ of", "equal elements keep their order: other positions", "bf16|i64|i32|u8|bool"),
    Rule("byte|int|long", r"^tensor 0: \d+ of \d+ differ, \[\d+\] weft " + f"({LIMITS})(\\.0)?,",
         "a floating value out of an integer dtype's range", "f32|f64|bf16"),
    Rule(r"norm|linalg\.vector_norm", "^gradient 0: weft has one, PyTorch none$", "the gradient of the 0-norm is 0"),
    Rule("all|any", "dtype bool, PyTorch u8", "all and any of u8 are bool"),
    Rule("arange", "shape", "bounds of an arange of i32 or u8 are truncated first", "i32|u8"),
    Rule(r"nn\.functional\.(interpolate/bilinear|upsample_bilinear)", r"^tensor 0: \d+ of",
         "bytes are rounded from f32, in PyTorch from fixed point", "u8"),
    Rule(r"nn\.functional\.elu", "gradient 0.*PyTorch nan",
         "the gradient of elu at NaN, which in PyTorch depends on the length"),
    Rule(r"nn\.functional\.(relu6|hardsigmoid)", r"^gradient 0: .* weft 0\.0, PyTorch",
         "the gradient of relu6 and hardsigmoid at NaN, which in PyTorch depends on the length"),
    Rule(r"nn\.functional\.hardsigmoid", "^gradient 0: ",
         "PyTorch's gradient of hardsigmoid has a sixth that is rounded to f32", "f64"),
    Rule("__rdiv__|true_divide|div/.*", "gradient.*weft (nan|-?inf), PyTorch (nan|-?inf)",
         "sums of infinities on the way of a bf16 gradient", "bf16"),
]


def reason_of(rules, operation, dtype, text):
    return next((rule.reason for rule in rules if rule.covers(operation, dtype, text)), None)
