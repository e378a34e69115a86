// Models that c_api_test.cc opens.
#include <cstdint>
#include <vector>

#include "weft/autograd/ops.h"
#include "weft/c_api/model.h"
#include "weft/core/base/error.h"
#include "weft/nn/linear.h"
#include "weft/nn/module.h"
#include "weft/tensor/creation.h"

namespace weft {
namespace {

struct Net : nn::Module<Net> {
  nn::Linear fc = child("fc", nn::Linear(2, 1));
  Tensor forward(const Tensor& x) const { return fc(x); }
};

// The sum of two, and the first of them.
struct Pair : nn::Module<Pair> {
  std::vector<Tensor> forward(const Tensor& a, const Tensor& b) const { return {a + b, a}; }
};

struct Constant : nn::Module<Constant> {
  nn::Parameter value = parameter("value", scalar(7));
  std::vector<Tensor> forward(std::vector<Tensor>) const { return {value}; }
};

struct Writer : nn::Module<Writer> {
  Tensor forward(Tensor x) const { return x.mul_(2); }
};

struct Mode : nn::Module<Mode> {
  Tensor forward(const Tensor& x) const { return x * (is_training() ? 1 : 2); }
};

struct ThrowsInt : nn::Module<ThrowsInt> {
  Tensor forward(const Tensor&) const { throw 1; }
};

Net refuses() { WEFT_THROW(Unsupported, "refuses", "this model cannot be made"); }

}  // namespace
}  // namespace weft

WEFT_C_MODEL("net", [] { return weft::Net(); })
WEFT_C_MODEL("pair", [] { return weft::Pair(); })
WEFT_C_MODEL("constant", [] { return weft::Constant(); })
WEFT_C_MODEL("writer", [] { return weft::Writer(); })
WEFT_C_MODEL("mode", [] { return weft::Mode(); })
WEFT_C_MODEL("throws int", [] { return weft::ThrowsInt(); })
WEFT_C_MODEL("refuses", weft::refuses)
WEFT_C_MODEL("twice", [] { return weft::Net(); })
WEFT_C_MODEL("twice", [] { return weft::Pair(); })
