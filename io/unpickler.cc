#include "weft/io/unpickler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <unordered_map>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/io/shown.h"

namespace weft::io::detail {
namespace {

using Kind = PickleItem::Kind;

constexpr std::size_t kMaxNodes = std::size_t{1} << 21;
constexpr std::size_t kMaxItems = std::size_t{1} << 22;  // of all nodes
constexpr std::size_t kMaxStack = std::size_t{1} << 20;
constexpr std::size_t kMaxMemo = 2 * kMaxNodes;
constexpr std::size_t kMaxBytes = std::size_t{256} << 20;  // of all nodes' texts
constexpr std::size_t kMaxGlobalBytes = 256;
constexpr std::size_t kMaxArguments = 16;
constexpr int kProtocol = 2;  // later ones have instructions that are unknown here
constexpr const char* kLong = "an integer of more than 64 bits";

// The globals that are handled specially. All other known names are plain values, such as a dtype.
constexpr std::string_view kOrderedDict = "collections.OrderedDict";
constexpr std::string_view kCounter = "collections.Counter";
constexpr std::string_view kSize = "torch.Size";
constexpr std::string_view kDevice = "torch.device";
constexpr std::string_view kEncode = "_codecs.encode";
constexpr std::string_view kBytearray = "builtins.bytearray";
constexpr std::string_view kSet = "builtins.set";
constexpr std::string_view kParameter = "torch.nn.parameter.Parameter";
constexpr std::string_view kTensor = "torch.Tensor";
constexpr std::string_view kRebuildTensor = "torch._utils._rebuild_tensor";
constexpr std::string_view kRebuildTensor2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuildParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kRebuildWithState = "torch._utils._rebuild_parameter_with_state";
constexpr std::string_view kRebuildFromType = "torch._tensor._rebuild_from_type_v2";

constexpr std::string_view kCallable[] = {
    kOrderedDict,
    kCounter,
    kSize,
    kDevice,
    kEncode,
    kBytearray,
    kSet,
    kParameter,
    kRebuildTensor,
    kRebuildTensor2,
    kRebuildParameter,
    kRebuildWithState,
    kRebuildFromType,
};
constexpr std::string_view kRebuildTensor3 = "torch._utils._rebuild_tensor_v3";
// PyTorch accepts these, and tensor types such as torch.cuda.FloatTensor; weft has nothing that
// they could become.
constexpr std::string_view kMissing[] = {
    "builtins.complex",
    "torch.serialization._get_layout",
    "torch._utils._rebuild_qtensor",
    kRebuildTensor3,
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._utils._rebuild_wrapper_subclass",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
};
// After "torch.", some of them also after "torch.cuda.", and with Tensor for Storage.
constexpr std::string_view kStorages[] = {
    "FloatStorage",         "DoubleStorage",       "HalfStorage",
    "BFloat16Storage",      "LongStorage",         "IntStorage",
    "ShortStorage",         "CharStorage",         "ByteStorage",
    "BoolStorage",          "ComplexFloatStorage", "ComplexDoubleStorage",
    "QInt8Storage",         "QInt32Storage",       "QUInt8Storage",
    "QUInt4x2Storage",      "QUInt2x4Storage",     "storage.UntypedStorage",
    "storage.TypedStorage",
};
constexpr std::string_view kDTypes[] = {
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "complex64",
    "complex128",
    "qint8",
    "qint32",
    "quint8",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "quint4x2",
    "quint2x4",
    "bits8",
    "bits16",
    "bits1x8",
    "bits2x4",
    "bits4x2",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
    // Of quantised tensors
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// Takes `part` from the beginning of the name, if it is there.
bool skip(std::string_view& name, std::string_view part) {
  if (!name.starts_with(part)) return false;
  name.remove_prefix(part.size());
  return true;
}

bool is_value(std::string_view name) {
  if (name == kTensor) return true;
  if (!skip(name, "torch.")) return false;
  if (contains(kDTypes, name)) return true;
  skip(name, "cuda.");
  return contains(kStorages, name);
}

bool is_missing(std::string_view name) {
  constexpr std::string_view kTensorEnd = "Tensor";
  if (contains(kMissing, name)) return true;
  if (!skip(name, "torch.") || !name.ends_with(kTensorEnd)) return false;
  skip(name, "cuda.");
  skip(name, "sparse.");
  name.remove_suffix(kTensorEnd.size());
  return !name.empty() && contains(kStorages, std::string(name) + "Storage");
}

/// Python 2's names, which pickles of protocol 2 have.
std::string modern(std::string_view module) {
  return std::string(module == "__builtin__" ? "builtins" : module);
}

class Unpickler {
 public:
  Unpickler(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  PickleGraph run() {
    check(text_.size() <= kMaxPickleBytes, "a pickle of ", text_.size(), " bytes, over ",
          kMaxPickleBytes);
    while (!step(read_number<std::uint8_t>())) {
    }
    return std::move(graph_);
  }

 private:
  template <class... Parts>
  void check(bool holds, const Parts&... what) const {
    WEFT_CHECK(holds, Io, kPickle, name_, ": ", what..., ", at byte ", at_, " of the pickle");
  }

  // --- The text ---------------------------------------------------------------------------------
  std::string_view read(std::uint64_t bytes) {
    check(bytes <= text_.size() - at_, "the pickle ends inside an instruction of ", bytes,
          " bytes");
    at_ += bytes;
    return text_.substr(at_ - bytes, bytes);
  }

  template <class T>
  T read_number() {
    T value;
    std::memcpy(&value, read(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string_view read_line() {
    const std::size_t end = text_.find('\n', at_);
    check(end != std::string_view::npos && end - at_ <= kMaxGlobalBytes,
          "a global's name does not end");
    const std::string_view line = read(end - at_);
    ++at_;
    return line;
  }

  double read_real() {
    std::array<unsigned char, 8> big;
    std::memcpy(big.data(), read(8).data(), 8);
    std::ranges::reverse(big);
    return std::bit_cast<double>(big);
  }

  /// An integer of up to 255 bytes in two's complement; weft has those of 64 bits.
  PickleItem read_long() {
    const std::string_view digits = read(read_number<std::uint8_t>());
    const bool negative = !digits.empty() && (digits.back() & 0x80) != 0;
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = digits.size(); i-- > 0;) {
      const auto digit = static_cast<unsigned char>(digits[i]);
      if (i >= 8 && digit != (negative ? 0xff : 0)) return unknown(kLong);
      value = value << 8 | digit;
    }
    const auto number = static_cast<std::int64_t>(value);
    return (number < 0) == negative ? integer(number) : unknown(kLong);
  }

  // --- The stack --------------------------------------------------------------------------------
  static PickleItem integer(std::int64_t value) {
    PickleItem item{Kind::integer};
    item.integer = value;
    return item;
  }

  static PickleItem boolean(bool value) {
    PickleItem item{Kind::boolean};
    item.boolean = value;
    return item;
  }

  static PickleItem real(double value) {
    PickleItem item{Kind::real};
    item.real = value;
    return item;
  }

  PickleItem unknown(std::string why) { return make(Kind::unknown, {}, std::move(why)); }

  void count(std::size_t items, std::size_t bytes) {
    items_ += items;
    WEFT_CHECK(items_ <= kMaxItems, Unsupported, kPickle, name_, ": more than ", kMaxItems,
               " values in lists, tuples, sets and dicts");
    bytes_ += bytes;
    WEFT_CHECK(bytes_ <= kMaxBytes, Unsupported, kPickle, name_, ": texts of more than ", kMaxBytes,
               " bytes");
  }

  PickleItem make(Kind kind, std::vector<PickleItem> items = {}, std::string text = {}) {
    WEFT_CHECK(graph_.nodes.size() < kMaxNodes, Unsupported, kPickle, name_, ": more than ",
               kMaxNodes, " values");
    count(items.size(), text.size());
    PickleItem item{kind};
    item.node = static_cast<std::uint32_t>(graph_.nodes.size());
    graph_.nodes.push_back({std::move(text), std::move(items), {}});
    return item;
  }

  PickleNode& node(const PickleItem& item) { return graph_.nodes[item.node]; }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }

  void push(const PickleItem& item) {
    WEFT_CHECK(stack_.size() < kMaxStack, Unsupported, kPickle, name_, ": more than ", kMaxStack,
               " values in one list");
    stack_.push_back(item);
  }

  PickleItem& top() {
    check(stack_.size() > bottom(), "an instruction finds no value on the stack");
    return stack_.back();
  }

  PickleItem pop() {
    const PickleItem item = top();
    stack_.pop_back();
    return item;
  }

  PickleItem pop(Kind kind, const char* what) {
    const PickleItem item = pop();
    check(item.kind == kind, what, " has type ", to_string(item.kind), ", not ", to_string(kind));
    return item;
  }

  std::vector<PickleItem> pop_last(std::size_t count) {
    check(stack_.size() - bottom() >= count, "a tuple of ", count, " finds fewer values");
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<PickleItem> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    return items;
  }

  std::vector<PickleItem> pop_to_mark() {
    check(!marks_.empty(), "an instruction finds no mark on the stack");
    std::vector<PickleItem> items = pop_last(stack_.size() - marks_.back());
    marks_.pop_back();
    return items;
  }

  // --- The instructions -------------------------------------------------------------------------
  /// Returns whether it was the last one.
  bool step(std::uint8_t code) {
    switch (code) {
      case 0x80: protocol_ = read_number<std::uint8_t>(); break;
      case '.': return stop();
      // Numbers and texts
      case 'N': push({}); break;
      case 0x88: push(boolean(true)); break;
      case 0x89: push(boolean(false)); break;
      case 'J': push(integer(read_number<std::int32_t>())); break;
      case 'K': push(integer(read_number<std::uint8_t>())); break;
      case 'M': push(integer(read_number<std::uint16_t>())); break;
      case 0x8a: push(read_long()); break;
      case 'G': push(real(read_real())); break;
      case 'X': push(text(read_number<std::uint32_t>(), Kind::text)); break;
      // Python 2's str
      case 'U': push(text(read_number<std::uint8_t>(), Kind::text)); break;
      // Lists, tuples, sets, dicts
      case ']': push(make(Kind::list)); break;
      case ')': push(make(Kind::tuple)); break;
      case '}': push(make(Kind::dict)); break;
      case 0x8f: push(make(Kind::set)); break;
      case '(': mark(); break;
      case 't': push(make(Kind::tuple, pop_to_mark())); break;
      case 0x85: push(make(Kind::tuple, pop_last(1))); break;
      case 0x86: push(make(Kind::tuple, pop_last(2))); break;
      case 0x87: push(make(Kind::tuple, pop_last(3))); break;
      case 'a': append(Kind::list, pop_last(1)); break;
      case 'e': append(Kind::list, pop_to_mark()); break;
      case 's': append(Kind::dict, pop_last(2)); break;
      case 'u': append(Kind::dict, pop_to_mark()); break;
      // The memo
      case 'q': put(read_number<std::uint8_t>()); break;
      case 'r': put(read_number<std::uint32_t>()); break;
      case 'h': get(read_number<std::uint8_t>()); break;
      case 'j': get(read_number<std::uint32_t>()); break;
      // Globals
      case 'c': global(); break;
      case 'R':
      case 0x81: reduce(); break;  // NEWOBJ: the type in place of the function
      case 'b': build(); break;
      case 'Q': storage(); break;
      default:
        WEFT_CHECK(protocol_ <= kProtocol, Unsupported, kPickle, name_, ": pickle protocol ",
                   protocol_, "; save with ", kProtocol, ", torch.save's default");
        WEFT_THROW(Unsupported, kPickle, name_, ": instruction ", static_cast<int>(code),
                   " of the pickle, at byte ", at_ - 1,
                   ", is not one that torch.load(weights_only=True) accepts");
    }
    return false;
  }

  bool stop() {
    graph_.root = pop();
    check(stack_.empty() && marks_.empty(), "values are left over at the end");
    return true;
  }

  PickleItem text(std::uint64_t bytes, Kind kind) {
    return make(kind, {}, std::string(read(bytes)));
  }

  void mark() {
    WEFT_CHECK(marks_.size() < kMaxStack, Unsupported, kPickle, name_, ": too many marks");
    marks_.push_back(stack_.size());
  }

  void append(Kind kind, std::vector<PickleItem> items) {
    const PickleItem target = top();
    check(target.kind == kind, "items are added to a ", to_string(target.kind), ", not a ",
          to_string(kind));
    check(kind == Kind::list || items.size() % 2 == 0, "a key without a value");
    count(items.size(), 0);
    std::vector<PickleItem>& all = node(target).items;
    all.insert(all.end(), items.begin(), items.end());
  }

  void put(std::uint32_t number) {
    WEFT_CHECK(memo_.size() < kMaxMemo, Unsupported, kPickle, name_, ": more than ", kMaxMemo,
               " remembered values");
    memo_.insert_or_assign(number, top());
  }

  void get(std::uint32_t number) {
    const auto found = memo_.find(number);
    check(found != memo_.end(), "value ", number, " is used before it is remembered");
    push(found->second);
  }

  void global() {
    const std::string module = modern(read_line());
    const std::string name = module + '.' + std::string(read_line());
    if (is_missing(name)) {
      push(unknown(name == kRebuildTensor3
                       ? "a tensor of a dtype that weft lacks (uint16, uint32, uint64, float8 "
                         "...); convert it where the file was written"
                       : "weft has nothing for " + name + "; leave it out when the file is saved"));
      return;
    }
    WEFT_CHECK(contains(kCallable, name) || is_value(name), Unsupported, kPickle, name_,
               ": the global ", shown(name),
               " is none that a file of weights needs; nothing of it was run. Where the file was "
               "made, save model.state_dict() in place of the object");
    push(make(Kind::global, {}, name));
  }

  /// Pops arguments and what is to be called with them; pushes the result.
  void reduce() {
    const PickleItem arguments = pop(Kind::tuple, "an argument list");
    const PickleItem function = pop();
    if (function.kind == Kind::unknown) return push(function);
    check(function.kind == Kind::global, "what is called has type ", to_string(function.kind));
    push(call(function, arguments));
  }

  /// What is made of an unknown value is unknown.
  PickleItem call(const PickleItem& function, const PickleItem& arguments) {
    check(node(arguments).items.size() <= kMaxArguments, "too many arguments");
    const auto odd = std::ranges::find(node(arguments).items, Kind::unknown, &PickleItem::kind);
    if (odd != node(arguments).items.end()) return *odd;
    return call(node(function).text, node(arguments).items);
  }

  // Copies: make() moves the nodes.
  PickleItem call(const std::string function, const std::vector<PickleItem> arguments) {
    const auto has = [&](std::initializer_list<Kind> kinds) {
      return kinds.size() <= arguments.size() &&
             std::ranges::equal(kinds, std::span(arguments).first(kinds.size()), {}, {},
                                &PickleItem::kind);
    };
    const auto needs = [&](std::initializer_list<Kind> kinds) {
      check(has(kinds), function, " with other arguments than PyTorch's");
    };
    if (function == kOrderedDict || function == kCounter) return new_dict(arguments);
    if (function == kSet) {
      needs({Kind::list});
      return make(Kind::set, node(arguments[0]).items);
    }
    if (function == kSize) {
      needs({Kind::tuple});
      return arguments[0];
    }
    if (function == kEncode || function == kBytearray) {
      if (arguments.empty()) return make(Kind::bytes);
      if (has({Kind::bytes})) return arguments[0];
      needs({Kind::text});
      return make(Kind::bytes, {}, latin1(node(arguments[0]).text));
    }
    if (function == kDevice) {
      needs({Kind::text});
      std::string text = node(arguments[0]).text;
      if (has({Kind::text, Kind::integer})) text += ':' + std::to_string(arguments[1].integer);
      return make(Kind::text, {}, text);
    }
    if (function == kRebuildTensor || function == kRebuildTensor2) {
      needs({Kind::storage, Kind::integer, Kind::tuple, Kind::tuple});
      if (arguments.size() > 6 && is_marked(arguments[6])) return unknown(why_marked(arguments[6]));
      return make(Kind::tensor, {arguments.begin(), arguments.begin() + 4});
    }
    if (function == kRebuildParameter || function == kRebuildWithState || function == kParameter) {
      needs({Kind::tensor});
      return arguments[0];
    }
    if (function == kRebuildFromType) {  // function, type, arguments, attributes
      needs({Kind::global, Kind::global, Kind::tuple});
      const std::string type = node(arguments[1]).text;
      check(node(arguments[0]).text != kRebuildFromType, function, " of itself");
      WEFT_CHECK(type == kTensor || type == kParameter, Unsupported, kPickle, name_,
                 ": weft has no tensors of type ", type);
      return call(arguments[0], arguments[2]);
    }
    WEFT_THROW(Io, kPickle, name_, ": ", function, " is called, but is no function");
  }

  /// Whether a tensor's `metadata` marks it: {"neg": True} if its elements count negated, likewise
  /// "conj".
  bool is_marked(const PickleItem& metadata) {
    if (metadata.kind == Kind::none) return false;
    return metadata.kind != Kind::dict || !node(metadata).items.empty();
  }

  std::string why_marked(const PickleItem& metadata) {
    std::string mark;
    if (metadata.kind == Kind::dict && node(metadata).items[0].kind == Kind::text)
      mark = " as " + shown(node(node(metadata).items[0]).text);
    return "a tensor that is marked" + mark + "; save x.resolve_conj().resolve_neg() in its place";
  }

  /// An OrderedDict is made of nothing or of pairs, a Counter of nothing or of a dict.
  PickleItem new_dict(const std::vector<PickleItem>& arguments) {
    if (arguments.empty()) return make(Kind::dict);
    check(arguments.size() == 1, "a dict is made of ", arguments.size(), " arguments");
    std::vector<PickleItem> items;
    if (arguments[0].kind == Kind::dict) {
      items = node(arguments[0]).items;
    } else {
      check(arguments[0].kind == Kind::list, "a dict is made of a ", to_string(arguments[0].kind));
      for (const PickleItem& pair : node(arguments[0]).items) {
        check((pair.kind == Kind::list || pair.kind == Kind::tuple) && node(pair).items.size() == 2,
              "a dict is made of something else than pairs");
        items.insert(items.end(), node(pair).items.begin(), node(pair).items.end());
      }
    }
    return make(Kind::dict, std::move(items));
  }

  /// The bytes that protocol 2 writes as a text of characters below 256.
  std::string latin1(const std::string& text) const {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto first = static_cast<unsigned char>(text[i]);
      if (first < 0x80) {
        bytes += text[i];
        continue;
      }
      check((first == 0xc2 || first == 0xc3) && i + 1 < text.size(),
            "bytes with a character above 255");
      bytes += static_cast<char>((first & 3) << 6 | (text[++i] & 0x3f));
    }
    return bytes;
  }

  /// Gives an OrderedDict its attributes (_metadata). Those of anything else are not weft's.
  void build() {
    const PickleItem state = pop();
    const PickleItem& target = top();
    if (target.kind == Kind::unknown) return;
    WEFT_CHECK(target.kind == Kind::dict && state.kind == Kind::dict, Unsupported, kPickle, name_,
               ": attributes of a ", to_string(target.kind), ", at byte ", at_,
               " of the pickle; only an OrderedDict may have some");
    node(target).attributes = state;
  }

  /// ("storage", type, key, device, elements)
  void storage() {
    const PickleItem id = pop(Kind::tuple, "the name of a storage");
    const std::vector<PickleItem> parts = node(id).items;
    constexpr Kind kKinds[] = {Kind::text, Kind::global, Kind::text, Kind::text, Kind::integer};
    check(std::ranges::equal(parts, kKinds, {}, &PickleItem::kind) &&
              node(parts[0]).text == "storage",
          "a reference to something else than a storage");
    push(make(Kind::storage, {parts[1], parts[2], parts[4]}));
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  int protocol_ = kProtocol;
  std::size_t items_ = 0;
  std::size_t bytes_ = 0;
  PickleGraph graph_;
  std::vector<PickleItem> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, PickleItem> memo_;
};

}  // namespace

PickleGraph unpickle(std::string_view text, const std::string& name) {
  return Unpickler(text, name).run();
}

const char* to_string(Kind kind) {
  constexpr const char* kNames[] = {"None",   "bool",    "int",    "float", "str",
                                    "bytes",  "list",    "tuple",  "set",   "dict",
                                    "global", "storage", "tensor", "other"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace weft::io::detail
