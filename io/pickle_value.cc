#include "weft/io/pickle_value.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <string_view>
#include <unordered_set>

#include "weft/core/base/error.h"
#include "weft/io/shown.h"

namespace weft::io {
namespace {

constexpr const char* kOp = "PickleValue";
using Kind = PickleValue::Kind;

/// A key of a dict, in a form in which keys are equal if they are in Python: 1, 1.0 and True.
struct Key {
  Kind kind;
  std::uint64_t bits = 0;
  std::string_view text = {};
  bool operator==(const Key&) const = default;
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return std::hash<std::string_view>()(key.text) ^ std::hash<std::uint64_t>()(key.bits);
  }
};

Key integer_key(std::int64_t value) { return {Kind::integer, static_cast<std::uint64_t>(value)}; }

Key real_key(double value) {
  const bool whole = -0x1p63 <= value && value < 0x1p63 && value == std::trunc(value);
  if (whole) return integer_key(static_cast<std::int64_t>(value));
  return {Kind::real, std::bit_cast<std::uint64_t>(value)};
}

bool can_be_key(const PickleValue& value) { return value.kind() <= Kind::bytes; }

Key key_of(const PickleValue& value) {
  switch (value.kind()) {
    case Kind::boolean: return integer_key(value.boolean());
    case Kind::integer: return integer_key(value.integer());
    case Kind::real: return real_key(value.real());
    case Kind::text:
    case Kind::bytes: return {value.kind(), 0, value.text()};
    default: return {value.kind()};
  }
}

std::string shown_key(const PickleValue& key) {
  switch (key.kind()) {
    case Kind::boolean: return key.boolean() ? "True" : "False";
    case Kind::integer: return std::to_string(key.integer());
    case Kind::real: return weft::detail::concat(key.real());
    case Kind::text:
    case Kind::bytes: return detail::shown(key.text());
    default: return to_string(key.kind());
  }
}

}  // namespace

const char* to_string(Kind kind) {
  constexpr const char* kNames[] = {"None", "bool",  "int", "float", "str",   "bytes",
                                    "list", "tuple", "set", "dict",  "tensor"};
  return kNames[static_cast<std::size_t>(kind)];
}

PickleValue::PickleValue(std::string text)
    : kind_(Kind::text), value_(std::make_shared<const std::string>(std::move(text))) {}

PickleValue::PickleValue(Tensor tensor) : kind_(Kind::tensor), value_(std::move(tensor)) {
  WEFT_CHECK(std::get<Tensor>(value_).defined(), InvalidArgument, kOp, "an undefined tensor");
}

PickleValue::PickleValue(Kind kind, Items items)
    : kind_(kind), value_(std::make_shared<const Container>(Container{std::move(items), {}, {}})) {}

void PickleValue::throw_too_large(std::uint64_t value) {
  WEFT_THROW(InvalidArgument, kOp, value, " does not fit 64 bits with a sign");
}

PickleValue PickleValue::bytes(std::string bytes) {
  PickleValue value(std::move(bytes));
  value.kind_ = Kind::bytes;
  return value;
}

PickleValue PickleValue::state_dict(const NamedTensors& tensors) {
  Entries entries;
  for (const auto& [name, tensor] : tensors) entries.emplace_back(name, tensor);
  return dict(std::move(entries));
}

PickleValue PickleValue::ordered_dict(Entries entries, PickleValue attributes) {
  std::unordered_set<Key, KeyHash> keys;
  for (const auto& [key, value] : entries) {
    WEFT_CHECK(can_be_key(key), InvalidArgument, kOp, "a key of type ", to_string(key.kind()),
               "; weft's dicts have numbers and texts as keys");
    WEFT_CHECK(keys.insert(key_of(key)).second, InvalidArgument, kOp, "the key ", shown_key(key),
               " is given twice");
  }
  WEFT_CHECK(attributes.is_none() || attributes.is_dict(), InvalidArgument, kOp,
             "attributes are a dict, got ", to_string(attributes.kind()));
  PickleValue value;
  value.kind_ = Kind::dict;
  Container all{{}, std::move(entries), {}};
  if (!attributes.is_none()) all.attributes.push_back(std::move(attributes));
  value.value_ = std::make_shared<const Container>(std::move(all));
  return value;
}

bool PickleValue::boolean() const {
  WEFT_CHECK(kind_ == Kind::boolean, InvalidArgument, kOp, "type ", to_string(kind_), ", not bool");
  return std::get<bool>(value_);
}

std::int64_t PickleValue::integer() const {
  WEFT_CHECK(kind_ == Kind::integer, InvalidArgument, kOp, "type ", to_string(kind_), ", not int");
  return std::get<std::int64_t>(value_);
}

double PickleValue::real() const {
  if (kind_ == Kind::integer) return static_cast<double>(std::get<std::int64_t>(value_));
  WEFT_CHECK(kind_ == Kind::real, InvalidArgument, kOp, "type ", to_string(kind_), ", not float");
  return std::get<double>(value_);
}

const std::string& PickleValue::text() const {
  WEFT_CHECK(kind_ == Kind::text || kind_ == Kind::bytes, InvalidArgument, kOp, "type ",
             to_string(kind_), ", not str");
  return *std::get<std::shared_ptr<const std::string>>(value_);
}

const Tensor& PickleValue::tensor() const {
  WEFT_CHECK(kind_ == Kind::tensor, InvalidArgument, kOp, "type ", to_string(kind_),
             ", not tensor");
  return std::get<Tensor>(value_);
}

const PickleValue::Items& PickleValue::items() const {
  WEFT_CHECK(kind_ == Kind::list || kind_ == Kind::tuple || kind_ == Kind::set, InvalidArgument,
             kOp, "type ", to_string(kind_), ", not list");
  return std::get<std::shared_ptr<const Container>>(value_)->items;
}

const PickleValue::Container& PickleValue::container(Kind kind) const {
  WEFT_CHECK(kind_ == kind, InvalidArgument, kOp, "type ", to_string(kind_), ", not ",
             to_string(kind));
  return *std::get<std::shared_ptr<const Container>>(value_);
}

const PickleValue::Entries& PickleValue::entries() const { return container(Kind::dict).entries; }

const PickleValue& PickleValue::attributes() const {
  static const PickleValue none;
  if (kind_ != Kind::dict) return none;
  const Items& all = container(Kind::dict).attributes;
  return all.empty() ? none : all[0];
}

const PickleValue* PickleValue::find(const PickleValue& key) const {
  const Key wanted = key_of(key);
  for (const auto& [other, value] : entries()) {
    if (key_of(other) == wanted) return &value;
  }
  return nullptr;
}

const PickleValue& PickleValue::at(const PickleValue& key) const {
  if (const PickleValue* found = find(key)) return *found;
  constexpr std::size_t kMost = 5;
  std::string known;
  for (std::size_t i = 0; i < std::min(kMost, entries().size()); ++i)
    known += (known.empty() ? "" : ", ") + shown_key(entries()[i].first);
  if (entries().size() > kMost)
    known += weft::detail::concat(" and ", entries().size() - kMost, " others");
  WEFT_THROW(InvalidArgument, kOp, "no key ", shown_key(key), "; there are ",
             known.empty() ? "none" : known);
}

const void* PickleValue::identity() const {
  const auto* const all = std::get_if<std::shared_ptr<const Container>>(&value_);
  return all ? all->get() : nullptr;
}

}  // namespace weft::io
