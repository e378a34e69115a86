#include "weft/core/runtime/float32_precision.h"

#include "weft/core/base/error.h"
#include "weft/core/runtime/thread_state.h"

namespace weft {

void set_float32_matmul_precision(std::string_view precision) {
  WEFT_CHECK(precision == "highest" || precision == "high" || precision == "medium",
             InvalidArgument, "set_float32_matmul_precision", "got '", precision,
             "', expected highest, high or medium");
  thread_state().allow_tf32_matmul = precision != "highest";
}

std::string_view get_float32_matmul_precision() {
  return thread_state().allow_tf32_matmul ? "high" : "highest";
}

namespace backends {

namespace {

std::string_view name_of(bool tf32) { return tf32 ? "tf32" : "ieee"; }

bool is_tf32(std::string_view precision) {
  WEFT_CHECK(precision == "tf32" || precision == "ieee", InvalidArgument, "set_fp32_precision",
             "got '", precision, "', expected ieee or tf32");
  return precision == "tf32";
}

}  // namespace

namespace cuda::matmul {
bool allow_tf32() { return thread_state().allow_tf32_matmul; }
void set_allow_tf32(bool allow) { thread_state().allow_tf32_matmul = allow; }
std::string_view fp32_precision() { return name_of(allow_tf32()); }
void set_fp32_precision(std::string_view precision) { set_allow_tf32(is_tf32(precision)); }
}  // namespace cuda::matmul

namespace cudnn {
bool allow_tf32() { return thread_state().allow_tf32_conv; }
void set_allow_tf32(bool allow) { thread_state().allow_tf32_conv = allow; }
namespace conv {
std::string_view fp32_precision() { return name_of(allow_tf32()); }
void set_fp32_precision(std::string_view precision) { set_allow_tf32(is_tf32(precision)); }
}  // namespace conv
}  // namespace cudnn

}  // namespace backends

}  // namespace weft
