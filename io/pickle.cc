#include "weft/io/pickle.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/trace/trace.h"
#include "weft/io/half.h"
#include "weft/io/shown.h"
#include "weft/io/source.h"
#include "weft/io/unpickler.h"
#include "weft/io/zip.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::io {
namespace {

using detail::kPickle;
using detail::PickleGraph;
using detail::PickleItem;
using detail::Source;
using detail::ZipRecord;
using ItemKind = PickleItem::Kind;

static_assert(std::endian::native == std::endian::little, "the data are little-endian");

constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxKeyBytes = 4096;

struct StorageType {
  std::string_view name;
  DType dtype;
  bool half = false;  // in the file; in memory f32
};
constexpr StorageType kTypes[] = {
    {"FloatStorage", DType::f32},      {"DoubleStorage", DType::f64},
    {"HalfStorage", DType::f32, true}, {"BFloat16Storage", DType::bf16},
    {"LongStorage", DType::i64},       {"IntStorage", DType::i32},
    {"ByteStorage", DType::u8},        {"BoolStorage", DType::boolean},
};

/// The records of a file of torch.save.
class Archive {
 public:
  Archive(const Source& source, const std::string& name) : source_(source), name_(name) {
    check_start();
    for (ZipRecord& r : detail::read_zip_directory(source, kPickle, name)) {
      std::string key = r.name;
      records_.emplace(std::move(key), std::move(r));
    }
    const auto pickle = std::ranges::find_if(records_, [](const auto& item) {
      const std::size_t slash = item.first.find('/');
      return slash != std::string::npos && item.first.substr(slash) == "/data.pkl";
    });
    WEFT_CHECK(pickle != records_.end(), Io, kPickle, name_,
               ": a zip archive without data.pkl: torch.save has not written it");
    root_ = pickle->first.substr(0, pickle->first.find('/') + 1);
    WEFT_CHECK(!find("constants.pkl"), Unsupported, kPickle, name_,
               ": a TorchScript program, not values; save model.state_dict() with torch.save");
    WEFT_CHECK(find("version"), Io, kPickle, name_, ": record ", root_, "version is missing");
    if (const ZipRecord* order = find("byteorder")) {
      WEFT_CHECK(text(*order) == "little", Unsupported, kPickle, name_,
                 ": was written by a big-endian machine; load and save it on a little-endian one");
    }
  }

  std::string pickle() const { return text(*find("data.pkl")); }

  /// The record, or null.
  const ZipRecord* find(const std::string& name) const {
    const auto found = records_.find(root_ + name);
    return found == records_.end() ? nullptr : &found->second;
  }

  /// Passes the record's bytes to `each`, piece by piece, and checks its CRC.
  template <class Each>
  void read(const ZipRecord& record, const Each& each) const {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
    std::vector<std::byte> piece(std::min(kPiece, record.bytes));
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < record.bytes; at += piece.size()) {
      piece.resize(std::min(kPiece, record.bytes - at));
      source_.read(record.begin + at, piece);
      crc = detail::crc_of(piece, crc);
      each(at, std::span<const std::byte>(piece));
    }
    WEFT_CHECK(crc == record.crc, Io, kPickle, name_, ": checksum of record ", record.name,
               " does not match: the file is damaged, or was written without checksums "
               "(torch.serialization.set_crc32_options(False))");
  }

  /// The record as memory without a copy, where that is possible. Does not check it.
  intrusive_ptr<Storage> view(const ZipRecord& record, std::size_t alignment) const {
    if (record.begin % alignment != 0 || record.bytes == 0) return {};
    return source_.view(record.begin, record.bytes);
  }

 private:
  void check_start() const {
    std::string start(std::min<std::uint64_t>(source_.size(), detail::kOldPickleStart.size()),
                      '\0');
    source_.read(0, std::as_writable_bytes(std::span(start)));
    WEFT_CHECK(start != detail::kOldPickleStart, Unsupported, kPickle, name_,
               ": PyTorch's format from before 1.6, which is no zip archive; in Python, "
               "torch.save(torch.load(file), file) writes today's");
    WEFT_CHECK(start.starts_with(detail::kZipStart), Io, kPickle, name_,
               ": does not begin like a file of torch.save, which is a zip archive");
  }

  std::string text(const ZipRecord& record) const {
    WEFT_CHECK(record.bytes <= detail::kMaxPickleBytes, Unsupported, kPickle, name_, ": record ",
               record.name, " of ", record.bytes, " bytes, over ", detail::kMaxPickleBytes);
    std::string all;
    read(record, [&](std::uint64_t, std::span<const std::byte> piece) {
      all.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return all;
  }

  const Source& source_;
  const std::string& name_;
  std::unordered_map<std::string, ZipRecord> records_;
  std::string root_;  // with the slash
};

/// The storages of an archive, each read when its first tensor is.
class Storages {
 public:
  Storages(const Archive& archive, Device device, const std::string& name)
      : archive_(archive), device_(device), name_(name) {}

  struct Loaded {
    std::string type;
    std::int64_t elements;
    DType dtype;
    intrusive_ptr<Storage> memory;
  };

  /// type "torch.FloatStorage" or "torch.cuda.FloatStorage"
  const Loaded& load(const std::string& type, const std::string& key, std::int64_t elements) {
    const auto known = loaded_.find(key);
    if (known != loaded_.end()) {
      WEFT_CHECK(known->second.type == type && known->second.elements == elements, Io, kPickle,
                 name_, ": storage ", detail::shown(key), " has two types or sizes");
      return known->second;
    }
    const auto* const found =
        std::ranges::find(kTypes, type.substr(type.rfind('.') + 1), &StorageType::name);
    WEFT_CHECK(found != std::end(kTypes), Unsupported, kPickle, name_, ": weft has no dtype for ",
               type, "; convert the tensor where the file was written");
    const ZipRecord* record = archive_.find("data/" + key);
    WEFT_CHECK(record, Io, kPickle, name_, ": storage ", detail::shown(key), " is missing");
    const std::uint64_t size = found->half ? 2 : size_of(found->dtype);
    WEFT_CHECK(elements >= 0 && record->bytes % size == 0 &&
                   record->bytes / size == static_cast<std::uint64_t>(elements),
               Io, kPickle, name_, ": storage ", detail::shown(key), " claims ", elements,
               " elements of ", size, " bytes, its record has ", record->bytes, " bytes");
    return loaded_
        .emplace(key, Loaded{type, elements, found->dtype, read(*record, *found, elements)})
        .first->second;
  }

 private:
  intrusive_ptr<Storage> read(const ZipRecord& record, const StorageType& type,
                              std::int64_t elements) const {
    const bool boolean = type.dtype == DType::boolean;
    intrusive_ptr<Storage> view;
    if (device_.is_cpu() && !type.half) view = archive_.view(record, size_of(type.dtype));
    if (view) {
      archive_.read(record, [&](std::uint64_t, std::span<const std::byte> piece) {
        if (boolean) check_booleans(piece, record);
      });
      return view;
    }
    const Tensor host =
        empty({elements}, TensorOptions(type.dtype, device_.is_cpu() ? device_ : Device()));
    auto* const memory = static_cast<std::byte*>(host.raw_data());
    archive_.read(record, [&](std::uint64_t at, std::span<const std::byte> piece) {
      if (boolean) check_booleans(piece, record);
      if (type.half) {
        detail::from_halves(piece, memory + 2 * at);
      } else {
        std::ranges::copy(piece, memory + at);
      }
    });
    return (device_.is_cpu() ? host : raw::to(host, device_)).storage();
  }

  // Any other byte in a bool would be undefined behaviour.
  void check_booleans(std::span<const std::byte> bytes, const ZipRecord& record) const {
    const auto bad = std::ranges::find_if(bytes, [](std::byte b) { return b > std::byte{1}; });
    WEFT_CHECK(bad == bytes.end(), Io, kPickle, name_, ": value ", std::to_integer<int>(*bad),
               " in the bools of record ", record.name);
  }

  const Archive& archive_;
  const Device device_;
  const std::string& name_;
  std::unordered_map<std::string, Loaded> loaded_;
};

/// Makes values of a pickle's graph.
class Converter {
 public:
  Converter(const PickleGraph& graph, Storages& storages, const std::string& name)
      : graph_(graph), storages_(storages), name_(name), done_(graph.nodes.size()) {}

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
    WEFT_CHECK(depth < kMaxDepth, Unsupported, kPickle, name_,
               ": values nested in themselves, or deeper than ", kMaxDepth);
    Done& done = done_[item.node];
    if (!done.value) {
      done.value = convert_node(item, depth);
      done.height = 1 + height_of_parts(graph_.of(item));
    }
    WEFT_CHECK(depth + done.height <= kMaxDepth, Unsupported, kPickle, name_,
               ": values nested deeper than ", kMaxDepth);
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
      case ItemKind::tensor: return tensor(node);
      case ItemKind::storage:
        WEFT_THROW(Unsupported, kPickle, name_, ": a storage without a tensor");
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
      const bool text = key.kind == ItemKind::text || key.kind == ItemKind::bytes;
      WEFT_CHECK(!text || graph_.of(key).text.size() <= kMaxKeyBytes, Unsupported, kPickle, name_,
                 ": a key of more than ", kMaxKeyBytes, " bytes");
      // The error of a value says where it is: in "layer.weight", "model".
      const auto place = [&] { return text ? detail::shown(graph_.of(key).text) : "a dict"; };
      entries.emplace_back(convert(key, depth + 1),
                           within(place, [&] { return convert(node.items[i + 1], depth + 1); }));
    }
    return PickleValue::ordered_dict(std::move(entries), convert(node.attributes, depth + 1));
  }

  PickleValue tensor(const detail::PickleNode& node) {
    const detail::PickleNode& storage = graph_.of(node.items[0]);
    const Storages::Loaded& loaded =
        storages_.load(graph_.of(storage.items[0]).text, graph_.of(storage.items[1]).text,
                       storage.items[2].integer);
    const Dims shape = dims(graph_.of(node.items[2])), strides = dims(graph_.of(node.items[3]));
    try {
      return as_strided(loaded.memory, loaded.dtype, shape, strides, node.items[1].integer);
    } catch (const Error& error) {
      WEFT_THROW(Io, kPickle, name_, ": a tensor of shape ", shape, ": ", error.what());
    }
  }

  Dims dims(const detail::PickleNode& tuple) const {
    WEFT_CHECK(tuple.items.size() <= kMaxDims, Unsupported, kPickle, name_, ": a tensor with ",
               tuple.items.size(), " dimensions; weft has at most ", kMaxDims);
    Dims all;
    for (const PickleItem& item : tuple.items) {
      WEFT_CHECK(item.kind == ItemKind::integer, Io, kPickle, name_,
                 ": a tensor's shape or strides are no integers");
      all.push_back(item.integer);
    }
    return all;
  }

  const PickleGraph& graph_;
  Storages& storages_;
  const std::string& name_;
  // A container that is used twice is converted once. Its height counts at each place.
  struct Done {
    std::optional<PickleValue> value;
    int height = 0;
  };
  std::vector<Done> done_;
};

PickleValue load(const Source& source, const PickleOptions& options, const std::string& name) {
  Span span("io", "load_pickle");
  const Archive archive(source, name);
  const PickleGraph graph = detail::unpickle(archive.pickle(), name);
  Storages storages(archive, options.device, name);
  return Converter(graph, storages, name).convert();
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
