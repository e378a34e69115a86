// A folder for temporary files.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"

namespace weft::bench {

/// Removed with its content when this ends.
class TempFolder {
 public:
  /// Throws Io.
  TempFolder() : path_(temporary_folder() + "/weft_bench_XXXXXX") {
    WEFT_CHECK(mkdtemp(path_.data()), Io, "bench", "cannot make a temporary folder ", path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace weft::bench
