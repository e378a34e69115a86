// A data set that fills batches in memory it has been given before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>

#include "weft/data/dataloader.h"

namespace weft::testing {

/// 0, 1, ..., count - 1: samples are i64 without dimensions.
struct Numbers {
  struct Batch {
    Tensor x;
    auto tensors() { return std::tie(x); }
  };
  std::int64_t count = 40;

  std::int64_t size() const { return count; }
  Batch get_batch(std::span<const std::int64_t> indices) const {
    Batch batch;
    get_batch(indices, batch, data::HostMemory());
    return batch;
  }
  void get_batch(std::span<const std::int64_t> indices, Batch& batch,
                 const data::HostMemory& memory) const {
    memory.prepare(batch.x, {static_cast<std::int64_t>(indices.size())}, DType::i64);
    std::ranges::copy(indices, batch.x.data<std::int64_t>());
  }
};

}  // namespace weft::testing
