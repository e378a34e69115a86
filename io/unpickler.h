// Reads a pickle as torch.load(weights_only=True) does: a program for a small stack machine, of
// which only the instructions that build data are known. Nothing in the file is ever called: a
// global name is compared with a list, and what PyTorch would compute from it is built here.
// The instructions and names are those of PyTorch's torch/_weights_only_unpickler.py; what each
// instruction does is described in Python's Lib/pickletools.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::io::detail {

inline constexpr const char* kPickle = "load_pickle";
/// How files of torch.save began before PyTorch 1.6: a pickle of a magic number.
inline constexpr std::string_view kOldPickleStart =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
// Larger ones are neither read nor written.
inline constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{64} << 20;
inline constexpr std::size_t kMaxPickleKeyBytes = 4096;
inline constexpr int kMaxPickleDepth = 100;  // for nested lists, tuples, sets and dicts

/// A value of the machine: a number, or the number of a node.
struct PickleItem {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    real,
    text,     // of the node
    bytes,    // text of the node
    list,     // items of the node
    tuple,    // likewise
    set,      // likewise
    dict,     // likewise: key, value, key, value ...; attributes: what BUILD added
    global,   // text: "torch.FloatStorage"
    storage,  // items: type (global), key (text), elements (integer)
    tensor,   // items: storage, offset (integer), shape (tuple), strides (tuple)
    unknown,  // text: why weft has no such value
  };
  Kind kind = Kind::none;
  union {
    bool boolean;
    std::int64_t integer = 0;
    double real;
    std::uint32_t node;
  };
};

struct PickleNode {
  std::string text;
  std::vector<PickleItem> items;
  PickleItem attributes;
};

/// Values refer to each other by number: lists and dicts may be shared, and contain themselves.
struct PickleGraph {
  std::vector<PickleNode> nodes;
  PickleItem root;

  const PickleNode& of(const PickleItem& item) const { return nodes[item.node]; }
};

/// Throws Io for a damaged pickle; Unsupported for an instruction or a global that is not in the
/// lists, naming it, for more than 2^21 values, and for more than 2^22 in lists, tuples, sets and
/// dicts, counted in each. A value that PyTorch reads and weft has no type for has the kind
/// unknown. The graph's tensors and storages have items of the kinds said above; numbers in them
/// are unchecked.
PickleGraph unpickle(std::string_view text, const std::string& name);

/// "dict", "int": Python's name.
const char* to_string(PickleItem::Kind kind);

}  // namespace weft::io::detail
