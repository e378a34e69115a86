// Judges exercise 13, and has typical wrong solutions of it.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weft/learn/13_parallel_linear/reference/reference.h"
#include "weft/learn/13_parallel_linear/solution.h"
#include "weft/learn/judge/lab.h"
#include "weft/learn/judge/ranks.h"
#include "weft/tensor/creation.h"

namespace weft::learn {
namespace {

using Ranks = parallel::Collectives;
using Layer = Tensor (*)(const Ranks& ranks, const Tensor& x, const Tensor& weight,
                         const Tensor& bias);
struct Both {
  Layer column, row;
};

constexpr std::int64_t kRows = 5, kIn = 6, kHidden = 12, kOut = 4;

// Some numbers between -1 and 1, the same on every rank.
Tensor numbers(const Shape& shape, int which) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < numel(shape); ++i) {
    values.push_back(std::sin(1.7 * static_cast<double>(i) + which));
  }
  return from_vector(values, shape, DType::f64);
}

// x, the two layers' weights and biases, or the parts of a rank.
struct Net {
  Tensor x = numbers({kRows, kIn}, 1), w1 = numbers({kHidden, kIn}, 2), b1 = numbers({kHidden}, 3),
         w2 = numbers({kOut, kHidden}, 4), b2 = numbers({kOut}, 5);

  void cut(int rank, int n) {
    const std::int64_t part = kHidden / n;
    w1 = w1.narrow(0, rank * part, part).clone();
    b1 = b1.narrow(0, rank * part, part).clone();
    w2 = w2.narrow(1, rank * part, part).clone();
  }
  void require_gradients() {
    for (const Tensor* t : {&x, &w1, &b1, &w2, &b2}) t->set_requires_grad();
  }
};

// Compares got with the expected numbers; `what` names it.
void same(const Tensor& got, const Tensor& expected, int rank, int n, const std::string& what,
          const char* hint) {
  require(got.defined(), "rank ", rank, ": ", what, " is missing");
  require(got.shape() == expected.shape(), "rank ", rank, ": ", what, " has shape ",
          to_string(got.shape()), ", expected ", to_string(expected.shape()), ": ", hint);
  const std::vector<double> a = got.detach().to_vector<double>(),
                            b = expected.detach().to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    // Sums of some dozen numbers of about 1 in f64, in another order.
    if (std::abs(a[i] - b[i]) <= 1e-12 * (1 + std::abs(b[i]))) continue;
    const bool times_n = n > 1 && std::abs(a[i] - n * b[i]) <= 1e-12 * (1 + std::abs(n * b[i]));
    throw Wrong(detail::concat(
        "rank ", rank, ": ", what, " is ", a[i], " at number ", i, ", without cutting ", b[i],
        times_n ? detail::concat(", so it is ", n, " times too large") : "", ": ", hint));
  }
}

// The same of a tensor's gradient.
void same_gradient(const Tensor& of, const Tensor& expected, int rank, int n,
                   const std::string& name, const char* hint) {
  const std::string what = "the gradient of " + name;
  require(of.grad().defined(), "rank ", rank, ": ", what,
          " is missing: is an operation on its way off the tape, such as raw:: or detach()?");
  same(of.grad(), expected, rank, n, what, hint);
}

// What each rank has sent.
std::vector<Traffic> judge_ranks(Both both, int n) {
  Net whole;
  whole.require_gradients();
  const Tensor h = linear(whole.x, whole.w1, whole.b1), y = linear(tanh(h), whole.w2, whole.b2);
  (y * y).sum().backward();
  return on_groups(n, [&](comm::ProcessGroup& group) {
    const int rank = group.rank();
    const std::shared_ptr<comm::ProcessGroup> shared(std::shared_ptr<void>(), &group);
    const Ranks ranks(shared);
    Net net, expected;
    net.cut(rank, n);
    net.require_gradients();
    const Tensor hidden = both.column(ranks, net.x, net.w1, net.b1);
    const std::int64_t part = kHidden / n;
    same(hidden, h.detach().narrow(1, rank * part, part), rank, n, "column_parallel's result",
         "each rank computes its part of the outputs, of the whole x");
    const Tensor out = both.row(ranks, tanh(hidden), net.w2, net.b2);
    same(out, y, rank, n, "row_parallel's result",
         "each rank's product is a part of the sum over the inputs; the bias belongs to the sum, "
         "once");
    (out * out).sum().backward();
    // The parts of the whole gradients.
    expected.w1 = whole.w1.grad(), expected.b1 = whole.b1.grad(), expected.w2 = whole.w2.grad();
    expected.cut(rank, n);
    same_gradient(
        net.b2, whole.b2.grad(), rank, n, "row_parallel's bias",
        "all ranks compute the same loss, and it counts once: add the bias after the sum");
    same_gradient(
        net.w2, expected.w2, rank, n, "row_parallel's weight",
        "the loss counts once, though all ranks compute it: backward of this sum passes the "
        "gradient on as it is (reduce_from), where all_reduce's adds it up");
    same_gradient(
        net.b1, expected.b1, rank, n, "column_parallel's bias",
        "what row_parallel gives its x in backward should be the rank's own part, as it is");
    same_gradient(
        net.w1, expected.w1, rank, n, "column_parallel's weight",
        "what row_parallel gives its x in backward should be the rank's own part, as it is");
    same_gradient(
        net.x, whole.x.grad(), rank, n, "column_parallel's x",
        "x goes to all ranks, so its gradient is the sum of what comes back from all of them: "
        "which operation of Collectives does nothing in the forward, and adds up in backward?");
  });
}

std::string judge(Both both) {
  for (const int n : {2, 1, 3, 4}) {
    begin_case(detail::concat(n, n == 1 ? " rank" : " ranks"));
    const std::vector<Traffic> enough =
        judge_ranks({reference::column_parallel, reference::row_parallel}, n);
    const std::vector<Traffic> sent = judge_ranks(both, n);
    for (int r = 0; r < n; ++r) {
      require(sent[r].bytes() <= enough[r].bytes(), "rank ", r, " sent ",
              bytes_of(sent[r].bytes(), enough[r].bytes()),
              ": the layers send more than one all-reduce each way: is a weight or x gathered?");
    }
  }
  return "results and gradients of two layers on 1 to 4 ranks are those of one process, in f64 to "
         "1e-12; one all-reduce in the forward and one in backward";
}

// --- Wrong ones ----------------------------------------------------------------------------------

Tensor plain(const Ranks&, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear(x, weight, bias);
}
Tensor gathers(const Ranks& ranks, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return ranks.gather_from(linear(ranks.copy_to(x), weight, bias), 1);
}
Tensor off_the_tape(const Ranks&, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return raw::linear(x, weight, bias);
}
// Adds up x itself, which is the same on all ranks.
Tensor sums_x(const Ranks& ranks, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear(ranks.all_reduce(x), weight, bias);
}
Tensor bias_on_each(const Ranks& ranks, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return ranks.reduce_from(linear(x, weight, bias));
}
Tensor no_bias(const Ranks& ranks, const Tensor& x, const Tensor& weight, const Tensor&) {
  return ranks.reduce_from(linear(x, weight, {}));
}
Tensor all_reduces(const Ranks& ranks, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return ranks.all_reduce(linear(x, weight, {})) + bias;
}
Tensor bias_shared(const Ranks& ranks, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return ranks.reduce_from(linear(x, weight, bias / ranks.size()));
}
Tensor copies_too(const Ranks& ranks, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return ranks.reduce_from(linear(ranks.copy_to(x), weight, {})) + bias;
}
// Right numbers, but every rank has the whole layer again, and computes all of it.
Tensor gathers_weights_of_column(const Ranks& ranks, const Tensor& x, const Tensor& weight,
                                 const Tensor& bias) {
  return ranks.split_to(linear(x, ranks.gather_from(weight, 0), ranks.gather_from(bias, 0)), 1);
}
Tensor gathers_weights_of_row(const Ranks& ranks, const Tensor& x, const Tensor& weight,
                              const Tensor& bias) {
  return linear(ranks.gather_from(x, 1), ranks.gather_from(weight, 1), bias);
}

const std::vector<WrongOne<Both>> kWrong = {
    {"no_copy", {plain, reference::row_parallel}, "the gradient of column_parallel's x"},
    {"gathers", {gathers, reference::row_parallel}, "has shape [5,12], expected [5,6]"},
    {"off_the_tape", {off_the_tape, reference::row_parallel}, "off the tape, such as raw::"},
    {"sums_x", {sums_x, reference::row_parallel}, "column_parallel's result is"},
    {"no_sum", {reference::column_parallel, plain}, "row_parallel's result is"},
    {"bias_on_each", {reference::column_parallel, bias_on_each}, "the bias belongs to the sum"},
    {"no_bias", {reference::column_parallel, no_bias}, "row_parallel's result is"},
    {"all_reduces",
     {reference::column_parallel, all_reduces},
     "so it is 2 times too large: the loss counts once"},
    {"bias_shared", {reference::column_parallel, bias_shared}, "add the bias after the sum"},
    {"copies_too",
     {reference::column_parallel, copies_too},
     "should be the rank's own part, as it is"},
    {"gathers_weights_of_column",
     {gathers_weights_of_column, reference::row_parallel},
     "is a weight or x gathered?"},
    {"gathers_weights_of_row",
     {reference::column_parallel, gathers_weights_of_row},
     "is a weight or x gathered?"},
};

}  // namespace
}  // namespace weft::learn

int main(int argc, char** argv) {
  using namespace weft::learn;
  return run_lab(argc, argv, "13_parallel_linear", judge, Both{column_parallel, row_parallel},
                 Both{reference::column_parallel, reference::row_parallel}, kWrong);
}
