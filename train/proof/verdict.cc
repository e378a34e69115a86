#include "weft/train/proof/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>

#include "weft/core/base/error.h"
#include "weft/io/safetensors.h"
#include "weft/train/proof/records.h"

namespace weft::train::proof {
namespace {

using detail::concat;
namespace fs = std::filesystem;

// Bounds relative to a tensor's norm. What f32 loses grows with the steps, so its bound only finds
// what is certainly not rounding; f64 decides.
constexpr double kRounding = 1e-9, kRoundingOfF32 = 1e-3;
// Rounding of the first gradients, which are of equal weights, stays far below this bound. Rounding
// of weights does not: Adam divides a gradient that is all rounding by itself.
constexpr double kGross = 1e-2;
// What a rank loses in one backward stays below this, relative to the norm of its gradient: 250 eps
// of f32. For all ranks together the measure is the norm of the sums of magnitudes, since their
// gradients may cancel.
constexpr double kRoundingOfRank = 3e-5;

template <class Wanted>
std::vector<Record> with_only(const Wanted& wanted, std::vector<Record> records) {
  for (Record& record : records) {
    std::erase_if(record.items, [&](const Item& item) { return !wanted(item); });
  }
  return records;
}

bool is_first_gradient(const Item& item) {
  return item.step == 0 && item.event == 0 && item.kind == "gradient";
}

/// Whether each rank computes from its own batch the same bits as the one process, so that only
/// sums over the ranks may differ. This is not promised for parts, since sums over their tensors
/// run elsewhere, nor for devices of one process.
bool computes_alike(const std::vector<Record>& ranks, const std::vector<Record>& one) {
  const auto same = [&](const char* setting) {
    return ranks[0].run.at(setting) == one[0].run.at(setting);
  };
  const bool parts = std::ranges::any_of(ranks, [](const Record& record) {
    return std::ranges::any_of(record.items, [](const Item& item) { return item.digest.part; });
  });
  return !parts && ranks[0].ranks == ranks[0].batches && same("threads") && same("simd");
}

void check_compared(const Comparison& comparison) {
  std::string why;
  for (const auto& [text, count] : comparison.left_out)
    why += concat("; ", count, " times: ", text);
  WEFT_CHECK(!comparison.compared.empty(), InvalidArgument, "prove",
             "nothing could be compared: the records have ", comparison.steps, " steps", why);
}

/// The tensors of a step by name, from the file that a run with "keep" has written.
class Kept {
 public:
  Kept(const Sides& sides, const std::string& folder, int rank, std::int64_t step) {
    const std::string path =
        sides.path(concat(folder, "/rank-", rank, "-step-", step, ".safetensors"));
    if (!fs::exists(path)) return;
    for (const auto& [name, tensor] : io::load_safetensors(path).tensors) tensors_[name] = tensor;
  }
  /// Undefined if there is no tensor of this name.
  Tensor operator[](const std::string& name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? Tensor() : found->second;
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

/// The elements of the tensor that differs.
std::optional<Elements> kept_elements(const Sides& sides, const std::string& kind,
                                      const Difference& difference) {
  const Item& item = difference.item;
  const Tensor first = Kept(sides, kind + "ranks", difference.rank, item.step)[item.kept_as()];
  const Tensor second = Kept(sides, kind + "one", difference.other_rank, item.step)[item.kept_as()];
  if (!first.defined() || !second.defined() || first.shape() != second.shape()) return {};
  return elements(first, second);
}

/// How far the sides' gradients are apart in f32.
struct OrderCheck {
  double times = 0;  ///< of an element, by what another order may do; above 1: too large for that
  double relative = 0;     ///< of a tensor that has such elements, by the norm of its magnitudes
  double worst_times = 0;  ///< of an element of that tensor
  Difference worst;        ///< that tensor
};

/// Compares the gradients of the first update in which the sides differ, which both have kept. What
/// these are computed from is equal, and so are the ranks' addends. Two sums of n numbers x in f32
/// differ by at most (n - 1) eps sum |x|, whatever the order of each: each is off by half of it (N.
/// Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 2002, section 4.2). An engine
/// may also divide by n after the sum instead of before it, which adds one eps. Nothing if there is
/// no such gradient, for example if all were clipped.
std::optional<OrderCheck> check_order(const Sides& sides, const std::string& kind,
                                      const std::vector<Record>& ranks,
                                      const std::vector<Record>& one, const Difference& first) {
  const auto is_in_update = [&](const Item& item) {
    return item.kind == "gradient" && item.step == first.item.step &&
           item.event == first.item.event;
  };
  const Kept here(sides, kind + "ranks", ranks[0].rank, first.item.step),
      there(sides, kind + "one", one[0].rank, first.item.step);
  std::map<std::string, SumsApart> found;  // by the gradient's key
  double largest = 0;
  for (const Item& item : ranks[0].items) {
    if (!is_in_update(item)) continue;
    const Tensor a = here[item.kept_as()], b = there[item.kept_as()];
    const Tensor magnitudes = there[concat("magnitudes/", item.event, '/', item.name)];
    if (!a.defined() || a.dtype() != DType::f32 || !magnitudes.defined()) continue;
    const SumsApart& apart = found[item.key()] = sums_apart(a, b, magnitudes);
    largest = std::max(largest, apart.norm);
  }
  if (found.empty()) return {};
  OrderCheck result{.worst = first};
  std::string worst;
  const double bound = ranks[0].ranks * static_cast<double>(std::numeric_limits<float>::epsilon());
  for (const auto& [key, apart] : found) {
    const double times = apart.times / bound;
    result.times = std::max(result.times, times);
    const double relative = apart.l2 / std::max(apart.norm, kGross * largest);
    if (times <= 1 || relative <= result.relative) continue;
    result.relative = relative, result.worst_times = times, worst = key;
  }
  const auto is_worst = [&](const Item& item) { return item.key() == worst; };
  if (const auto difference =
          compare(with_only(is_worst, ranks), with_only(is_worst, one), 0).first) {
    result.worst = *difference;
  }
  return result;
}

// "[0,11]"
std::string list(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += concat(text.empty() ? "" : ",", number);
  return "[" + text + "]";
}

bool has(const std::vector<Cause>& causes, Weight weight) {
  return std::ranges::find(causes, weight, &Cause::weight) != causes.end();
}

std::string short_text(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.2g", number);
  return text;
}

// "about 0.0012 apart, 3e-05 of its norm"
std::string far(const Difference& difference) {
  if (std::isinf(difference.absolute)) {
    const auto text = [](const Digest& digest) {
      return digest.missing ? "none" : concat(digest.dtype, ' ', list(digest.shape));
    };
    if (text(difference.item.digest) != text(difference.other)) {
      return concat(text(difference.item.digest), " and ", text(difference.other));
    }
  }
  if (difference.item.digest.not_finite != difference.other.not_finite) {
    return "other elements are NaN or infinite";
  }
  char text[100];
  std::snprintf(text, sizeof text, "about %.2g apart, %.2g of its norm", difference.absolute,
                difference.relative);
  return text;
}

// "step 3, rank 1: the output of 2 (Dropout), call 0"
std::string place(const Difference& difference) {
  return concat("step ", difference.item.step, ", rank ", difference.rank, ": ",
                difference.item.text());
}

std::string counts(const std::map<std::string, std::int64_t>& counts) {
  std::string text;
  for (const char* kind : {"output", "gradient", "weight", "buffer", "loss"}) {
    const auto found = counts.find(kind);
    if (found == counts.end()) continue;
    const std::string plural = std::string(kind) == "loss" ? "es" : "s";
    text += concat(text.empty() ? "" : ", ", found->second, ' ', kind,
                   found->second == 1 ? "" : plural);
  }
  return text.empty() ? "nothing" : text;
}

std::string line_of(const Element& element) {
  const double off = std::abs(element.first - element.second);
  char text[200];
  std::snprintf(text, sizeof text, "  %-12s %.9g %.9g: absolute %.2g, relative %.2g, %.6g ulps\n",
                list(element.place).c_str(), element.first, element.second, off,
                off / std::max(std::abs(element.first), std::abs(element.second)), element.ulps);
  return text;
}

using TwoSides = std::pair<std::vector<Record>, std::vector<Record>>;

TwoSides records_of(const Sides& sides, Sides::Run& run) {
  TwoSides records;
  const auto run_both = [&] {
    records.first = sides.run_side(run, /*alone=*/false);
    records.second = sides.run_side(run, /*alone=*/true);
  };
  try {
    run_both();
  } catch (const Sides::RandomSamples&) {
    run.save_inputs = true;
    run_both();
  }
  const auto& [ranks, one] = records;
  WEFT_CHECK(std::ssize(one) == ranks[0].batches && one[0].steps == ranks[0].steps, InvalidArgument,
             "prove", "the one process has recorded ", one.size(), " batch(es) a step, and ",
             one[0].steps, " steps, the ranks ", ranks[0].batches, " and ", ranks[0].steps);
  return records;
}

}  // namespace

std::string Verdict::text() const {
  std::string text = concat(program, ": ", comparison.steps, " steps, ", sides, ": ",
                            counts(comparison.compared), ": ", word, '\n');
  if (!equal() && first) {
    text += concat("first: ", place(*first), ", differs: ", far(*first), '\n');
  } else if (status() == 1) {
    text += "first: none; both sides compute the same, from what one process would not have\n";
  }
  if (elements && elements->unlike > 0) {
    text += concat("  ", elements->unlike, " of its ", elements->count,
                   " elements differ (ranks, one process); the furthest, then the first:\n");
    for (const Element& element : elements->shown) text += line_of(element);
  }
  for (const Cause& cause : causes) {
    text += concat(cause.weight == Weight::note ? "note: " : "cause: ", cause.text, '\n');
  }
  if (status() == 1 && !has(causes, Weight::mistake)) {
    text +=
        "cause: no cause found; has the program a state of its own, such as a count of calls? The "
        "one process goes through body and loop once for each rank\n";
  }
  for (const auto& [why, count] : comparison.left_out) {
    text += concat("left out: ", count, " times: ", why, '\n');
  }
  if (!records.empty()) text += concat("records: ", records, '\n');
  return text;
}

Verdict verdict_of(const Sides& sides) {
  Verdict verdict{.program = sides.name(), .sides = sides.text()};
  Sides::Run run;
  const auto [ranks, one] = records_of(sides, run);
  const bool f64 = ranks[0].dtype == "f64";
  const bool alike = computes_alike(ranks, one);
  const bool exact = alike && ranks[0].ranks == 2;  // two addends have the same sum in either order
  verdict.comparison = compare(ranks, one, exact ? 0 : f64 ? kRounding : kRoundingOfF32);
  const Comparison& found = verdict.comparison;
  check_compared(found);
  verdict.causes = find_causes(ranks, one, found);
  verdict.first = found.beyond ? found.beyond : found.first;
  const auto judge = [&] {
    verdict.word = has(verdict.causes, Weight::limit) && !has(verdict.causes, Weight::mistake)
                       ? "not comparable"
                       : "differs";
  };
  TwoSides kept_records;
  // Runs both sides up to a step and keeps its tensors. Returns the beginning of their folders'
  // names.
  const auto keep = [&](std::int64_t step) {
    run.kind += "kept-";
    run.kept_step = step;
    run.steps = step + 1;
    std::string kind = run.kind;
    kept_records = records_of(sides, run);
    return kind;
  };
  std::optional<std::string> kept;  // of the step of verdict.first
  if (has(verdict.causes, Weight::mistake) || has(verdict.causes, Weight::limit)) {
    judge();
  } else if (!found.first) {
    verdict.word = "equal to the bit";
  } else if (f64 && !exact && !found.beyond) {
    verdict.word = "equal to rounding";
  } else if (!f64 && sides.has_f64()) {
    // Only f64 tells a sum in another order from a mistake.
    run.kind = "f64-";
    run.f64 = true;
    const auto [precise_ranks, precise_one] = records_of(sides, run);
    const Comparison precise = compare(precise_ranks, precise_one, kRounding);
    verdict.causes = find_causes(precise_ranks, precise_one, precise);
    if (precise.beyond || has(verdict.causes, Weight::mistake)) {
      verdict.first = precise.beyond;
      judge();
    } else {
      run.kind.clear();
      run.f64 = false;
      const bool sums_alone = alike && ranks[0].ranks > 2;  // only these may differ
      const auto only_f32 = [&](const Difference& difference, const std::string& why) {
        verdict.causes.push_back(
            {"only_f32", Weight::mistake,
             concat("in f64 both sides agree, but ", place(difference), " is ", far(difference),
                    " in f32: ", why, ", so something is done in f32 alone")});
        verdict.first = difference;
        verdict.word = "differs";
      };
      const auto gross = compare(with_only(is_first_gradient, ranks),
                                 with_only(is_first_gradient, one), kGross, kGross)
                             .beyond;
      std::optional<OrderCheck> order;
      if (!gross && sums_alone && found.first->item.kind == "gradient") {
        kept = keep(found.first->item.step);
        order = check_order(sides, *kept, ranks, one, *found.first);
      }
      const bool in_order = !order || order->times <= 1;
      if (gross) {
        only_f32(*gross, "no rounding of the first gradients is that large");
      } else if (sums_alone && found.first->item.kind != "gradient") {
        only_f32(*found.first, "all sums over the ranks before it are equal to the bit");
      } else if (!in_order && order->relative > kRoundingOfRank) {
        only_f32(order->worst, concat("an element of it is ", short_text(order->worst_times),
                                      " times as far off as another order of the ranks' addends "
                                      "can make it, and the whole too far for rounding on a rank"));
      } else {
        std::string why = ": the same sums, added up in another order";
        if (!in_order) {
          why =
              concat(": more than another order of the ranks' addends does (",
                     short_text(order->times), " times as much, ", short_text(order->relative),
                     " of a norm), so the ranks' own gradients are rounded otherwise, as those of "
                     "a loss that is divided by the number of ranks; or a mistake is that small");
        } else if (order) {
          why +=
              concat("; apart by at most ", short_text(order->times), " of what an order can do");
        } else if (exact) {
          why += ", although two ranks' sums have no order";
        }
        verdict.causes.push_back({in_order ? "reduction_order" : "rounding_on_ranks",
                                  exact ? Weight::mistake : Weight::note,
                                  concat("f32 differs first in ", place(*found.first), ", ",
                                         far(*found.first), "; in f64 both sides agree, to ",
                                         short_text(precise.worst), " of a tensor's norm", why)});
        verdict.word = exact ? "differs" : "equal to rounding";
        verdict.first = found.first;
      }
    }
  } else {
    judge();
  }
  if (run.save_inputs) {
    verdict.causes.push_back(
        {"random_samples", Weight::note,
         "samples are drawn while they are loaded, as transforms do it, or each rank has its own: "
         "the one process had those of the ranks from files"});
  }
  if (verdict.status() == 1 && verdict.first) {
    if (!kept) kept = keep(verdict.first->item.step);
    verdict.elements = kept_elements(sides, *kept, *verdict.first);
    if (!has(verdict.causes, Weight::mistake) && verdict.first->item.kind == "gradient") {
      const auto lost = lost_micro_batch(kept_records.first, kept_records.second, *verdict.first);
      if (lost) verdict.causes.push_back(*lost);
    }
  }
  return verdict;
}

Verdict against(const std::string& first, const std::string& second) {
  const auto read = [](const std::string& folder) {
    return read_records(fs::is_directory(folder + "/ranks") ? folder + "/ranks" : folder);
  };
  const std::vector<Record> a = read(first), b = read(second);
  WEFT_CHECK(a.size() == b.size(), InvalidArgument, "prove", first, " has records of ", a.size(),
             " rank(s) and ", second, " of ", b.size());
  Verdict verdict{.program = a[0].program,
                  .sides = concat(a.size(), a.size() == 1 ? " rank" : " ranks"),
                  .word = "equal to the bit",
                  .comparison = compare(a, b, 0)};
  check_compared(verdict.comparison);
  verdict.first = verdict.comparison.first;
  if (verdict.first) {
    verdict.word = "differs";
  } else if (a[0].steps != b[0].steps || verdict.comparison.unmatched > 0) {
    verdict.word = "not comparable";
    verdict.causes.push_back(
        {"other_tensors", Weight::limit,
         concat("what both have is equal, but ", first, " is of ", a[0].steps, " steps and ",
                second, " of ", b[0].steps, ", and ", verdict.comparison.unmatched,
                " tensors are in one of them only")});
  }
  std::string unlike;
  for (const auto& [name, value] : a[0].run) {
    const auto other = b[0].run.find(name);
    if (other != b[0].run.end() && other->second != value) {
      unlike += concat(unlike.empty() ? "" : ", ", name, " is ", value, " and ", other->second);
    }
  }
  if (!unlike.empty()) {
    verdict.causes.push_back({"other_settings", verdict.first ? Weight::mistake : Weight::note,
                              "the runs were not made alike: " + unlike});
  }
  return verdict;
}

}  // namespace weft::train::proof
