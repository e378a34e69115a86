#include "weft/nn/any_module.h"

namespace weft::nn {

struct AnyModule::PassThrough final : Interface {
  PassThrough(std::shared_ptr<Interface> m, std::size_t n) : module(std::move(m)), count(n) {}

  std::vector<Tensor> call_list(const ModuleBase& handle, std::span<const Tensor> inputs) override {
    WEFT_CHECK(inputs.size() >= count, InvalidArgument, handle.type_name(), "has ", count,
               " tensors to pass through, got ", inputs.size());
    const auto past = inputs.last(count);
    std::vector<Tensor> results = module->call_list(handle, inputs.first(inputs.size() - count));
    results.insert(results.end(), past.begin(), past.end());
    return results;
  }
  Tensor call(const ModuleBase& handle, Tensor x) override {
    std::vector<Tensor> results = call_list(handle, {&x, 1});
    if (results.size() != 1) detail::throw_wrong_results(handle.type_name(), results.size());
    return std::move(results[0]);
  }
  const std::type_info& type() const override { return typeid(PassThrough); }
  std::shared_ptr<Interface> copy() const override {
    return std::make_shared<PassThrough>(module->copy(), count);
  }

  const std::shared_ptr<Interface> module;
  const std::size_t count;
};

AnyModule pass_through(AnyModule module, std::size_t count) {
  module.check_not_moved_from();
  module.impl_ = std::make_shared<AnyModule::PassThrough>(std::move(module.impl_), count);
  return module;
}

}  // namespace weft::nn

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
