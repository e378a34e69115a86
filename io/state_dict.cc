#include "weft/io/state_dict.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/io/file_reader.h"
#include "weft/io/pickle_file.h"
#include "weft/io/safetensors.h"
#include "weft/io/shown.h"
#include "weft/io/slice_reader.h"
#include "weft/io/source.h"
#include "weft/io/unpickler.h"
#include "weft/io/zip.h"
#include "weft/tensor/creation.h"

namespace weft::io {
namespace {

using detail::PickleGraph;
using detail::PickleItem;
using Kind = PickleItem::Kind;

constexpr const char* kOp = "load_state_dict";

/// FILE and KEY of "FILE:KEY". Both may contain colons: takes the longest FILE that exists.
std::pair<std::string, std::string> split_key(const std::string& file) {
  const auto is_file = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored) && !std::filesystem::is_directory(path, ignored);
  };
  const std::size_t last = file.rfind(':');
  if (last == std::string::npos || is_file(file)) return {file, {}};
  std::size_t colon = last;
  while (colon != std::string::npos && colon > 0 && !is_file(file.substr(0, colon)))
    colon = file.rfind(':', colon - 1);
  if (colon == std::string::npos || colon == 0) colon = last;
  return {file.substr(0, colon), file.substr(colon + 1)};
}

/// Calls f(key, value) for each entry.
template <class F>
void each_entry(const PickleGraph& graph, const PickleItem& dict, const F& f) {
  const std::vector<PickleItem>& items = graph.of(dict).items;
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) f(items[i], items[i + 1]);
}

std::string shown_key(const PickleGraph& graph, const PickleItem& key) {
  return key.kind == Kind::text ? detail::shown(graph.of(key).text) : "a key that is no str";
}

void check_dict(const PickleItem& item, const std::string& name) {
  WEFT_CHECK(item.kind == Kind::dict, InvalidArgument, kOp, name, ": has type ",
             detail::to_string(item.kind), ", not a state dict");
}

std::string keys_of(const PickleGraph& graph, const PickleItem& dict) {
  constexpr std::size_t kMost = 5;
  std::string keys;
  std::size_t count = 0;
  each_entry(graph, dict, [&](const PickleItem& key, const PickleItem&) {
    if (key.kind == Kind::text && count++ < kMost)
      keys += (keys.empty() ? "" : ", ") + shown_key(graph, key);
  });
  if (count > kMost) keys += weft::detail::concat(" and ", count - kMost, " others");
  return keys.empty() ? "none" : keys;
}

/// The value at KEY, or in nested dicts at KEY:KEY ..., as "ema:model". A key may contain colons:
/// takes the longest one that fits. `name` becomes the value's name.
PickleItem find(const PickleGraph& graph, std::string_view keys, std::string& name) {
  PickleItem value = graph.root;
  while (!keys.empty()) {
    check_dict(value, name);
    const PickleItem* next = nullptr;
    std::size_t longest = 0;
    each_entry(graph, value, [&](const PickleItem& key, const PickleItem& one) {
      if (key.kind != Kind::text) return;
      const std::string& text = graph.of(key).text;
      const bool fits =
          keys.starts_with(text) && (keys.size() == text.size() || keys[text.size()] == ':');
      if (!fits || text.size() < longest) return;
      next = &one;
      longest = text.size();
    });
    WEFT_CHECK(next, InvalidArgument, kOp, name, ": no key ", detail::shown(keys), "; there are ",
               keys_of(graph, value));
    value = *next;
    name.append(":").append(keys.substr(0, longest));
    keys.remove_prefix(std::min(longest + 1, keys.size()));
  }
  return value;
}

/// The state dicts in a dict: "; name the one you mean: FILE:state_dict (62 tensors)".
class Suggestions {
 public:
  Suggestions(const PickleGraph& graph, const PickleItem& dict, const std::string& name)
      : graph_(graph) {
    visit(dict, name, 0);
  }

  const std::string& text() const { return text_; }

 private:
  void visit(const PickleItem& dict, const std::string& name, int depth) {
    if (depth == detail::kMaxPickleDepth || !visited_.insert(dict.node).second) return;
    each_entry(graph_, dict, [&](const PickleItem& key, const PickleItem& value) {
      if (key.kind != Kind::text || value.kind != Kind::dict) return;
      const std::string& text = graph_.of(key).text;
      if (text.empty() || detail::shown(text) != '"' + text + '"') return;  // nobody types it
      const std::string inner = name + ':' + text;
      if (is_state_dict(value)) {
        add(inner, graph_.of(value).items.size() / 2);
      } else {
        visit(value, inner, depth + 1);
      }
    });
  }

  bool is_state_dict(const PickleItem& dict) {
    const auto [known, is_new] = known_.try_emplace(dict.node, !graph_.of(dict).items.empty());
    bool& all = known->second;
    if (!is_new) return all;
    each_entry(graph_, dict, [&](const PickleItem& key, const PickleItem& value) {
      all = all && key.kind == Kind::text && value.kind == Kind::tensor;
    });
    return all;
  }

  void add(const std::string& name, std::size_t tensors) {
    constexpr int kMost = 5;
    if (++count_ > kMost) return;
    text_ += weft::detail::concat(text_.empty() ? "; name the one you mean: " : ", ", name, " (",
                                  tensors, " tensors)");
  }

  const PickleGraph& graph_;
  std::unordered_set<std::uint32_t> visited_;
  std::unordered_map<std::uint32_t, bool> known_;  // a file may name one large dict many times
  int count_ = 0;
  std::string text_;
};

void check_state_dict(const PickleGraph& graph, const PickleItem& dict, const std::string& name) {
  check_dict(dict, name);
  const auto others = [&] { return Suggestions(graph, dict, name).text(); };
  std::unordered_set<std::string_view> names;
  each_entry(graph, dict, [&](const PickleItem& key, const PickleItem& value) {
    WEFT_CHECK(value.kind != Kind::unknown, Unsupported, kOp, name, ": ", shown_key(graph, key),
               ": ", graph.of(value).text, others());
    WEFT_CHECK(key.kind == Kind::text && value.kind == Kind::tensor, InvalidArgument, kOp, name,
               ": no state dict: ", shown_key(graph, key), " has type ",
               detail::to_string(value.kind), ", not tensor", others());
    WEFT_CHECK(names.insert(graph.of(key).text).second, Io, kOp, name, ": ", shown_key(graph, key),
               " is given twice");
  });
}

/// Reads the storages of this dict alone.
NamedTensors from_pickle(const std::string& path, const std::string& key,
                         const StateDictOptions& options) {
  const detail::FileSource source(path, detail::kPickle);
  const detail::PickleFile file(source, options.device, path);
  const PickleGraph& graph = file.graph();
  std::string name = path;
  const PickleItem dict = find(graph, key, name);
  check_state_dict(graph, dict, name);
  NamedTensors tensors;
  each_entry(graph, dict, [&](const PickleItem& own, const PickleItem& value) {
    tensors.emplace_back(graph.of(own).text, within([&] { return shown_key(graph, own); },
                                                    [&] { return file.tensor(value); }));
  });
  return tensors;
}

NamedTensors from_index(const std::string& path, const StateDictOptions& options) {
  const SliceReader files({path});
  NamedTensors tensors;
  for (const std::string& name : files.names()) {
    const Tensor x = empty(files.shape(name), {files.dtype(name), options.device});
    files.read({name, x.shape(), Shape::filled(x.dim(), 0), x});
    tensors.emplace_back(name, x);
  }
  return tensors;
}

NamedTensors from_safetensors(const std::string& path, const std::string& key,
                              const StateDictOptions& options) {
  NamedTensors tensors = path.ends_with(".index.json")
                             ? from_index(path, options)
                             : load_safetensors(path, {.device = options.device}).tensors;
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
