#include "weft/weft_c.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/autograd/autograd.h"
#include "weft/c_api/named_models.h"
#include "weft/core/base/error.h"
#include "weft/core/base/version.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_local.h"
#include "weft/io/state_dict.h"
#include "weft/nn/wrapper_prefix.h"
#include "weft/tensor/dlpack.h"

struct weft_model {
  weft::nn::AnyModule module;
  weft::Device device;
};

namespace weft::c_api {
namespace {

using dlpack::VersionedTensor;

#define WEFT_SAME_PLACE(mine, its) \
  static_assert(offsetof(weft_tensor, mine) == offsetof(VersionedTensor, its))
WEFT_SAME_PLACE(major, version.major);
WEFT_SAME_PLACE(minor, version.minor);
WEFT_SAME_PLACE(context, context);
WEFT_SAME_PLACE(deleter, deleter);
WEFT_SAME_PLACE(flags, flags);
WEFT_SAME_PLACE(data, tensor.data);
WEFT_SAME_PLACE(device_type, tensor.device.type);
WEFT_SAME_PLACE(device_id, tensor.device.id);
WEFT_SAME_PLACE(dimensions, tensor.ndim);
WEFT_SAME_PLACE(type, tensor.dtype.code);
WEFT_SAME_PLACE(bits, tensor.dtype.bits);
WEFT_SAME_PLACE(lanes, tensor.dtype.lanes);
WEFT_SAME_PLACE(shape, tensor.shape);
WEFT_SAME_PLACE(strides, tensor.strides);
WEFT_SAME_PLACE(byte_offset, tensor.byte_offset);
#undef WEFT_SAME_PLACE
static_assert(sizeof(weft_tensor) == sizeof(VersionedTensor));

ThreadLocal<std::string> last_error;

// If there is no memory for the thread's object or the text, the text stays empty.
void remember(std::string_view text) noexcept try {
  *last_error = text;
} catch (const std::exception&) {
  if (last_error.get()) last_error->clear();
}

// Returns f(), or `failed` if f() throws.
template <class F, class Result>
Result guarded(F&& f, Result failed) noexcept {
  try {
    return f();
  } catch (const std::exception& error) {
    remember(error.what());
  } catch (...) {
    remember("an exception that is no std::exception left the model");
  }
  return failed;
}

void check_given(const char* op, const char* what, const void* pointer) {
  WEFT_CHECK(pointer, InvalidArgument, op, what, " is NULL");
}

struct CallDeleter {
  void operator()(VersionedTensor* tensor) const {
    if (tensor->deleter) tensor->deleter(tensor);
  }
};
using Owned = std::unique_ptr<VersionedTensor, CallDeleter>;

// An input: of several places with one tensor the first owns it.
struct Input {
  std::size_t first;
  Owned tensor;  // null in the other places
};

// Takes ownership: each tensor is given back even if something fails later.
std::vector<Input> take(std::span<weft_tensor* const> given) {
  std::vector<Input> taken;
  taken.reserve(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto first = static_cast<std::size_t>(std::ranges::find(given, given[i]) - given.begin());
    auto* const tensor = first == i ? reinterpret_cast<VersionedTensor*>(given[i]) : nullptr;
    taken.push_back({first, Owned(tensor)});
  }
  return taken;
}

std::vector<Tensor> tensors_of(std::vector<Input> given) {
  std::vector<Tensor> tensors;
  // Or push_back() might throw when a tensor has two owners, and its deleter be called twice.
  tensors.reserve(given.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto& [first, tensor] = given[i];
    if (first < i) {
      tensors.push_back(tensors[first]);
      continue;
    }
    check_given("weft_model_forward", "an input", tensor.get());
    tensors.push_back(from_dlpack(tensor.get()));
    tensor.release();
  }
  return tensors;
}

std::vector<Tensor> run(const weft_model& model, std::vector<Tensor> inputs) {
  const NoGrad no_grad;
  const std::optional<Device> place =
      inputs.empty() ? std::nullopt : std::optional(inputs[0].device());
  for (Tensor& x : inputs) x = x.to(model.device);
  std::vector<Tensor> outputs = model.module(std::span<const Tensor>(inputs));
  if (place)
    for (Tensor& y : outputs) y = y.to(*place);
  return outputs;
}

}  // namespace
}  // namespace weft::c_api

using namespace weft;
using namespace weft::c_api;

extern "C" {

int weft_c_version(void) { return WEFT_C_VERSION; }

const char* weft_version(void) { return kVersion; }

const char* weft_last_error(void) {
  const std::string* const text = last_error.get();
  return text ? text->c_str() : "";
}

weft_model* weft_model_open(const char* library, const char* name, const char* device) {
  return guarded(
      [&] {
        check_given("weft_model_open", "name", name);
        const Device place(device ? device : "cpu");
        runtime(place);  // a model without parameters would need no device before its first call
        auto model = std::make_unique<weft_model>(make_model(library, name), place);
        model->module.to(place);
        model->module.eval();
        return model.release();
      },
      static_cast<weft_model*>(nullptr));
}

int weft_model_load(weft_model* model, const char* file) {
  return guarded(
      [&] {
        check_given("weft_model_load", "model", model);
        check_given("weft_model_load", "file", file);
        const auto own = model->module.state_dict();
        within(file, [&] {
          model->module.load_state_dict(
              nn::strip_wrappers(io::load_state_dict(file, {.device = model->device}), own));
        });
        return 0;
      },
      1);
}

int weft_model_forward(weft_model* model, weft_tensor* const* inputs, size_t input_count,
                       weft_tensor** outputs, size_t* output_count) {
  return guarded(
      [&] {
        const char* const op = "weft_model_forward";
        WEFT_CHECK(inputs || input_count == 0, InvalidArgument, op, "inputs is NULL");
        std::vector<Input> given = take({inputs, input_count});
        check_given(op, "model", model);
        check_given(op, "output_count", output_count);
        const std::vector<Tensor> results = run(*model, tensors_of(std::move(given)));
        const std::size_t room = std::exchange(*output_count, results.size());
        WEFT_CHECK(results.size() <= room, InvalidArgument, op, "the model has ", results.size(),
                   " outputs, there is room for ", room);
        WEFT_CHECK(outputs || results.empty(), InvalidArgument, op, "outputs is NULL");
        std::vector<Owned> shared;
        for (const Tensor& y : results) shared.emplace_back(to_dlpack(y));
        for (std::size_t i = 0; i < shared.size(); ++i)
          outputs[i] = reinterpret_cast<weft_tensor*>(shared[i].release());
        return 0;
      },
      1);
}

weft_model* weft_model_clone(const weft_model* model) {
  return guarded(
      [&] {
        check_given("weft_model_clone", "model", model);
        return new weft_model{nn::clone(model->module), model->device};
      },
      static_cast<weft_model*>(nullptr));
}

void weft_model_free(weft_model* model) { delete model; }

int weft_set_num_threads(int count) {
  return guarded(
      [&] {
        set_num_threads(count);
        return 0;
      },
      1);
}

}  // extern "C"
