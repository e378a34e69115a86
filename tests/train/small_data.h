// What the tests of training train on, and with.
#pragma once

#include <cstdint>
#include <span>

#include "weft/io/safetensors.h"
#include "weft/tensor/creation.h"

namespace weft::testing {

/// 0, 1, ..., count - 1.
struct Numbers {
  std::int64_t count = 12;
  std::int64_t size() const { return count; }
  Tensor get_batch(std::span<const std::int64_t> indices) const {
    return from_span(indices, {static_cast<std::int64_t>(indices.size())});
  }
};

/// A model without state.
struct Nothing {
  io::NamedTensors state_dict() const { return {}; }
  void load_state_dict(const io::NamedTensors&) {}
};

}  // namespace weft::testing
