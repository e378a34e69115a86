#include "weft/nn/any_module.h"

namespace weft::nn::detail {

void throw_wrong_inputs(const std::string& type, std::size_t given) {
  WEFT_THROW(InvalidArgument, type, "its forward does not take ", given,
             given == 1 ? " tensor" : " tensors");
}

void throw_wrong_results(const std::string& type, std::size_t given) {
  WEFT_THROW(InvalidArgument, type, "expected one tensor of its forward, got ", given,
             "; call it with a list of tensors to get a list");
}

}  // namespace weft::nn::detail
