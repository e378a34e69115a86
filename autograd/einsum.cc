#include "weft/autograd/einsum.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "weft/autograd/arithmetic.h"
#include "weft/autograd/internal.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/core/base/error.h"

namespace weft {

using autograd::check_defined;

namespace {

constexpr const char* kOp = "einsum";

// A letter, or a dimension of `...`: kEllipsis is the last one, kEllipsis + 1 the one before it.
using Label = int;
constexpr Label kEllipsis = 256;
using Labels = std::vector<Label>;

bool has(const Labels& labels, Label l) {
  return std::find(labels.begin(), labels.end(), l) != labels.end();
}

std::string name_of(Label l) { return l < kEllipsis ? std::string(1, char(l)) : "..."; }

struct Term {
  Tensor x;
  Labels labels;         // one for each dimension of x
  bool widened = false;  // whether a sum has made it i64

  std::int64_t length(Label l) const {
    return x.shape()[std::find(labels.begin(), labels.end(), l) - labels.begin()];
  }
};

// "ij, jk -> ik" without spaces, in its parts.
struct Equation {
  std::vector<std::string> operands;
  std::string result;
  bool has_result = false;
};

Equation parse(std::string_view text) {
  std::string dense;
  std::copy_if(text.begin(), text.end(), std::back_inserter(dense),
               [](char c) { return c != ' '; });
  Equation parts;
  const std::size_t arrow = dense.find("->");
  parts.has_result = arrow != std::string::npos;
  if (parts.has_result) parts.result = dense.substr(arrow + 2);
  const std::string left = dense.substr(0, arrow);
  for (std::size_t start = 0; start <= left.size();) {
    const std::size_t end = std::min(left.find(',', start), left.size());
    parts.operands.push_back(left.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

// The labels of an operand or of the result, in which `...` stands for so many dimensions.
Labels labels_of(std::string_view text, std::int64_t ellipsis, std::string_view equation) {
  Labels labels;
  bool seen = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i, 3) == "...") {
      WEFT_CHECK(!seen, InvalidArgument, kOp, "'", equation, "' has ... twice in '", text, "'");
      seen = true;
      for (std::int64_t d = ellipsis; d-- > 0;) labels.push_back(kEllipsis + int(d));
      i += 2;
      continue;
    }
    const bool letter = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z');
    WEFT_CHECK(letter, InvalidArgument, kOp, "'", equation, "' has '", text[i],
               "', expected letters, ',', '...' and '->'");
    labels.push_back(text[i]);
  }
  return labels;
}

Term make_term(const Tensor& x, std::size_t i, const std::string& text, std::string_view equation) {
  const bool open = text.find("...") != std::string::npos;
  const auto named = std::ssize(text) - (open ? 3 : 0);
  WEFT_CHECK(open ? named <= x.dim() : named == x.dim(), Shape, kOp, "operand ", i, ": '", text,
             "' names ", named, " dimensions of ", x.shape());
  Term term{x, labels_of(text, x.dim() - named, equation)};
  // A label twice: the diagonal of both, which is a new last dimension.
  for (std::size_t a = 0; a < term.labels.size(); ++a) {
    const Label l = term.labels[a];
    const auto again = std::find(term.labels.begin() + std::ptrdiff_t(a) + 1, term.labels.end(), l);
    if (again == term.labels.end()) continue;
    const auto b = again - term.labels.begin();
    WEFT_CHECK(term.x.shape()[std::int64_t(a)] == term.x.shape()[b], Shape, kOp, "operand ", i,
               ": '", name_of(l), "' is twice in '", text, "', with lengths ",
               term.x.shape()[std::int64_t(a)], " and ", term.x.shape()[b]);
    term.x = term.x.diagonal(0, std::int64_t(a), b);
    term.labels.erase(again);
    term.labels.erase(term.labels.begin() + std::ptrdiff_t(a));
    term.labels.push_back(l);
    --a;  // another label has moved here
  }
  return term;
}

// Leaves out the dimensions of length 1 that others stretch. Throws if lengths do not fit.
void drop_stretched(std::vector<Term>& terms) {
  for (Term& term : terms) {
    for (std::size_t d = 0; d < term.labels.size();) {
      const Label l = term.labels[d];
      const std::int64_t own = term.x.shape()[std::int64_t(d)];
      bool stretched = false;
      for (const Term& other : terms) {
        if (!has(other.labels, l) || other.length(l) == own) continue;
        WEFT_CHECK(own == 1 || other.length(l) == 1, Shape, kOp, "'", name_of(l), "' has lengths ",
                   own, " and ", other.length(l));
        stretched |= own == 1;
      }
      if (!stretched) {
        ++d;
        continue;
      }
      term.x = term.x.squeeze(std::int64_t(d));
      term.labels.erase(term.labels.begin() + std::ptrdiff_t(d));
    }
  }
}

// The sum of x over the dimensions whose labels are not needed.
Term sum_unneeded(Term term, const Labels& needed) {
  Dims dims;
  Labels kept;
  for (std::size_t d = 0; d < term.labels.size(); ++d) {
    if (has(needed, term.labels[d])) {
      kept.push_back(term.labels[d]);
    } else {
      dims.push_back(std::int64_t(d));
    }
  }
  if (dims.empty()) return term;
  Tensor total = sum(term.x, dims);
  const bool widened = term.widened || total.dtype() != term.x.dtype();
  return {std::move(total), std::move(kept), widened};
}

Tensor permuted(const Term& term, const Labels& order) {
  Dims dims;
  for (const Label l : order) {
    dims.push_back(std::find(term.labels.begin(), term.labels.end(), l) - term.labels.begin());
  }
  return term.x.permute(dims);
}

std::int64_t product_of(const Term& term, const Labels& labels) {
  std::int64_t n = 1;
  for (const Label l : labels) n *= term.length(l);
  return n;
}

Labels joined(const Labels& a, const Labels& b, const Labels& c = {}) {
  Labels all = a;
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  return all;
}

// a in the dtype of its product with b, which is i64 if a sum has made b i64.
Term beside(Term a, const Term& b) {
  if (b.widened && !is_floating(a.x.dtype())) a.x = a.x.to(DType::i64);
  return a;
}

// The product of two terms, summed over the labels that both have and that are not needed: one
// batched matmul.
Term contract(const Term& first, const Term& second, const Labels& needed) {
  const Term a = beside(first, second), b = beside(second, first);
  Labels batch, summed, of_a, of_b;
  for (const Label l : a.labels) {
    (!has(b.labels, l) ? of_a : has(needed, l) ? batch : summed).push_back(l);
  }
  for (const Label l : b.labels) {
    if (!has(a.labels, l)) of_b.push_back(l);
  }
  const std::int64_t n = product_of(a, batch), rows = product_of(a, of_a);
  const std::int64_t inner = product_of(a, summed), columns = product_of(b, of_b);
  const Tensor left = permuted(a, joined(batch, of_a, summed)).reshape({n, rows, inner});
  const Tensor right = permuted(b, joined(batch, summed, of_b)).reshape({n, inner, columns});
  const Tensor y = summed.empty() ? mul(left, right) : matmul(left, right);
  Shape shape;
  for (const Label l : joined(batch, of_a)) shape.push_back(a.length(l));
  for (const Label l : of_b) shape.push_back(b.length(l));
  return {y.reshape(shape), joined(batch, of_a, of_b), a.widened || b.widened};
}

// Without ->: `...`, and the letters that occur once.
Labels implicit_result(const std::vector<Labels>& operands, std::int64_t ellipsis) {
  Labels result;
  for (std::int64_t d = ellipsis; d-- > 0;) result.push_back(kEllipsis + int(d));
  for (Label l = 'A'; l <= 'z'; ++l) {
    std::ptrdiff_t times = 0;
    for (const Labels& labels : operands) times += std::count(labels.begin(), labels.end(), l);
    if (times == 1) result.push_back(l);
  }
  return result;
}

void check_result(const Labels& result, const std::vector<Term>& terms, std::string_view equation) {
  for (const Label l : result) {
    WEFT_CHECK(std::count(result.begin(), result.end(), l) == 1, InvalidArgument, kOp, "'",
               equation, "' has '", name_of(l), "' twice in the result");
    const bool known =
        std::any_of(terms.begin(), terms.end(), [l](const Term& t) { return has(t.labels, l); });
    WEFT_CHECK(known, InvalidArgument, kOp, "'", equation, "' has '", name_of(l),
               "' in the result, and in no operand");
  }
}

}  // namespace

Tensor einsum(std::string_view equation, std::span<const Tensor> operands) {
  const Equation parts = parse(equation);
  WEFT_CHECK(!operands.empty() && parts.operands.size() == operands.size(), InvalidArgument, kOp,
             "'", equation, "' has ", parts.operands.size(), " operands, got ", operands.size());
  std::vector<Term> terms;
  std::vector<Labels> written;
  std::int64_t ellipsis = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    check_defined(kOp, "an operand", operands[i]);
    const std::string& text = parts.operands[i];
    terms.push_back(make_term(operands[i], i, text, equation));
    const bool open = text.find("...") != std::string::npos;
    const std::int64_t more = open ? operands[i].dim() - (std::ssize(text) - 3) : 0;
    written.push_back(labels_of(text, more, equation));
    ellipsis = std::max(ellipsis, more);
  }
  const Labels result = parts.has_result ? labels_of(parts.result, ellipsis, equation)
                                         : implicit_result(written, ellipsis);
  check_result(result, terms, equation);
  drop_stretched(terms);
  // Products of matrices are not made for the strides of a diagonal.
  for (std::size_t i = 0; terms.size() > 1 && i < terms.size(); ++i) {
    if (terms[i].labels.size() < written[i].size()) terms[i].x = terms[i].x.contiguous();
  }

  // What comes after term i needs these labels.
  const auto needed_after = [&](std::size_t i) {
    Labels needed = result;
    for (std::size_t j = i + 1; j < terms.size(); ++j) needed = joined(needed, terms[j].labels);
    return needed;
  };
  Term product = sum_unneeded(terms[0], needed_after(0));
  for (std::size_t i = 1; i < terms.size(); ++i) {
    const Labels needed = needed_after(i);
    const Term next = sum_unneeded(terms[i], joined(needed, product.labels));
    product = sum_unneeded(contract(product, next, needed), needed);
  }
  return permuted(product, result);
}

Tensor einsum(std::string_view equation, std::initializer_list<Tensor> operands) {
  return einsum(equation, std::span<const Tensor>(operands.begin(), operands.size()));
}

}  // namespace weft
