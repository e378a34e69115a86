#include "weft/io/state_dict.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/io/file_reader.h"
#include "weft/io/pickle.h"
#include "weft/io/safetensors.h"
#include "weft/io/shown.h"
#include "weft/io/unpickler.h"
#include "weft/io/zip.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "load_state_dict";

/// FILE and KEY of "FILE:KEY". A file whose own name has a colon is found, too.
std::pair<std::string, std::string> split_key(const std::string& file) {
  const std::size_t colon = file.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos || std::filesystem::exists(file, ignored)) return {file, {}};
  return {file.substr(0, colon), file.substr(colon + 1)};
}

bool is_state_dict(const PickleValue& value) {
  return value.is_dict() && std::ranges::all_of(value.entries(), [](const auto& entry) {
           return entry.first.kind() == PickleValue::Kind::text && entry.second.is_tensor();
         });
}

/// ", but the dict "state_dict" in it does (62 tensors): FILE:state_dict"
std::string where_else(const std::string& path, const PickleValue& value) {
  std::string found;
  for (const auto& [key, inner] : value.entries()) {
    if (key.kind() != PickleValue::Kind::text || !is_state_dict(inner) || inner.entries().empty())
      continue;
    found += weft::detail::concat(found.empty() ? "; name the one you mean: " : ", ", path, ':',
                                  key.text(), " (", inner.entries().size(), " tensors)");
  }
  return found;
}

NamedTensors from_pickle(const std::string& path, const std::string& key,
                         const StateDictOptions& options) {
  const PickleValue file = load_pickle(path, {.device = options.device});
  WEFT_CHECK(file.is_dict(), InvalidArgument, kOp, path, ": holds a value of type ",
             to_string(file.kind()), ", not a state dict");
  const PickleValue& value =
      key.empty() ? file : within(path, [&]() -> const PickleValue& { return file.at(key); });
  const std::string name = key.empty() ? path : path + ':' + key;
  WEFT_CHECK(value.is_dict(), InvalidArgument, kOp, name, ": has type ", to_string(value.kind()),
             ", no state dict");
  NamedTensors tensors;
  for (const auto& [entry, tensor] : value.entries()) {
    const bool text = entry.kind() == PickleValue::Kind::text;
    WEFT_CHECK(text && tensor.is_tensor(), InvalidArgument, kOp, name, ": no state dict: ",
               text ? detail::shown(entry.text()) : std::string("a key that is no str"),
               " has type ", to_string(tensor.kind()), ", not tensor", where_else(name, value));
    tensors.emplace_back(entry.text(), tensor.tensor());
  }
  return tensors;
}

NamedTensors from_safetensors(const std::string& path, const std::string& key,
                              const StateDictOptions& options) {
  NamedTensors tensors = load_safetensors(path, {.device = options.device}).tensors;
  if (key.empty()) return tensors;
  const std::string prefix = key + '.';
  std::erase_if(tensors, [&](const auto& item) { return !item.first.starts_with(prefix); });
  WEFT_CHECK(!tensors.empty(), InvalidArgument, kOp, path, ": no tensor's name begins with ",
             prefix);
  for (auto& [name, tensor] : tensors) name.erase(0, prefix.size());
  return tensors;
}

}  // namespace

NamedTensors load_state_dict(const std::string& file, const StateDictOptions& options) {
  const auto [path, key] = split_key(file);
  return is_pickle_file(path) ? from_pickle(path, key, options)
                              : from_safetensors(path, key, options);
}

bool is_pickle_file(const std::string& path) {
  std::array<char, detail::kOldPickleStart.size()> bytes = {};
  const std::size_t got =
      FileReader(path, kOp).read_some(0, std::as_writable_bytes(std::span(bytes)));
  const std::string_view start(bytes.data(), got);
  // In a safetensors file these can be the length of the header, which begins in byte 8.
  if (got > 8 && start[8] == '{') return false;
  return start.starts_with(detail::kZipStart) || start == detail::kOldPickleStart;
}

}  // namespace weft::io
