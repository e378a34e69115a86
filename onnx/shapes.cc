#include <algorithm>
#include <limits>

#include "weft/onnx/operation.h"

namespace weft::onnx {
namespace {

constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

Names reshape(Operation& o) { return {o.reshape(o.in(), o.operand(0), o.result())}; }

// clone, contiguous, detach, to: the same value, perhaps in another dtype.
Names copy(Operation& o) { return {o.in()}; }

Names permute(Operation& o) {
  const Ints& inverse = o.ints("inverse");
  Ints order(inverse.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[static_cast<std::size_t>(inverse[i])] = static_cast<std::int64_t>(i);
  }
  return {o.node("Transpose", {o.in()}, {{"perm", order}})};
}

std::string sliced(Operation& o, std::int64_t dim, std::int64_t start, std::int64_t end,
                   std::int64_t step) {
  return o.node("Slice", {o.in(), o.ints_constant({start}), o.ints_constant({end}),
                          o.ints_constant({dim}), o.ints_constant({step})});
}

Names slice(Operation& o) {
  const Ints& at = o.ints("slice");
  const std::string y = sliced(o, at[0], at[1], o.end(at[0]), at[2]);
  if (o.result().dim() == o.operand(0).dim()) return {y};
  return {o.node("Squeeze", {y, o.ints_constant({at[0]})})};  // select
}

Names expand(Operation& o) { return {o.expand(o.in(), o.result())}; }

Names split(Operation& o) {
  const Ints& sizes = o.ints("sizes");
  return o.nodes("Split", {o.in(), o.ints_constant(sizes)}, {{"axis", o.integer("dim")}},
                 static_cast<int>(sizes.size()));
}

Names cat(Operation& o) {
  Names parts;
  for (std::size_t i = 0; i < o.operands(); ++i) {
    const Value& x = o.operand(i);
    // cat leaves out empty tensors of any shape.
    if (x.dim() == o.result().dim() || numel(x.shape) > 0) parts.push_back(o.in(i));
  }
  return {o.node("Concat", parts, {{"axis", o.integer("dim")}})};
}

Names stack(Operation& o) {
  const std::string dim = o.ints_constant({o.integer("dim")});
  Names parts;
  for (std::size_t i = 0; i < o.operands(); ++i) {
    parts.push_back(o.node("Unsqueeze", {o.in(i), dim}));
  }
  return {o.node("Concat", parts, {{"axis", o.integer("dim")}})};
}

Names pad(Operation& o) {
  const Ints& of_all = o.ints("pads");  // for each dimension the number before and after
  Ints pads;
  for (const std::size_t side : {0u, 1u}) {
    for (std::size_t i = side; i < of_all.size(); i += 2) pads.push_back(of_all[i]);
  }
  return {o.node("Pad", {o.in(), o.ints_constant(pads), o.constant(o.number("value"))})};
}

Names flip(Operation& o) {
  const Ints& dims = o.ints("dims");
  const auto all = [&](std::int64_t value) { return o.ints_constant(Ints(dims.size(), value)); };
  return {o.node("Slice", {o.in(), all(-1), all(-kLast), o.ints_constant(dims), all(-1)})};
}

Names roll(Operation& o) {
  const std::int64_t dim = o.integer("dim");
  std::int64_t shift = o.integer("shift");
  const Value& x = o.operand(0);
  const int at = static_cast<int>(dim);
  if (x.shape[at] == x.other[at]) {
    shift %= std::max<std::int64_t>(x.shape[at], 1);
  } else if (shift < -1 || shift > 1) {
    o.refuse("by more than one along the batch, it depends on the batch's size");
  }
  if (shift == 0) return {o.in()};
  return {o.node("Concat", {sliced(o, dim, -shift, kLast, 1), sliced(o, dim, 0, -shift, 1)},
                 {{"axis", dim}})};
}

Names index_select(Operation& o) {
  return {o.node("Gather", {o.in(), o.tensor("index").name}, {{"axis", o.integer("dim")}})};
}
Names gather(Operation& o) {
  return {o.node("GatherElements", {o.in(), o.tensor("index").name}, {{"axis", o.integer("dim")}})};
}
Names embedding(Operation& o) { return {o.node("Gather", {o.in(), o.tensor("index").name})}; }

}  // namespace

const Rules& shape_rules() {
  static const Rules& rules = *new Rules{
      {"reshape", reshape},
      {"flatten", reshape},
      {"unflatten", reshape},
      {"squeeze", reshape},
      {"unsqueeze", reshape},
      {"view", reshape},
      {"detach", copy},
      {"clone", copy},
      {"contiguous", copy},
      {"to", copy},
      {"permute", permute},
      {"transpose", permute},
      {"slice", slice},
      {"narrow", slice},
      {"select", slice},
      {"expand", expand},
      {"split", split},
      {"chunk", split},
      {"cat", cat},
      {"stack", stack},
      {"pad", pad},
      {"flip", flip},
      {"roll", roll},
      {"gather", gather},
      {"index_select", index_select},
      {"embedding", embedding},
  };
  return rules;
}

}  // namespace weft::onnx
