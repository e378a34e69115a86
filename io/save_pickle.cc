#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/core/trace/trace.h"
#include "weft/io/pickle.h"
#include "weft/io/shown.h"
#include "weft/io/unpickler.h"
#include "weft/io/utf8.h"
#include "weft/io/zip.h"
#include "weft/tensor/creation.h"
#include "weft/tensor/ops.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "save_pickle";
/// How many values are added to a list or dict at once, as in Python.
constexpr std::size_t kBatch = 1000;
using Kind = PickleValue::Kind;

const char* storage_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return "FloatStorage";
    case DType::f64: return "DoubleStorage";
    case DType::bf16: return "BFloat16Storage";
    case DType::i64: return "LongStorage";
    case DType::i32: return "IntStorage";
    case DType::u8: return "ByteStorage";
    case DType::boolean: return "BoolStorage";
  }
  WEFT_THROW(Internal, kOp, "no storage for ", dtype);
}

/// Identifies a storage that tensors share: the memory, and the type of the elements in it.
using StorageKey = std::pair<const Storage*, DType>;

StorageKey key_of(const Tensor& x) { return {x.storage().get(), x.dtype()}; }

/// Finds the storages and containers that are used more than once.
class Uses {
 public:
  /// Returns how deep containers are nested in `value`, which itself is nested in `depth` others.
  int count(const PickleValue& value, int depth = 0) {
    if (value.is_tensor()) ++storages_[key_of(value.tensor())];
    if (value.identity() == nullptr) return 0;
    Container& container = containers_[value.identity()];
    if (++container.uses == 1) {
      check_depth(depth + 1);
      container.height = 1 + height_of_parts(value, depth + 1);
      container.fixed = value.kind() == Kind::tuple && has_fixed_items(value);
      WEFT_CHECK(value.kind() != Kind::set || has_fixed_items(value), InvalidArgument, kOp,
                 "a set with a list, set or dict in it, which Python's sets cannot have");
    }
    check_depth(depth + container.height);
    return container.height;
  }

  bool is_shared(const Tensor& x) const { return storages_.at(key_of(x)) > 1; }
  bool is_shared(const void* container) const { return containers_.at(container).uses > 1; }

 private:
  struct Container {
    int uses = 0, height = 0;
    bool fixed = false;  // a tuple that has only fixed values; Python can put it into a set
  };

  bool has_fixed_items(const PickleValue& value) const {
    return std::ranges::all_of(value.items(), [&](const PickleValue& one) {
      return one.identity() == nullptr || containers_.at(one.identity()).fixed;
    });
  }

  static void check_depth(int depth) {
    WEFT_CHECK(depth <= detail::kMaxPickleDepth, InvalidArgument, kOp, "values nested deeper than ",
               detail::kMaxPickleDepth);
  }

  int height_of_parts(const PickleValue& value, int depth) {
    int most = 0;
    const auto add = [&](const PickleValue& one) { most = std::max(most, count(one, depth)); };
    if (value.is_dict()) {
      for (const auto& [key, one] : value.entries()) add(one);
      add(value.attributes());
    } else {
      for (const PickleValue& one : value.items()) add(one);
    }
    return most;
  }

  std::map<StorageKey, int> storages_;
  std::unordered_map<const void*, Container> containers_;
};

/// Refuses what exceeds the reader's limits.
void check_readable(const std::string& pickle) {
  try {
    (void)detail::unpickle(pickle, "these values");
  } catch (const Error& error) {
    WEFT_THROW(InvalidArgument, kOp, "load_pickle() would refuse them: ", error.what());
  }
}

/// Writes the pickle, and gathers the storages that it refers to. Its instructions are explained in
/// unpickler.cc, which reads them.
class Pickler {
 public:
  explicit Pickler(const PickleValue& value) {
    uses_.count(value);
    text_ = "\x80\x02";  // protocol 2, torch.save's
    write(value);
    text_ += '.';
    check_readable(text_);
  }

  const std::string& text() const { return text_; }
  /// The storages with all their elements, 1-D, in the order of their numbers.
  const std::vector<Tensor>& storages() const { return storages_; }

 private:
  void write(const PickleValue& value) {
    switch (value.kind()) {
      case Kind::none: text_ += 'N'; break;
      case Kind::boolean: text_ += value.boolean() ? '\x88' : '\x89'; break;
      case Kind::integer: write_integer(value.integer()); break;
      case Kind::real: write_real(value.real()); break;
      case Kind::text: write_text(value.text()); break;
      case Kind::bytes: write_bytes(value.text()); break;
      case Kind::tensor: write_tensor(value.tensor()); break;
      default: write_container(value);
    }
  }

  void write_number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> 8 * i & 0xff);
  }

  void write_integer(std::int64_t value) {
    if (0 <= value && value < 256) {
      text_ += 'K';
      write_number(static_cast<std::uint64_t>(value), 1);
    } else if (std::numeric_limits<std::int32_t>::min() <= value &&
               value <= std::numeric_limits<std::int32_t>::max()) {
      text_ += 'J';
      write_number(static_cast<std::uint64_t>(value), 4);
    } else {
      text_ += "\x8a\x08";
      write_number(static_cast<std::uint64_t>(value), 8);
    }
  }

  void write_real(double value) {
    text_ += 'G';
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int i = 7; i >= 0; --i) text_ += static_cast<char>(bits >> 8 * i & 0xff);
  }

  void write_text(const std::string& text) {
    WEFT_CHECK(detail::is_utf8(text), InvalidArgument, kOp,
               "a text is not UTF-8: ", detail::shown(text));
    WEFT_CHECK(text.size() <= detail::kMaxPickleBytes, InvalidArgument, kOp, "a text of ",
               text.size(), " bytes, over ", detail::kMaxPickleBytes);
    text_ += 'X';
    write_number(text.size(), 4);
    text_ += text;
  }

  /// Protocol 2 has no bytes: they are encoded from a text of characters below 256.
  void write_bytes(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        text += c;
      } else {
        text += static_cast<char>(0xc0 | byte >> 6);
        text += static_cast<char>(0x80 | (byte & 0x3f));
      }
    }
    text_ += "c_codecs\nencode\n";
    write_text(text);
    write_text("latin1");
    text_ += "\x86R";
  }

  void write_container(const PickleValue& value) {
    const auto known = remembered_.find(value.identity());
    if (known != remembered_.end()) {
      text_ += 'j';
      write_number(known->second, 4);
      return;
    }
    if (value.is_dict()) {
      write_dict(value);
    } else if (value.kind() == Kind::tuple) {
      text_ += '(';
      for (const PickleValue& one : value.items()) write(one);
      text_ += 't';
    } else {
      const bool set = value.kind() == Kind::set;
      text_ += set ? "c__builtin__\nset\n]" : "]";
      write_batches(value.items(), 'e', [&](const PickleValue& one) { write(one); });
      if (set) text_ += "\x85R";
    }
    if (uses_.is_shared(value.identity())) {
      const auto number = static_cast<std::uint32_t>(remembered_.size());
      remembered_.emplace(value.identity(), number);
      text_ += 'r';
      write_number(number, 4);
    }
  }

  void write_dict(const PickleValue& dict) {
    const PickleValue& attributes = dict.attributes();
    text_ += attributes.is_none() ? "}" : "ccollections\nOrderedDict\n)R";
    write_batches(dict.entries(), 'u', [&](const auto& entry) {
      write_key(entry.first);
      write(entry.second);
    });
    if (!attributes.is_none()) {
      write(attributes);
      text_ += 'b';
    }
  }

  void write_key(const PickleValue& key) {
    const bool text = key.kind() == Kind::text || key.kind() == Kind::bytes;
    WEFT_CHECK(!text || key.text().size() <= detail::kMaxPickleKeyBytes, InvalidArgument, kOp,
               "a key of ", key.text().size(), " bytes, over ", detail::kMaxPickleKeyBytes);
    write(key);
  }

  /// Adds the values to the list or dict on the reader's stack.
  template <class Values, class Write>
  void write_batches(const Values& values, char add, const Write& write_one) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % kBatch == 0) text_ += '(';
      write_one(values[i]);
      if ((i + 1) % kBatch == 0 || i + 1 == values.size()) text_ += add;
    }
  }

  void write_tensor(const Tensor& x) {
    std::int64_t offset = 0;
    Strides strides;
    text_ += "ctorch._utils\n_rebuild_tensor_v2\n(";
    if (uses_.is_shared(x)) {
      offset = x.offset();
      strides = x.strides();
      auto [number, is_new] = numbers_.emplace(key_of(x), storages_.size());
      if (is_new) {
        const auto all = static_cast<std::int64_t>(x.storage()->bytes() / size_of(x.dtype()));
        storages_.push_back(all_of(x.storage(), x.dtype(), all));
      }
      write_storage(number->second);
    } else {
      strides = contiguous_strides(x.shape());
      storages_.push_back(raw::reshape(x, {x.numel()}));
      write_storage(storages_.size() - 1);
    }
    write_integer(offset);
    write_dims(x.shape());
    write_dims(strides);
    text_ +=
        "\x89"
        "ccollections\nOrderedDict\n)RtR";  // no gradient, no hooks
  }

  static Tensor all_of(const intrusive_ptr<Storage>& storage, DType dtype, std::int64_t elements) {
    if (dtype != DType::boolean) return as_strided(storage, dtype, {elements}, {1});
    // Bytes that no tensor uses may be no bools, which the reader refuses.
    return raw::to(as_strided(storage, DType::u8, {elements}, {1}), dtype);
  }

  void write_storage(std::size_t number) {
    const Tensor& all = storages_[number];
    text_ += '(';
    write_text("storage");
    text_ += weft::detail::concat("ctorch\n", storage_type(all.dtype()), '\n');
    write_text(std::to_string(number));
    write_text("cpu");
    write_integer(all.numel());
    text_ += "tQ";
  }

  void write_dims(const Dims& dims) {
    text_ += '(';
    for (const std::int64_t dim : dims) write_integer(dim);
    text_ += 't';
  }

  Uses uses_;
  std::string text_;
  std::vector<Tensor> storages_;
  std::map<StorageKey, std::size_t> numbers_;
  std::unordered_map<const void*, std::uint32_t> remembered_;
};

}  // namespace

void save_pickle(const std::string& path, const PickleValue& value) {
  Span span("io", "save_pickle");
  const Pickler pickler(value);
  AtomicFile file(path);
  detail::ZipWriter zip(file);
  zip.add("archive/data.pkl", {std::as_bytes(std::span(pickler.text()))});
  zip.add("archive/byteorder", {std::as_bytes(std::span(std::string_view("little")))});
  for (std::size_t i = 0; i < pickler.storages().size(); ++i) {
    const Tensor& all = pickler.storages()[i];
    const Tensor host = raw::contiguous(all.device().is_cpu() ? all : raw::to(all, Device()));
    zip.add("archive/data/" + std::to_string(i),
            {{static_cast<const std::byte*>(host.raw_data()),
              static_cast<std::size_t>(host.numel()) * size_of(host.dtype())}});
  }
  zip.add("archive/version", {std::as_bytes(std::span(std::string_view("3\n")))});
  zip.finish();
  file.commit();
}

}  // namespace weft::io
