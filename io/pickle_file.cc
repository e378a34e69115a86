#include "weft/io/pickle_file.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/io/half.h"
#include "weft/io/shown.h"
#include "weft/io/zip.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::io::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "the data are little-endian");

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
    std::vector<ZipRecord> records = read_zip_directory(source, kPickle, name);
    const std::size_t slash = records.empty() ? std::string::npos : records[0].name.find('/');
    WEFT_CHECK(slash != std::string::npos, Io, kPickle, name_,
               ": a zip archive without folders: torch.save has not written it");
    root_ = records[0].name.substr(0, slash + 1);  // as PyTorch finds it
    for (ZipRecord& r : records) {
      std::string key = r.name;
      records_.emplace(std::move(key), std::move(r));
    }
    WEFT_CHECK(!find("constants.pkl"), Unsupported, kPickle, name_,
               ": a TorchScript program, not values; save model.state_dict() with torch.save");
    for (const char* needed : {"data.pkl", "version"})
      WEFT_CHECK(find(needed), Io, kPickle, name_, ": record ", shown(root_ + needed),
                 " is missing: torch.save has not written it");
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
    WEFT_CHECK(!record.encrypted, Unsupported, kPickle, name_, ": record ", shown(record.name),
               " is encrypted");
    WEFT_CHECK(!record.compressed, Unsupported, kPickle, name_, ": record ", shown(record.name),
               " is compressed, which torch.save never does; save it again with torch.save");
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
    std::vector<std::byte> piece(std::min(kPiece, record.bytes));
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < record.bytes; at += piece.size()) {
      piece.resize(std::min(kPiece, record.bytes - at));
      source_.read(record.begin + at, piece);
      crc = crc_of(piece, crc);
      each(at, std::span<const std::byte>(piece));
    }
    WEFT_CHECK(crc == record.crc, Io, kPickle, name_, ": checksum of record ", shown(record.name),
               " does not match: the file is damaged, or was written without checksums "
               "(torch.serialization.set_crc32_options(False)); then, in Python, "
               "torch.save(torch.load(file), file) with set_crc32_options(True) adds them");
  }

  /// The record as memory without a copy, where that is possible. Does not check it.
  intrusive_ptr<Storage> view(const ZipRecord& record, std::size_t alignment, Device device) const {
    if (record.begin % alignment != 0 || record.bytes == 0) return {};
    return source_.view(record.begin, record.bytes, device);
  }

 private:
  void check_start() const {
    std::string start(std::min<std::uint64_t>(source_.size(), kOldPickleStart.size()), '\0');
    source_.read(0, std::as_writable_bytes(std::span(start)));
    WEFT_CHECK(start != kOldPickleStart, Unsupported, kPickle, name_,
               ": PyTorch's format from before 1.6, which is no zip archive; in Python, "
               "torch.save(torch.load(file), file) writes today's");
    WEFT_CHECK(start.starts_with(kZipStart), Io, kPickle, name_,
               ": does not begin like a file of torch.save, which is a zip archive");
  }

  std::string text(const ZipRecord& record) const {
    WEFT_CHECK(record.bytes <= kMaxPickleBytes, Unsupported, kPickle, name_, ": record ",
               shown(record.name), " of ", record.bytes, " bytes, over ", kMaxPickleBytes);
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
                 name_, ": storage ", shown(key), " has two types or sizes");
      return known->second;
    }
    const auto* const found =
        std::ranges::find(kTypes, type.substr(type.rfind('.') + 1), &StorageType::name);
    WEFT_CHECK(found != std::end(kTypes), Unsupported, kPickle, name_, ": weft has no dtype for ",
               type, "; convert the tensor where the file was written");
    const ZipRecord* record = archive_.find("data/" + key);
    WEFT_CHECK(record, Io, kPickle, name_, ": storage ", shown(key), " is missing");
    const std::uint64_t size = found->half ? 2 : size_of(found->dtype);
    WEFT_CHECK(elements >= 0 && record->bytes % size == 0 &&
                   record->bytes / size == static_cast<std::uint64_t>(elements),
               Io, kPickle, name_, ": storage ", shown(key), " claims ", elements, " elements of ",
               size, " bytes, its record has ", record->bytes, " bytes");
    return loaded_
        .emplace(key, Loaded{type, elements, found->dtype, read(*record, *found, elements)})
        .first->second;
  }

 private:
  intrusive_ptr<Storage> read(const ZipRecord& record, const StorageType& type,
                              std::int64_t elements) const {
    const bool boolean = type.dtype == DType::boolean;
    intrusive_ptr<Storage> view;
    if (device_.is_cpu() && !type.half) view = archive_.view(record, size_of(type.dtype), device_);
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
        from_halves(piece, memory + 2 * at);
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
               " in the bools of record ", shown(record.name));
  }

  const Archive& archive_;
  const Device device_;
  const std::string& name_;
  std::unordered_map<std::string, Loaded> loaded_;
};

Dims dims(const PickleNode& tuple, const std::string& name) {
  WEFT_CHECK(tuple.items.size() <= kMaxDims, Unsupported, kPickle, name, ": a tensor with ",
             tuple.items.size(), " dimensions; weft has at most ", kMaxDims);
  Dims all;
  for (const PickleItem& item : tuple.items) {
    WEFT_CHECK(item.kind == PickleItem::Kind::integer, Io, kPickle, name,
               ": a tensor's shape or strides are no integers");
    all.push_back(item.integer);
  }
  return all;
}

}  // namespace

struct PickleFile::Parts {
  Parts(const Source& source, Device device, const std::string& given)
      : name(given),
        archive(source, name),
        graph(unpickle(archive.pickle(), name)),
        storages(archive, device, name) {}

  const std::string name;
  const Archive archive;
  const PickleGraph graph;
  Storages storages;
};

PickleFile::PickleFile(const Source& source, Device device, const std::string& name)
    : parts_(std::make_unique<Parts>(source, device, name)) {}

PickleFile::~PickleFile() = default;

const PickleGraph& PickleFile::graph() const { return parts_->graph; }

Tensor PickleFile::tensor(const PickleItem& item) const {
  const PickleGraph& graph = parts_->graph;
  const std::string& name = parts_->name;
  const PickleNode& node = graph.of(item);
  const PickleNode& storage = graph.of(node.items[0]);
  const Storages::Loaded& loaded = parts_->storages.load(
      graph.of(storage.items[0]).text, graph.of(storage.items[1]).text, storage.items[2].integer);
  const Dims shape = dims(graph.of(node.items[2]), name);
  const Dims strides = dims(graph.of(node.items[3]), name);
  try {
    return as_strided(loaded.memory, loaded.dtype, shape, strides, node.items[1].integer);
  } catch (const Error& error) {
    WEFT_THROW(Io, kPickle, name, ": a tensor of shape ", shape, ": ", error.what());
  }
}

}  // namespace weft::io::detail
