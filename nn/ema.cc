#include "weft/nn/ema.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/nn/repr.h"

namespace weft::nn {

ExponentialMovingAverage::ExponentialMovingAverage(const ModuleBase& model, double decay)
    : decay_(decay) {
  WEFT_CHECK(decay >= 0 && decay <= 1, InvalidArgument, "ema", "decay: got ", decay,
             ", expected 0 to 1");
  for (const auto& [name, value] : model.named_parameters()) {
    entries_.push_back({name, value, raw::clone(value), {}, false});
  }
  for (const auto& [name, value] : model.named_buffers()) {
    entries_.push_back({name, value, raw::clone(value), {}, true});
  }
}

void ExponentialMovingAverage::update() {
  WEFT_CHECK(!applied_, InvalidArgument, "ema",
             "update() while the model holds the averages; call restore() first");
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
  for (const Entry& e : entries_) result.emplace_back(e.name, raw::alias(e.average));
  return result;
}

void ExponentialMovingAverage::load_state_dict(const NamedTensors& values) {
  std::vector<std::string> problems;
  std::vector<Tensor> found;
  for (const Entry& e : entries_) {
    const auto at = std::find_if(values.begin(), values.end(),
                                 [&](const auto& entry) { return entry.first == e.name; });
    if (at == values.end()) {
      problems.push_back("missing " + e.name);
    } else if (at->second.shape() != e.average.shape()) {
      problems.push_back(e.name + " is " + weft::to_string(at->second.shape()) + ", expected " +
                         weft::to_string(e.average.shape()));
    } else {
      found.push_back(at->second);
    }
  }
  WEFT_CHECK(problems.empty() && values.size() == entries_.size(), InvalidArgument, "ema",
             "these are the averages of another model: ", values.size(), " tensors for ",
             entries_.size(), problems.empty() ? "" : "; ", detail::first_few(problems));
  for (std::size_t i = 0; i < found.size(); ++i) raw::copy_(entries_[i].average, found[i]);
}

}  // namespace weft::nn
