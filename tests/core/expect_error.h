// EXPECT_WEFT_ERROR: a failure is tested by its code and its text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "weft/core/base/error.h"

/// Expects `statement` to throw weft::Error with code `error_code` and `text` somewhere in what().
#define EXPECT_WEFT_ERROR(statement, error_code, text)                              \
  do {                                                                              \
    bool thrown = false;                                                            \
    try {                                                                           \
      statement;                                                                    \
    } catch (const ::weft::Error& e) {                                              \
      thrown = true;                                                                \
      EXPECT_EQ(::weft::to_string(e.code()), std::string(#error_code)) << e.what(); \
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos)                \
          << "got  " << e.what() << "\nwant " << (text);                            \
    }                                                                               \
    EXPECT_TRUE(thrown) << "no error from " #statement;                             \
  } while (0)
