#include "weft/nn/ema.h"

#include <algorithm>

#include "weft/core/base/error.h"
#include "weft/nn/repr.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::nn {

ExponentialMovingAverage::ExponentialMovingAverage(const ModuleBase& model, double decay)
    : decay_(decay) {
  WEFT_CHECK(decay >= 0 && decay <= 1, InvalidArgument, "ema", "decay: got ", decay,
             ", expected 0 to 1");
  for (const auto& [name, value] : model.named_parameters()) {
    entries_.push_back({value, raw::clone(value), {}, false});
  }
  for (const auto& [name, value] : model.named_buffers()) {
    entries_.push_back({value, raw::clone(value), {}, true});
  }
  for (const auto& [name, value] : model.state_dict()) {
    const auto entry = std::ranges::find_if(entries_, [&](const Entry& e) {
      return e.value.storage() == value.storage() && e.value.raw_data() == value.raw_data() &&
             e.value.shape() == value.shape();
    });
    names_.emplace_back(name, entry - entries_.begin());
  }
}

void ExponentialMovingAverage::update() {
  WEFT_CHECK(!applied_, InvalidArgument, "ema",
             "update() while the model holds the averages; call restore() first");
  for (const Entry& e : entries_) {
    const Device at = e.value.device();
    WEFT_CHECK(e.is_buffer || e.average.device() == at, Device, "ema", "the averages are on ",
               e.average.device(), ", the model is on ", at,
               "; make them after to(device), or make them anew and give them the old ones with "
               "load_state_dict(state_dict())");
  }
  for (const Entry& e : entries_) {
    if (e.is_buffer) {
      raw::copy_(e.average, e.value);
    } else {
      raw::mul_(e.average, decay_);
      raw::add_scaled_(e.average, 1 - decay_, e.value);
    }
  }
}

void ExponentialMovingAverage::apply() {
  WEFT_CHECK(!applied_, InvalidArgument, "ema", "the model holds the averages already");
  for (Entry& e : entries_) {
    if (!e.kept.defined()) e.kept = raw::clone(e.value);
    raw::copy_(e.kept, e.value);
    raw::copy_(e.value, e.average);
  }
  applied_ = true;
}

void ExponentialMovingAverage::restore() {
  WEFT_CHECK(applied_, InvalidArgument, "ema", "there is nothing to restore without apply()");
  for (const Entry& e : entries_) raw::copy_(e.value, e.kept);
  applied_ = false;
}

NamedTensors ExponentialMovingAverage::state_dict() const {
  NamedTensors result;
  for (const auto& [name, entry] : names_) {
    result.emplace_back(name, raw::alias(entries_[entry].average));
  }
  return result;
}

void ExponentialMovingAverage::load_state_dict(const NamedTensors& values) {
  std::vector<std::string> problems;
  std::vector<Tensor> found;
  for (const auto& [name, entry] : names_) {
    const Tensor& average = entries_[entry].average;
    const auto at = std::ranges::find(values, name, &NamedTensors::value_type::first);
    if (at == values.end()) {
      problems.push_back("missing " + name);
    } else if (at->second.shape() != average.shape()) {
      problems.push_back(name + " is " + weft::to_string(at->second.shape()) + ", expected " +
                         weft::to_string(average.shape()));
    } else {
      found.push_back(at->second);
    }
  }
  WEFT_CHECK(problems.empty() && values.size() == names_.size(), InvalidArgument, "ema",
             "these are the averages of another model: ", values.size(), " tensors for ",
             names_.size(), problems.empty() ? "" : "; ", detail::first_few(problems));
  for (std::size_t i = 0; i < found.size(); ++i) {
    raw::copy_(entries_[names_[i].second].average, found[i]);
  }
}

}  // namespace weft::nn
