// The records of train/proof.h, read and compared.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace weft::testing {

/// The lines of a rank's record by what they are of.
inline std::map<std::string, nlohmann::json> record_lines(const std::string& folder, int rank) {
  std::map<std::string, nlohmann::json> found;
  std::ifstream file(folder + "/rank-" + std::to_string(rank) + ".jsonl");
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    std::string key;
    for (const char* part :
         {"kind", "optimizer", "step", "event", "module", "call", "index", "name"}) {
      if (line.contains(part)) key += line[part].dump() + ' ';
    }
    EXPECT_TRUE(found.emplace(key, line).second) << text;
  }
  return found;
}

/// Expects that everything that a replay has recorded of whole tensors is equal to what the ranks
/// have recorded, to the bit, and that of the kinds in `complete` it has recorded everything.
/// Returns the number of equal digests by kind.
inline std::map<std::string, int> expect_same_records(
    const std::string& ranks, const std::string& one, int rank,
    const std::set<std::string>& complete = {"output", "gradient", "weight", "loss", "update"}) {
  std::map<std::string, int> counts;
  const auto recorded = record_lines(ranks, rank), replayed = record_lines(one, rank);
  for (const auto& [key, line] : recorded) {
    const std::string kind = line["kind"];
    if (!replayed.contains(key)) {
      EXPECT_FALSE(complete.contains(kind)) << key;
      continue;
    }
    if (line.value("part", false)) continue;
    const nlohmann::json& other = replayed.at(key);
    for (const char* part : {"hash", "signs", "training", "missing", "generator", "indices",
                             "inputs", "epoch", "values", "groups", "parameters", "type"}) {
      EXPECT_EQ(line.value(part, nlohmann::json()), other.value(part, nlohmann::json()))
          << key << part;
    }
    if (line.contains("hash")) counts[kind] += line["hash"] == other["hash"];
  }
  for (const auto& [key, line] : replayed) EXPECT_TRUE(recorded.contains(key)) << key;
  return counts;
}

}  // namespace weft::testing
