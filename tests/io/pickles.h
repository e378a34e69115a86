// What the tests of torch.save's files share; zip_files.h makes files by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/io/pickle.h"
#include "weft/tests/core/expect_error.h"
#include "weft/tests/io/files.h"
#include "weft/tests/io/zip_files.h"

namespace weft::testing {

using Doubles = std::vector<double>;

inline io::PickleValue golden_pickle(const std::string& name,
                                     const io::PickleOptions& options = {}) {
  return io::load_pickle("tests/io/goldens/" + name, options);
}

inline io::PickleValue parse(const std::string& file) { return io::parse_pickle(as_bytes(file)); }

inline Doubles values(const io::PickleValue& v) { return v.tensor().to_vector<double>(); }

/// A storage of two f32.
inline const std::string kTwoFloats = pickled_storage("0", 2);

inline std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// --- Bad ones --------------------------------------------------------------------------------------

struct BadFile {
  const char* name;
  std::string text;  // of the file, or of its pickle
  const char* code;
  const char* message;
};

/// Expects the error of `bad`, without much memory or time.
inline void expect_refused(const std::string& file, const BadFile& bad) {
  const CheapScope cheap;
  try {
    parse(file);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), std::string(bad.code)) << error.what();
    EXPECT_HAS(error.what(), bad.message);
  }
}

}  // namespace weft::testing
