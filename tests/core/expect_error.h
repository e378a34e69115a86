// EXPECT_HAS and EXPECT_LACKS test a text by a part of it, EXPECT_WEFT_ERROR an error by its code
// and a part of its text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "weft/core/base/error.h"

namespace weft::testing {

inline ::testing::AssertionResult has(std::string_view text, std::string_view part, bool wanted) {
  if ((text.find(part) != std::string_view::npos) == wanted) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "got  " << text << (wanted ? "\nwant " : "\nwant no ") << part;
}

}  // namespace weft::testing

#define EXPECT_HAS(text, part) EXPECT_TRUE(::weft::testing::has(text, part, true))
#define EXPECT_LACKS(text, part) EXPECT_TRUE(::weft::testing::has(text, part, false))

/// Expects `statement` to throw weft::Error with code `error_code` and `text` somewhere in what().
#define EXPECT_WEFT_ERROR(statement, error_code, text)                              \
  do {                                                                              \
    bool thrown = false;                                                            \
    try {                                                                           \
      statement;                                                                    \
    } catch (const ::weft::Error& e) {                                              \
      thrown = true;                                                                \
      EXPECT_EQ(::weft::to_string(e.code()), std::string(#error_code)) << e.what(); \
      EXPECT_HAS(e.what(), text);                                                   \
    }                                                                               \
    EXPECT_TRUE(thrown) << "no error from " #statement;                             \
  } while (0)
