#include "weft/io/pickle.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/io/pickle_file.h"
#include "weft/io/shown.h"
#include "weft/io/source.h"
#include "weft/io/unpickler.h"

namespace weft::io {
namespace {

using detail::kMaxPickleDepth;
using detail::kPickle;
using detail::PickleFile;
using detail::PickleGraph;
using detail::PickleItem;
using ItemKind = PickleItem::Kind;

constexpr const char* kAdvice = "io::load_state_dict(FILE:KEY) reads the tensors of one dict alone";

/// Makes values of a file's graph.
class Converter {
 public:
  Converter(const PickleFile& file, const std::string& name)
      : file_(file), graph_(file.graph()), name_(name), done_(graph_.nodes.size()) {}

  PickleValue convert() { return convert(graph_.root, 0); }

 private:
  PickleValue convert(const PickleItem& item, int depth) {
    switch (item.kind) {
      case ItemKind::none: return {};
      case ItemKind::boolean: return item.boolean;
      case ItemKind::integer: return item.integer;
      case ItemKind::real: return item.real;
      default: break;
    }
    Done& done = done_[item.node];
    const bool container = item.kind == ItemKind::list || item.kind == ItemKind::tuple ||
                           item.kind == ItemKind::set || item.kind == ItemKind::dict;
    WEFT_CHECK(!container || depth < kMaxPickleDepth, Unsupported, kPickle, name_,
               ": values nested in themselves, or deeper than ", kMaxPickleDepth);
    if (!done.value) {
      done.value = convert_node(item, depth);
      if (container) done.height = 1 + height_of_parts(graph_.of(item));
    }
    WEFT_CHECK(depth + done.height <= kMaxPickleDepth, Unsupported, kPickle, name_,
               ": values nested deeper than ", kMaxPickleDepth);
    return *done.value;
  }

  int height_of_parts(const detail::PickleNode& node) const {
    const auto height = [&](const PickleItem& item) {
      return item.kind < ItemKind::text ? 0 : done_[item.node].height;
    };
    int most = height(node.attributes);
    for (const PickleItem& item : node.items) most = std::max(most, height(item));
    return most;
  }

  PickleValue convert_node(const PickleItem& item, int depth) {
    const detail::PickleNode& node = graph_.of(item);
    switch (item.kind) {
      case ItemKind::bytes: return PickleValue::bytes(node.text);
      case ItemKind::list: return PickleValue::list(items(node, depth));
      case ItemKind::tuple: return PickleValue::tuple(items(node, depth));
      case ItemKind::set: return PickleValue::set(items(node, depth));
      case ItemKind::dict: return dict(node, depth);
      case ItemKind::tensor: return file_.tensor(item);
      case ItemKind::storage:
        WEFT_THROW(Unsupported, kPickle, name_, ": a storage without a tensor");
      case ItemKind::unknown:
        WEFT_THROW(Unsupported, kPickle, name_, ": ", node.text, "; ", kAdvice);
      default: return node.text;  // a text, or the name of a dtype
    }
  }

  PickleValue::Items items(const detail::PickleNode& node, int depth) {
    PickleValue::Items all;
    for (const PickleItem& item : node.items) all.push_back(convert(item, depth + 1));
    return all;
  }

  PickleValue dict(const detail::PickleNode& node, int depth) {
    PickleValue::Entries entries;
    for (std::size_t i = 0; i < node.items.size(); i += 2) {
      const PickleItem& key = node.items[i];
      check_key(key);
      const bool text = key.kind == ItemKind::text || key.kind == ItemKind::bytes;
      // The error of a value says where it is: in "layer.weight", "model".
      const auto place = [&] { return text ? detail::shown(graph_.of(key).text) : "a dict"; };
      entries.emplace_back(convert(key, depth + 1),
                           within(place, [&] { return convert(node.items[i + 1], depth + 1); }));
    }
    const PickleValue attributes = convert(node.attributes, depth + 1);
    try {
      return PickleValue::ordered_dict(std::move(entries), attributes);
    } catch (const Error& error) {
      WEFT_THROW(Io, kPickle, name_, ": a dict: ", error.what());
    }
  }

  void check_key(const PickleItem& key) const {
    const bool text = key.kind == ItemKind::text || key.kind == ItemKind::bytes;
    const bool value = key.kind < ItemKind::text || key.kind == ItemKind::global;
    WEFT_CHECK(text || value, Unsupported, kPickle, name_, ": a dict with a key of type ",
               detail::to_string(key.kind), "; weft's have numbers and texts as keys; ", kAdvice);
    WEFT_CHECK(!text || graph_.of(key).text.size() <= detail::kMaxPickleKeyBytes, Unsupported,
               kPickle, name_, ": a key of more than ", detail::kMaxPickleKeyBytes, " bytes");
  }

  const PickleFile& file_;
  const PickleGraph& graph_;
  const std::string& name_;
  // A container that is used twice is converted once. Its height counts at each place.
  struct Done {
    std::optional<PickleValue> value;
    int height = 0;
  };
  std::vector<Done> done_;
};

PickleValue load(const detail::Source& source, const PickleOptions& options,
                 const std::string& name) {
  Span span("io", "load_pickle");
  const PickleFile file(source, options.device, name);
  return Converter(file, name).convert();
}

}  // namespace

PickleValue load_pickle(const std::string& path, const PickleOptions& options) {
  if (options.map) return load(detail::MappedSource(path, kPickle), options, path);
  return load(detail::FileSource(path, kPickle), options, path);
}

PickleValue parse_pickle(std::span<const std::byte> bytes, const PickleOptions& options,
                         const std::string& name) {
  return load(detail::MemorySource(bytes), options, name);
}

}  // namespace weft::io
