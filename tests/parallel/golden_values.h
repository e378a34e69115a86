// Values that PyTorch has computed, as write_ddp_goldens.py sums them up.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/nn/module.h"
#include "weft/tensor/ops.h"

namespace weft::testing {

// Sums are taken in another order: an error of 1e-16 of a value, which grows in some steps.
inline constexpr double kGoldenTolerance = 1e-10;

inline void expect_golden_losses(const std::vector<double>& got, const nlohmann::json& golden) {
  const auto losses = golden.get<std::vector<double>>();
  ASSERT_EQ(got.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(got[i], losses[i], kGoldenTolerance * losses[i]) << "loss " << i;
  }
}

/// golden: for each tensor the name, the norm, and the sum of value i times cos i.
inline void expect_golden_values(const nn::NamedTensors& got, const nlohmann::json& golden) {
  ASSERT_EQ(got.size(), golden.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const nlohmann::json& value = golden[i];
    const auto& [name, x] = got[i];
    EXPECT_EQ(name, value[0].get<std::string>());
    double squares = 0, along_cosine = 0;
    const std::vector<double> numbers = raw::to(x, DType::f64).to_vector<double>();
    for (std::size_t k = 0; k < numbers.size(); ++k) {
      squares += numbers[k] * numbers[k];
      along_cosine += numbers[k] * std::cos(static_cast<double>(k));
    }
    const double norm = value[1];
    EXPECT_NEAR(std::sqrt(squares), norm, kGoldenTolerance * norm) << name;
    EXPECT_NEAR(along_cosine, value[2].get<double>(), kGoldenTolerance * norm) << name;
  }
}

}  // namespace weft::testing
