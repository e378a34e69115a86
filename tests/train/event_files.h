// Reads event files (train/tensorboard.h) like TensorBoard.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/tests/io/files.h"
#include "weft/tests/io/protobuf.h"
#include "weft/train/tensorboard.h"

namespace weft::testing::event_files {

using protobuf::number;
using protobuf::take;

/// The fields of a message, each of which is there once.
inline std::map<int, std::string> fields(std::string_view bytes) {
  std::map<int, std::string> found;
  for (const auto& [number, value] : protobuf::fields(bytes)) {
    EXPECT_TRUE(found.emplace(number, value).second);
  }
  return found;
}

using Fields = std::map<int, std::string>;

/// The records of a file; checks their checksums with masked_crc32c().
inline std::vector<Fields> events_of(const std::string& path) {
  const std::string file = read_file(path);
  std::string_view rest = file;
  std::vector<Fields> events;
  while (!rest.empty()) {
    const std::string_view length = rest.substr(0, 8);
    const auto size = take<std::uint64_t>(rest);
    EXPECT_EQ(take<std::uint32_t>(rest), train::masked_crc32c(length));
    const std::string_view event = rest.substr(0, size);
    rest.remove_prefix(size);
    EXPECT_EQ(take<std::uint32_t>(rest), train::masked_crc32c(event));
    events.push_back(fields(event));
  }
  return events;
}

inline std::vector<std::string> files(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  return paths;
}

using Curve = std::vector<std::pair<std::int64_t, float>>;

/// The curves of a folder, with the files in the order of their names, as TensorBoard reads them: a
/// session that starts at a step replaces everything from that step on.
inline std::map<std::string, Curve> curves(const std::string& folder) {
  std::map<std::string, Curve> found;
  for (const std::string& path : files(folder)) {
    for (const Fields& event : events_of(path)) {
      const std::int64_t step = event.contains(2) ? number<std::int64_t>(event.at(2)) : 0;
      if (event.contains(7)) {
        for (auto& [tag, curve] : found) {
          std::erase_if(curve, [&](const auto& point) { return point.first >= step; });
        }
      }
      if (!event.contains(5)) continue;
      const auto value = fields(fields(event.at(5)).at(1));
      found[value.at(1)].emplace_back(step, number<float>(value.at(2)));
    }
  }
  return found;
}

}  // namespace weft::testing::event_files
