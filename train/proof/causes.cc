#include "weft/train/proof/causes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <valarray>

#include "weft/core/base/error.h"

namespace weft::train::proof {
namespace {

using detail::concat;
using Causes = std::vector<Cause>;

// If this many repeats are expected, the probability that none occurs by chance is e^-7, about 1 in
// 1,000.
constexpr double kManyRepeats = 7;

/// The first few, "a, b, c and 4 more".
template <class List>
std::string some(const List& list) {
  constexpr std::size_t kShown = 3;
  std::string text;
  std::size_t number = 0;
  for (const auto& element : list) {
    if (number == kShown) return concat(text, " and ", list.size() - kShown, " more");
    text += concat(number++ > 0 ? ", " : "", element);
  }
  return text;
}

// The records of the ranks with batches of their own: of ranks that share a batch, the first.
std::vector<const Record*> with_own_batches(const std::vector<Record>& ranks) {
  std::vector<const Record*> firsts;
  const int sharing = std::max(1, ranks[0].ranks / std::max(1, ranks[0].batches));
  for (std::size_t r = 0; r < ranks.size(); r += static_cast<std::size_t>(sharing)) {
    firsts.push_back(&ranks[r]);
  }
  return firsts;
}

// Whether this optimiser has the same parameters in both: stages of a pipeline have different ones.
bool alike(const Record& a, const Record& b, int optimizer) {
  const auto k = static_cast<std::size_t>(optimizer);
  return k < a.optimizers.size() && k < b.optimizers.size() &&
         a.optimizers[k].parameters == b.optimizers[k].parameters;
}

// An option that has different values in the two: the rate if it is among them; empty if there is
// none.
std::string unlike_option(const Settings& a, const Settings& b) {
  std::string found;
  for (const auto& [option, value] : a) {
    const auto other = b.find(option);
    if (other == b.end() || other->second == value) continue;
    if (found.empty() || option == "lr") found = option;
  }
  return found;
}

void optimizer_options(const std::vector<Record>& ranks, Causes& causes) {
  for (const Record& record : ranks) {
    for (const Update& update : record.updates) {
      const auto peer = std::ranges::find_if(
          ranks, [&](const Record& other) { return alike(other, record, update.optimizer); });
      if (peer == ranks.end()) continue;
      const auto& all = peer->updates;
      const auto first = std::ranges::find_if(all, [&](const Update& of_first) {
        return of_first.step == update.step && of_first.event == update.event &&
               of_first.optimizer == update.optimizer;
      });
      if (first == all.end() || first->groups.size() != update.groups.size()) continue;
      for (std::size_t g = 0; g < update.groups.size(); ++g) {
        const Settings &here = update.groups[g], &there = first->groups[g];
        const std::string option = unlike_option(here, there);
        if (option.empty()) continue;
        causes.push_back(
            {option == "lr" ? "learning_rate" : "optimizer_option", Weight::mistake,
             concat("step ", update.step, ": ", option, " of optimizer ", update.optimizer, " is ",
                    there.at(option), " on rank ", peer->rank, " and ", here.at(option),
                    " on rank ", record.rank,
                    ": each rank updates its copy of the weights by itself, so all need the "
                    "same options")});
        return;
      }
    }
  }
}

// Whether batches with the same indices have the same samples: then one of their tensors is equal,
// at least the labels, even if transforms change pictures. Data sets of the ranks' own have no
// equal tensor.
bool have_one_data_set(const Record& a, const Record& b, std::int64_t epoch) {
  for (const auto& [step, batch] : a.batch_of) {
    const auto other = b.batch_of.find(step);
    if (batch.epoch != epoch || other == b.batch_of.end()) continue;
    if (batch.indices != other->second.indices) continue;
    if (batch.inputs.empty()) return true;
    for (std::size_t i = 0; i < std::min(batch.inputs.size(), other->second.inputs.size()); ++i) {
      if (batch.inputs[i] == other->second.inputs[i]) return true;
    }
  }
  return false;
}

// Two ranks that have the same batches in all steps of an epoch, too many for chance.
std::optional<std::pair<int, int>> equal_lists(const std::vector<const Record*>& firsts,
                                               std::int64_t epoch, std::int64_t size) {
  std::map<std::vector<std::int64_t>, const Record*> readers;
  for (const Record* record : firsts) {
    std::vector<std::int64_t> list;
    for (const auto& [step, batch] : record->batch_of) {
      if (batch.epoch == epoch) list.insert(list.end(), batch.indices.begin(), batch.indices.end());
    }
    const double drawn = static_cast<double>(std::set(list.begin(), list.end()).size());
    if (size < 2 || drawn * std::log(static_cast<double>(size)) < std::log(1e4)) continue;
    const auto [other, is_first] = readers.try_emplace(std::move(list), record);
    if (is_first || !have_one_data_set(*other->second, *record, epoch)) continue;
    return std::pair(other->second->rank, record->rank);
  }
  return {};
}

// Looks for samples that are read twice in an epoch.
void samples(const std::vector<Record>& ranks, Causes& causes) {
  const auto firsts = with_own_batches(ranks);
  if (firsts.size() < 2) return;
  const std::int64_t size = ranks[0].dataset_size;
  std::map<std::int64_t, std::map<std::int64_t, std::set<int>>> readers;  // by epoch and index
  std::map<std::int64_t, std::map<int, std::int64_t>> read;  // samples, by epoch and rank
  std::map<std::int64_t, std::int64_t> again;                // those that a rank reads twice
  for (const Record* record : firsts) {
    for (const auto& [step, batch] : record->batch_of) {
      for (const std::int64_t index : batch.indices) {
        ++read[batch.epoch][record->rank];
        again[batch.epoch] += !readers[batch.epoch][index].insert(record->rank).second;
      }
    }
  }
  const bool told_by_index =
      firsts[0]->batch_of.empty() || !firsts[0]->batch_of.begin()->second.saved;
  bool padded = false;
  for (const auto& [epoch, of_index] : readers) {
    std::vector<std::int64_t> shared;
    for (const auto& [index, of] : of_index) {
      if (of.size() > 1) shared.push_back(index);
    }
    if (shared.empty()) continue;
    const auto same = equal_lists(firsts, epoch, size);
    // If n samples are drawn with replacement from N, n^2 / 2N repeats are expected. If there may
    // be none by chance, the ranks may also have drawn the same samples by chance.
    std::int64_t all = 0;
    double repeats = 0;
    for (const auto& [rank, count] : read[epoch]) {
      all += count;
      repeats += 0.5 * static_cast<double>(count * count) / static_cast<double>(size);
    }
    const std::set<int>& of = of_index.at(shared[0]);
    const auto [one, another] = same.value_or(std::pair(*of.begin(), *of.rbegin()));
    const std::string who = concat("ranks ", one, " and ", another);
    if (!same && std::ssize(shared) < std::ssize(firsts)) {
      if (again[epoch] > 0 || all <= size || std::exchange(padded, true)) continue;
      causes.push_back({"padded_samples", Weight::note,
                        concat("epoch ", epoch, ": the samplers give ", all,
                               " samples of a data set of ", size, ": ", who, " both read ",
                               some(shared), ", so that all ranks have equally many")});
    } else if (same || (told_by_index && again[epoch] == 0 && repeats > kManyRepeats)) {
      causes.push_back({"same_samples", Weight::mistake,
                        concat("epoch ", epoch, ": ", who, " both read ", shared.size(),
                               " samples (", some(shared),
                               "), and one process would read each once: is the sampler's rank "
                               "the rank's own, and its seed that of all ranks?")});
      return;
    }
  }
}

// The one process uses each rank's mean as it is. So it agrees with ranks that do so too, and
// differs from ranks that weight their losses by the numbers of their samples.
void mean_of_means(const std::vector<Record>& ranks, const Comparison& comparison, Causes& causes) {
  const auto firsts = with_own_batches(ranks);
  const auto& beyond = comparison.beyond;
  for (const auto& [step, batch] : firsts[0]->batch_of) {
    for (const Record* record : firsts) {
      const auto other = record->batch_of.find(step);
      if (other == record->batch_of.end()) continue;
      const std::size_t here = batch.indices.size(), there = other->second.indices.size();
      if (here == there) continue;
      const std::string text = concat("step ", step, ": rank ", firsts[0]->rank, " has ", here,
                                      " samples and rank ", record->rank, " has ", there);
      if (!beyond || beyond->item.step > step) {
        causes.push_back({"mean_of_means", Weight::mistake,
                          text + ": the mean of the ranks' means is not the mean over all samples, "
                                 "since each sample of the smaller batch counts more. (A factor "
                                 "that the program has as a number, not from its ranks, is not "
                                 "seen.)"});
      } else {
        const bool here_first = beyond->item.step == step && beyond->item.kind != "output";
        causes.push_back({"mean_of_means", here_first ? Weight::limit : Weight::note,
                          text + ", and the one process weights its batches alike; a program that "
                                 "weights each rank's loss by its number of samples is right, and "
                                 "cannot be compared from here on"});
      }
      return;
    }
  }
}

void unreduced_gradient(const std::vector<Record>& ranks, Causes& causes) {
  // For each step and parameter, two ranks with different gradients.
  std::map<std::int64_t, std::map<std::string, std::pair<int, int>>> unlike;
  std::map<std::int64_t, std::set<std::string>> all;
  std::map<std::string, std::pair<int, std::string>> hashes;
  for (const Record& record : ranks) {
    for (const Item& item : record.items) {
      if (item.kind != "gradient" || item.digest.part || item.digest.missing) continue;
      const auto [first, is_first] = hashes.try_emplace(item.key(), record.rank, item.digest.hash);
      if (is_first) continue;
      all[item.step].insert(item.name);
      if (first->second.second != item.digest.hash) {
        unlike[item.step].try_emplace(item.name, first->second.first, record.rank);
      }
    }
  }
  if (unlike.empty()) return;
  const auto& [step, names] = *unlike.begin();
  const auto [one, another] = names.begin()->second;
  const std::string who = concat("between ranks ", one, " and ", another);
  std::vector<std::string> parameters;
  for (const auto& [name, of] : names) parameters.push_back(name);
  const std::size_t equal = all[step].size() - names.size();
  std::string text;
  if (equal > 0) {
    text = concat("step ", step, ": the gradient of ", some(parameters), " differs ", who,
                  " when it is used, while ", equal,
                  " other gradients are equal: nothing reduces it. Is the parameter outside the "
                  "module that the engine wraps, or in no Horovod optimiser?");
  } else if (unlike.size() < all.size()) {
    text = concat("step ", step, ": all gradients (", some(parameters), ") differ ", who,
                  " when they are used, and in ", all.size() - unlike.size(), " of ", all.size(),
                  " steps they do not: nothing reduces them in this step. Does its last backward "
                  "run under no_sync()?");
  } else {
    text = concat("step ", step, ": all gradients (", some(parameters), ") differ ", who,
                  " when they are used, in every step: nothing reduces them. Is the model called "
                  "by itself, without its engine, or always under no_sync()?");
  }
  causes.push_back({"unreduced_gradient", Weight::mistake, text});
}

void unlike_replicas(const std::vector<Record>& ranks, Causes& causes) {
  std::map<std::pair<std::int64_t, std::string>, std::pair<int, std::string>> hashes;
  for (const Record& record : ranks) {
    for (const Item& item : record.items) {
      if (item.kind != "weight" || item.digest.part) continue;
      const auto [first, is_first] =
          hashes.try_emplace({item.step, item.name}, record.rank, item.digest.hash);
      if (is_first || first->second.second == item.digest.hash) continue;
      causes.push_back(
          {"unlike_replicas", Weight::mistake,
           concat("step ", item.step, ": ", item.name, " differs between ranks ",
                  first->second.first, " and ", record.rank,
                  " after the update, though their gradients and options are equal: did they begin "
                  "with other weights, or do their optimisers hold other states?")});
      return;
    }
  }
}

bool is_dropout(const Item& item) { return item.type.find("Dropout") != std::string::npos; }

void draws(const std::vector<Record>& ranks, const std::vector<Record>& one,
           const Comparison& comparison, Causes& causes) {
  const Difference* first = comparison.beyond ? &*comparison.beyond : nullptr;
  if (first && first->item.kind == "output" && is_dropout(first->item)) {
    causes.push_back(
        {"dropout_draws", Weight::mistake,
         concat("step ", first->item.step, ", rank ", first->rank, ": ", first->item.text(),
                " is the first tensor that differs, and what goes into it is equal: its random "
                "numbers do not come from the state that the rank's generator had before the step. "
                "Does the program seed it within the step, or have a generator of its own?")});
    return;
  }
  const auto firsts = with_own_batches(ranks);
  for (std::size_t r = 0; first && r < firsts.size(); ++r) {
    const Record& other = one[r * one.size() / firsts.size()];
    for (const auto& [step, batch] : firsts[r]->batch_of) {
      const auto found = other.batch_of.find(step);
      if (found == other.batch_of.end() || found->second.generator == batch.generator) continue;
      if (step > first->item.step) break;
      causes.push_back({"dropout_draws", Weight::mistake,
                        concat("step ", step, ": the generator of rank ", firsts[r]->rank,
                               " is in another state than that of the one process: the program "
                               "draws from it or seeds it, as only a run of several ranks does")});
      return;
    }
  }
  if (firsts.size() < 2 || firsts[0]->batch_of.empty()) return;
  const auto dropout = std::ranges::find_if(
      firsts[0]->items, [](const Item& item) { return item.training && is_dropout(item); });
  if (dropout == firsts[0]->items.end()) return;
  for (const Record* record : firsts) {
    const auto& [step, batch] = *firsts[0]->batch_of.begin();
    const auto other = record->batch_of.find(step);
    if (record == firsts[0] || other == record->batch_of.end() || batch.generator.empty() ||
        other->second.generator != batch.generator) {
      continue;
    }
    causes.push_back({"equal_draws", Weight::note,
                      concat("ranks ", firsts[0]->rank, " and ", record->rank, " draw the same ",
                             "random numbers: ", dropout->name, " (", dropout->type,
                             ") drops the same places of both batches, where one process with the "
                             "whole batch drops others; seed each rank's generator by its rank")});
    return;
  }
}

void batch_norm(const std::vector<Record>& ranks, const Comparison& comparison, Causes& causes) {
  const auto is_norm = [](const Item& item) {
    return item.training && item.type.find("BatchNorm") != std::string::npos;
  };
  if (comparison.beyond && is_norm(comparison.beyond->item)) {
    const std::string text = comparison.beyond->item.text() + " is the first tensor that differs: ";
    if (ranks[0].batches > 1) {
      causes.push_back({"synced_batch_norm", Weight::limit,
                        text + "statistics of all ranks' batches together (convert_sync_batchnorm) "
                               "are not those of one batch after the other, which is all that this "
                               "comparison can run; compare with one process by ./weft compare"});
    } else {
      causes.push_back({"local_batch_norm", Weight::limit,
                        text + "it takes the mean and variance of a part of the batch, on a device "
                               "or of a micro-batch, where the other side takes those of the whole "
                               "batch; what comes after it cannot be compared"});
    }
    return;
  }
  if (ranks[0].batches < 2) return;
  const auto norm = std::ranges::find_if(ranks[0].items, is_norm);
  if (norm == ranks[0].items.end()) return;
  causes.push_back({"local_batch_norm", Weight::note,
                    concat(norm->name, " (", norm->type,
                           ") and others like it take the mean and variance of each rank's own "
                           "batch, so the run is that of one process that computes the ranks' "
                           "batches one after the other, not of one with a batch of all samples; "
                           "parallel::convert_sync_batchnorm takes them of all ranks")});
}

// A digest's sums of signs. They are linear: for a sum of tensors, add those of its addends.
using Signs = std::valarray<double>;
using SignsByName = std::map<std::string, Signs>;

Signs signs_of(const Item& item) { return {item.digest.signs.data(), item.digest.signs.size()}; }
Signs& at(SignsByName& signs, const std::string& name) {
  return signs.try_emplace(name, std::tuple_size_v<decltype(Digest::signs)>).first->second;
}
double product(const Signs& a, const Signs& b) { return Signs(a * b).sum(); }

bool is_of_update(const Item& item, const Item& gradient) {
  return item.step == gradient.step && item.event == gradient.event;
}

// For each micro-batch, by number, what it adds to the mean of the one process's batches.
std::map<std::int64_t, SignsByName> micro_batches(const std::vector<Record>& one,
                                                  const Item& first) {
  std::map<std::int64_t, SignsByName> added;
  for (const Record& record : one) {
    SignsByName before;
    for (const Item& item : record.micro_batches) {
      if (!is_of_update(item, first)) continue;
      const Signs now = signs_of(item);
      at(added[item.call], item.name) +=
          (now - at(before, item.name)) / static_cast<double>(one.size());
      at(before, item.name) = now;
    }
  }
  return added;
}

// A gradient that differs.
struct Pair {
  std::string name;
  bool is_scalar;
  Signs ranks, one;
};

std::vector<Pair> unlike_gradients(const Record& record, const Record& one, const Item& first,
                                   double tolerance) {
  SignsByName others;
  for (const Item& item : one.items) {
    if (item.kind == "gradient" && is_of_update(item, first)) others[item.name] = signs_of(item);
  }
  std::vector<Pair> pairs;
  for (const Item& item : record.items) {
    if (item.kind != "gradient" || !is_of_update(item, first) || item.digest.missing ||
        item.digest.part || !others.contains(item.name)) {
      continue;
    }
    const bool is_scalar =
        std::ranges::all_of(item.digest.shape, [](std::int64_t size) { return size == 1; });
    const Pair pair{item.name, is_scalar, signs_of(item), others[item.name]};
    const Signs off = pair.one - pair.ranks;
    if (product(off, off) > tolerance * tolerance * product(pair.one, pair.one)) {
      pairs.push_back(pair);
    }
  }
  return pairs;
}

// The factor by which the ranks' gradients differ from those of the one process without what a
// micro-batch adds; none if they differ otherwise.
std::optional<double> factor_without(SignsByName added, const std::vector<Pair>& pairs,
                                     double tolerance) {
  double squares = 0, products = 0, all = 0;
  for (const Pair& pair : pairs) {
    const Signs &own = at(added, pair.name), rest = pair.one - own;
    squares += product(rest, rest);
    products += product(rest, pair.ranks);
    all += product(own, own);
  }
  if (all == 0 || products <= tolerance * squares) return {};
  const double factor = products / squares;
  // For a single number some factor always fits.
  if (std::abs(factor - 1) > tolerance && pairs.size() == 1 && pairs[0].is_scalar) return {};
  for (const Pair& pair : pairs) {
    const Signs &own = at(added, pair.name), off = pair.ranks - factor * Signs(pair.one - own);
    // If a tensor is all rounding, the size of the others is the measure.
    const double least = std::max(product(own, own), 1e-12 * all);
    if (product(off, off) > tolerance * tolerance * least) return {};
  }
  return factor;
}

}  // namespace

std::optional<Cause> lost_micro_batch(const std::vector<Record>& ranks,
                                      const std::vector<Record>& one, const Difference& first) {
  const auto added = micro_batches(one, first.item);
  const double tolerance = ranks[0].dtype == "f64" ? 1e-6 : 1e-3;  // rounding stays below it
  std::optional<std::int64_t> lost;
  double factor = 1;
  std::set<std::string> names;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Record& other = one[r * one.size() / ranks.size()];
    const auto pairs = unlike_gradients(ranks[r], other, first.item, tolerance);
    bool fits = pairs.empty();
    for (const auto& [number, own] : added) {
      const auto found = factor_without(own, pairs, tolerance);
      if (!found || lost.value_or(number) != number) continue;
      fits = true;
      lost = number;
      factor = *found;
      for (const Pair& pair : pairs) names.insert(pair.name);
    }
    if (!fits) return {};
  }
  if (!lost) return {};
  const std::string scaled = std::abs(factor - 1) > tolerance ? concat(", times ", factor) : "";
  return Cause{"lost_micro_batch", Weight::mistake,
               concat("step ", first.item.step, ": micro-batch ", *lost, " (of 0 to ",
                      added.rbegin()->first, ") is missing in the gradient of ", some(names),
                      ", which is what the other micro-batches add", scaled,
                      ": does its backward run, and is what it computes added?")};
}

std::vector<Cause> find_causes(const std::vector<Record>& ranks, const std::vector<Record>& one,
                               const Comparison& comparison) {
  Causes causes;
  optimizer_options(ranks, causes);
  unreduced_gradient(ranks, causes);
  if (causes.empty()) unlike_replicas(ranks, causes);
  samples(ranks, causes);
  mean_of_means(ranks, comparison, causes);
  if (std::ranges::find(causes, Weight::mistake, &Cause::weight) == causes.end())
    draws(ranks, one, comparison, causes);
  batch_norm(ranks, comparison, causes);
  return causes;
}

}  // namespace weft::train::proof
